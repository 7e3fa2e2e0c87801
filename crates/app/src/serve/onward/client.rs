//! Sends over HTTP: one attempt, with a bound for everything that comes back.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use formats::export::page::base64;
use ureq::Agent;
use ureq::http::{Response, StatusCode};
use ureq::tls::{RootCerts, TlsConfig};

use crate::serve::config::onward::Receiver;
use crate::serve::secret;

/// The most that is read of an answer.
const LONGEST_ANSWER: u64 = 64 << 10;

/// The longest time that a receiver can ask to be left alone.
const LONGEST_REST: Duration = Duration::from_secs(3600);

/// Why something was not taken.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Failure {
    /// In words; may hold foreign text.
    pub(super) why: String,
    /// The same may be taken later.
    pub(super) is_passing: bool,
    /// When to come again, as the receiver says.
    pub(super) after: Option<Duration>,
}

/// A receiver, as it is reached.
pub(super) struct Client {
    agent: Agent,
    timeout: Duration,
    tenant: Option<String>,
    login: Option<Login>,
}

/// Who we are. The file is read anew for each attempt, for tokens are exchanged.
struct Login {
    user: Option<String>,
    file: PathBuf,
    last: Mutex<String>,
}

impl Client {
    /// Reads what the settings name.
    pub(super) fn new(receiver: &Receiver<'_>) -> Result<Self> {
        let roots = match receiver.ca_file {
            Some(file) => RootCerts::from(secret::certificates(file)?),
            None => RootCerts::PlatformVerifier,
        };
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // A secret is for the one who is named.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("vramscope/", env!("CARGO_PKG_VERSION")))
            .tls_config(TlsConfig::builder().root_certs(roots).build());
        let login = match (receiver.token_file, receiver.user, receiver.password_file) {
            (Some(file), ..) => Some(Login::new(None, file)?),
            (None, Some(user), Some(file)) => Some(Login::new(Some(user), file)?),
            _ => None,
        };
        Ok(Self {
            agent: config.build().new_agent(),
            timeout: receiver.timeout,
            tenant: receiver.tenant.map(str::to_owned),
            login,
        })
    }

    /// One attempt; what the receiver answered.
    pub(super) fn post(
        &self,
        url: &str,
        headers: &[(&'static str, &'static str)],
        body: &[u8],
        at_most: Duration,
    ) -> Result<Vec<u8>, Failure> {
        let mut request = self.agent.post(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(tenant) = &self.tenant {
            request = request.header("X-Scope-OrgID", tenant);
        }
        if let Some(login) = &self.login {
            request = request.header("Authorization", login.header());
        }
        let limited = request.config().timeout_global(Some(self.timeout.min(at_most))).build();
        let answer = limited.send(body).map_err(|error| Failure {
            why: format!("no answer: {error}"),
            is_passing: true,
            after: None,
        })?;
        judge(answer)
    }
}

fn judge(mut answer: Response<ureq::Body>) -> Result<Vec<u8>, Failure> {
    let status = answer.status();
    let after = answer.headers().get("retry-after").and_then(|value| value.to_str().ok());
    let after = after.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
    let after = after.map(|after| after.min(LONGEST_REST));
    let body = answer.body_mut().with_config().limit(LONGEST_ANSWER).read_to_vec();
    if status.is_success() {
        return Ok(body.unwrap_or_default());
    }
    let is_passing = matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    );
    // Many say in words what is wrong; protocol buffers are no words.
    let words = body.ok().and_then(|body| String::from_utf8(body).ok()).unwrap_or_default();
    let words = words.trim();
    let why = match words.is_empty() || words.contains('\0') {
        true => format!("the answer is {status}"),
        false => format!("the answer is {status}: {words}"),
    };
    Err(Failure { why, is_passing, after })
}

impl Login {
    fn new(user: Option<&str>, file: &Path) -> Result<Self> {
        let last = Mutex::new(secret::line(file)?);
        Ok(Self { user: user.map(str::to_owned), file: file.to_owned(), last })
    }

    fn header(&self) -> String {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // A file that is just being replaced may be gone for a moment.
        if let Ok(new) = secret::line(&self.file) {
            *last = new;
        }
        match &self.user {
            None => format!("Bearer {last}"),
            Some(user) => format!("Basic {}", base64(format!("{user}:{last}").as_bytes())),
        }
    }
}
