//! HTTP client of exporters: one attempt, with limits on everything that is received.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use formats::report::html::base64;
use ureq::Agent;
use ureq::http::{Response, StatusCode};
use ureq::tls::{RootCerts, TlsConfig};

use crate::serve::config::exporters::HttpEndpoint;
use crate::serve::secret;

/// Maximum bytes read of a response.
const MAX_RESPONSE_BYTES: u64 = 64 << 10;

/// Maximum `Retry-After` that is respected.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// Error of one attempt.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct DeliveryError {
    /// Description; may contain foreign text.
    pub(super) reason: String,
    /// The same request may succeed later.
    pub(super) is_transient: bool,
    /// Delay requested by the server.
    pub(super) retry_after: Option<Duration>,
}

/// An endpoint and its connection settings.
pub(super) struct ExportClient {
    agent: Agent,
    timeout: Duration,
    tenant: Option<String>,
    auth: Option<Auth>,
}

/// Credentials. The file is read again for each attempt, because tokens are rotated.
struct Auth {
    user: Option<String>,
    file: PathBuf,
    last: Mutex<String>,
}

impl ExportClient {
    /// Reads the files that the configuration names.
    pub(super) fn new(endpoint: &HttpEndpoint<'_>) -> Result<Self> {
        let roots = match endpoint.ca_file {
            Some(file) => RootCerts::from(secret::certificates(file)?),
            None => RootCerts::PlatformVerifier,
        };
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // A secret is only for the configured host.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("vramscope/", env!("CARGO_PKG_VERSION")))
            .tls_config(TlsConfig::builder().root_certs(roots).build());
        let auth = match (endpoint.token_file, endpoint.user, endpoint.password_file) {
            (Some(file), ..) => Some(Auth::new(None, file)?),
            (None, Some(user), Some(file)) => Some(Auth::new(Some(user), file)?),
            _ => None,
        };
        Ok(Self {
            agent: config.build().new_agent(),
            timeout: endpoint.timeout,
            tenant: endpoint.tenant.map(str::to_owned),
            auth,
        })
    }

    /// Sends one request. Returns the body of the response.
    pub(super) fn post(
        &self,
        url: &str,
        headers: &[(&'static str, &'static str)],
        body: &[u8],
        timeout: Duration,
    ) -> Result<Vec<u8>, DeliveryError> {
        let mut request = self.agent.post(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(tenant) = &self.tenant {
            request = request.header("X-Scope-OrgID", tenant);
        }
        if let Some(auth) = &self.auth {
            request = request.header("Authorization", auth.header());
        }
        let limited = request.config().timeout_global(Some(self.timeout.min(timeout))).build();
        let response = limited.send(body).map_err(|error| DeliveryError {
            reason: format!("no response: {error}"),
            is_transient: true,
            retry_after: None,
        })?;
        check_response(response)
    }
}

fn check_response(mut response: Response<ureq::Body>) -> Result<Vec<u8>, DeliveryError> {
    let status = response.status();
    let after = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
    let after = after.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
    let after = after.map(|after| after.min(MAX_RETRY_AFTER));
    let body = response.body_mut().with_config().limit(MAX_RESPONSE_BYTES).read_to_vec();
    if status.is_success() {
        return Ok(body.unwrap_or_default());
    }
    let is_transient = matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    );
    // Many servers describe the error as text; protocol buffers are not text.
    let text = body.ok().and_then(|body| String::from_utf8(body).ok()).unwrap_or_default();
    let text = text.trim();
    let reason = match text.is_empty() || text.contains('\0') {
        true => format!("the server returned {status}"),
        false => format!("the server returned {status}: {text}"),
    };
    Err(DeliveryError { reason, is_transient, retry_after: after })
}

impl Auth {
    fn new(user: Option<&str>, file: &Path) -> Result<Self> {
        let last = Mutex::new(secret::line(file)?);
        Ok(Self { user: user.map(str::to_owned), file: file.to_owned(), last })
    }

    fn header(&self) -> String {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // A file that is being replaced may be missing briefly.
        if let Ok(new) = secret::line(&self.file) {
            *last = new;
        }
        match &self.user {
            None => format!("Bearer {last}"),
            Some(user) => format!("Basic {}", base64(format!("{user}:{last}").as_bytes())),
        }
    }
}
