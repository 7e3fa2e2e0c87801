//! HTTP client of webhooks, exporters and the kubelet: one attempt, without redirects, and with
//! limits on everything that is received. Secrets and paths of addresses never appear in messages.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, anyhow};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use formats::sanitize::sanitize;
use ureq::http::{HeaderName, HeaderValue, Response};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body, RequestBuilder};

use crate::config::endpoint::{AuthScheme, Credentials, HttpEndpoint, header};
use crate::files::secret;

/// Maximum bytes read of the response to a POST.
const MAX_RESPONSE_BYTES: u64 = 64 << 10;

/// Timeout of a request to another agent.
const AGENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum `Retry-After` that is respected.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(1);

/// Error of one attempt.
#[derive(Clone, PartialEq, Debug)]
pub struct RequestError {
    /// Description; may contain foreign text.
    pub reason: String,
    /// Status of the response, if there was one.
    pub status: Option<u16>,
    /// The same request may succeed later.
    pub(crate) is_transient: bool,
    /// Delay requested by the server.
    pub(crate) retry_after: Option<Duration>,
}

impl RequestError {
    /// An error that will not pass.
    pub(crate) fn permanent(reason: impl Into<String>) -> Self {
        let (reason, is_transient) = (reason.into(), false);
        Self { reason, status: None, is_transient, retry_after: None }
    }
}

/// A client of one endpoint.
pub struct HttpClient {
    agent: Agent,
    endpoint: HttpEndpoint,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// The secret as it was last read: a file that is being replaced may be missing briefly.
    secret: Mutex<String>,
}

impl HttpClient {
    /// Returns a client of another agent.
    ///
    /// # Errors
    /// The token cannot be read.
    pub fn to_agent(url: &str, token_file: Option<&Path>) -> Result<Self> {
        Self::new(HttpEndpoint {
            url: url.to_owned(),
            timeout: AGENT_TIMEOUT,
            credentials: Credentials::bearer(token_file),
            ..HttpEndpoint::default()
        })
    }

    /// Reads the files that the configuration names.
    pub(crate) fn new(endpoint: HttpEndpoint) -> Result<Self> {
        let roots = match &endpoint.ca_file {
            Some(file) => RootCerts::from(secret::certificates(file)?),
            None => RootCerts::PlatformVerifier,
        };
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            // A secret is only for the configured host.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("vramscope/", env!("CARGO_PKG_VERSION")))
            .tls_config(TlsConfig::builder().root_certs(roots).build());
        if endpoint.is_direct {
            config = config.proxy(None);
        }
        let headers = endpoint.headers.iter().map(|(name, value)| header(name, value));
        let headers = headers.collect::<Result<_, _>>().map_err(|reason| anyhow!(reason))?;
        let file = endpoint.credentials.as_ref().map(|credentials| &*credentials.file);
        let secret = file.map(secret::line).transpose()?.unwrap_or_default();
        let agent = config.build().new_agent();
        Ok(Self { agent, endpoint, headers, secret: Mutex::new(secret) })
    }

    /// Returns scheme and host of the endpoint.
    pub(crate) fn shown(&self) -> String {
        self.endpoint.shown()
    }

    /// Sends a request with a body. Returns the body of the response.
    pub(crate) fn post(
        &self,
        headers: &[(&'static str, &'static str)],
        body: &[u8],
        timeout: Duration,
    ) -> Result<Vec<u8>, RequestError> {
        let mut request = self.prepare(self.agent.post(&self.endpoint.url), timeout)?;
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.check(request.send(body), MAX_RESPONSE_BYTES)
    }

    /// Requests a path below the endpoint. Returns the body of the response.
    ///
    /// # Errors
    /// There is no response, or it is an error or too large.
    pub fn get(&self, path: &str, max_bytes: u64) -> Result<Vec<u8>, RequestError> {
        let request = self.agent.get(format!("{}{path}", self.endpoint.url));
        self.check(self.prepare(request, Duration::MAX)?.call(), max_bytes)
    }

    /// Adds the timeout, the configured headers, and the one that carries the secret.
    fn prepare<B>(
        &self,
        request: RequestBuilder<B>,
        timeout: Duration,
    ) -> Result<RequestBuilder<B>, RequestError> {
        let timeout = self.endpoint.timeout.min(timeout);
        let mut request = request.config().timeout_global(Some(timeout)).build();
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        if let Some(Credentials { file, scheme }) = &self.endpoint.credentials {
            let mut last = self.secret.lock().unwrap_or_else(PoisonError::into_inner);
            if let Ok(new) = secret::line(file) {
                *last = new;
            }
            let (name, value) = match scheme {
                AuthScheme::Bearer => ("Authorization", format!("Bearer {last}")),
                AuthScheme::Basic(user) => {
                    let basic = BASE64_STANDARD.encode(format!("{user}:{last}"));
                    ("Authorization", format!("Basic {basic}"))
                }
                AuthScheme::Header(name) => (&**name, last.clone()),
            };
            let (name, value) = header(name, &value).map_err(RequestError::permanent)?;
            request = request.header(name, value);
        }
        Ok(request)
    }

    fn check(
        &self,
        response: Result<Response<Body>, ureq::Error>,
        max_bytes: u64,
    ) -> Result<Vec<u8>, RequestError> {
        let no_response = |error: ureq::Error| {
            let text = error.to_string().replace(&self.endpoint.url, &self.shown());
            let reason = format!("no response: {text}");
            RequestError { reason, status: None, is_transient: true, retry_after: None }
        };
        let mut response = response.map_err(no_response)?;
        let status = response.status();
        let after = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
        let after = after.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
        let body = response.body_mut().with_config().limit(max_bytes).read_to_vec();
        if status.is_success() {
            let truncated = |error| format!("the response was truncated: {error}");
            return body.map_err(|error| RequestError::permanent(truncated(error)));
        }
        // Many servers describe the error as text; protocol buffers are not text.
        let text = body.ok().and_then(|body| String::from_utf8(body).ok()).unwrap_or_default();
        let text = Some(text.trim()).filter(|text| !text.is_empty() && !text.contains('\0'));
        let detail = match (status.is_redirection(), text) {
            (true, _) => ": redirects are not followed, set the final URL".into(),
            (false, Some(text)) => format!(": {}", sanitize(text)),
            (false, None) => String::new(),
        };
        Err(RequestError {
            reason: format!("the server returned {status}{detail}"),
            status: Some(status.as_u16()),
            is_transient: matches!(status.as_u16(), 408 | 425 | 429 | 500..),
            retry_after: after.map(|after| after.min(MAX_RETRY_AFTER)),
        })
    }
}
