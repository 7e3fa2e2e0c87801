//! HTTP endpoints that the agent sends to or queries: one rule for addresses, credentials and
//! certificates.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use formats::sanitize::{error_chain, sanitize};
use ureq::http::{HeaderName, HeaderValue, Uri};

use crate::files::secret;

/// Maximum time of one attempt.
const MAX_TIMEOUT: Duration = Duration::from_mins(1);

/// Words in header names that mark a secret.
const SECRET_HEADER_WORDS: [&str; 6] = ["auth", "token", "key", "secret", "cookie", "password"];

/// An HTTP endpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct HttpEndpoint {
    /// Name of the key that holds the URL, for messages.
    pub(crate) key: &'static str,
    pub(crate) url: String,
    /// Time of one attempt.
    pub(crate) timeout: Duration,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) headers: BTreeMap<String, String>,
    /// CA certificates that are trusted instead of the system's.
    pub(crate) ca_file: Option<PathBuf>,
    /// No proxy is used.
    pub(crate) is_direct: bool,
}

/// A secret and how it is sent. Its file is read for each request, because tokens are rotated.
#[derive(Clone, Debug)]
pub(crate) struct Credentials {
    pub(crate) file: PathBuf,
    pub(crate) scheme: AuthScheme,
}

/// How a secret is sent.
#[derive(Clone, Debug)]
pub(crate) enum AuthScheme {
    Bearer,
    /// As the password of this user.
    Basic(String),
    /// As the value of this header.
    Header(String),
}

impl Credentials {
    /// Returns a bearer token, if there is a file with one.
    pub(crate) fn bearer(file: Option<&Path>) -> Option<Self> {
        file.map(|file| Self { file: file.into(), scheme: AuthScheme::Bearer })
    }
}

impl HttpEndpoint {
    /// Returns its problems, each with advice. None contains a secret.
    pub(super) fn check(&self) -> Vec<String> {
        let mut problems = Vec::new();
        match parse_url(self.key, &self.url) {
            Err(problem) => problems.push(problem),
            Ok(url) => {
                let is_plain = url.scheme_str() == Some("http") && !is_loopback(&url);
                let exposed = if is_plain { self.secret_in(&url) } else { None };
                problems.extend(exposed.map(|name| {
                    format!("{name} would be sent unencrypted; use https or a loopback address")
                }));
            }
        }
        if self.timeout.is_zero() || self.timeout > MAX_TIMEOUT {
            problems.push("`timeout` must be more than 0 and at most 1m".into());
        }
        problems.extend(self.headers.iter().filter_map(|(name, value)| header(name, value).err()));
        if let Some(Credentials { file, scheme }) = &self.credentials {
            problems.extend(secret::line(file).err().map(|error| error_chain(error.as_ref())));
            problems.extend(match scheme {
                AuthScheme::Header(name) => header(name, "").err(),
                AuthScheme::Basic(user) if user.contains(':') || !is_visible(user) => {
                    Some("`username` must have visible characters without `:`".into())
                }
                AuthScheme::Bearer | AuthScheme::Basic(_) => None,
            });
        }
        let certificates = self.ca_file.as_deref().map(secret::certificates);
        problems
            .extend(certificates.and_then(Result::err).map(|error| error_chain(error.as_ref())));
        problems
    }

    /// Returns the secret that a request would carry.
    fn secret_in(&self, url: &Uri) -> Option<String> {
        let is_secret = |name: &&String| {
            let name = name.to_ascii_lowercase();
            SECRET_HEADER_WORDS.iter().any(|word| name.contains(word))
        };
        if self.credentials.is_some() {
            return Some("the secret".into());
        }
        if url.authority().is_some_and(|part| part.as_str().contains('@')) {
            return Some(format!("the password in `{}`", self.key));
        }
        let header = self.headers.keys().find(is_secret);
        header.map(|name| format!("the header `{}`", sanitize(name)))
    }

    /// Returns scheme and host of the URL for messages: paths and user names may be secrets.
    pub(crate) fn shown(&self) -> String {
        let (scheme, rest) = self.url.split_once("://").unwrap_or(("", &self.url));
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        format!("{}://{}", sanitize(scheme), sanitize(host))
    }
}

/// Parses a URL with the scheme http or https, a host and, if any, a valid port.
fn parse_url(key: &str, text: &str) -> Result<Uri, String> {
    let invalid = || format!("`{key}` must be a URL such as https://a.example:8443/path");
    let url: Uri = text.parse().map_err(|_| invalid())?;
    let host = url.host().filter(|host| !host.is_empty()).ok_or_else(invalid)?;
    if !matches!(url.scheme_str(), Some("http" | "https")) {
        return Err(invalid());
    }
    // Whatever follows the host must be a port.
    let authority = url.authority().map(|part| part.as_str()).unwrap_or_default();
    let after = authority.rsplit_once('@').map_or(authority, |(_, rest)| rest).strip_prefix(host);
    match after.and_then(|after| after.strip_prefix(':')) {
        Some(port) if port.parse::<u16>().is_ok_and(|port| port > 0) => Ok(url),
        Some(_) => Err(format!("the port in `{key}` must be 1 to 65535")),
        None => Ok(url),
    }
}

fn is_loopback(url: &Uri) -> bool {
    let host = url.host().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

fn is_visible(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Parses a header.
pub(crate) fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let header_name = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| format!("`{}` is not a valid header name", sanitize(name)))?;
    let mut value = HeaderValue::from_str(value)
        .map_err(|_| format!("the header `{}` has a value that cannot be sent", sanitize(name)))?;
    value.set_sensitive(true);
    Ok((header_name, value))
}
