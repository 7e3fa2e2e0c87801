//! How a receiver is reached, and what may not be sent to it in the clear.

use std::path::Path;
use std::time::Duration;

use crate::serve::secret;

/// Somebody who takes what is sent over HTTP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receiver<'a> {
    /// What the setting is called, and where it is.
    pub(crate) url: (&'static str, &'a str),
    /// For one attempt.
    pub(crate) timeout: Duration,
    /// How long one delivery is tried again.
    pub(crate) retry: Duration,
    /// The tenant.
    pub(crate) tenant: Option<&'a str>,
    /// A file with a bearer token.
    pub(crate) token_file: Option<&'a Path>,
    /// A user, and a file with the password.
    pub(crate) user: Option<&'a str>,
    pub(crate) password_file: Option<&'a Path>,
    /// Certificates that are trusted.
    pub(crate) ca_file: Option<&'a Path>,
}

impl Receiver<'_> {
    /// What is wrong with it.
    pub(super) fn check(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        self.check_url(&mut wrong);
        let minute = Duration::from_secs(60);
        if self.timeout.is_zero() || self.timeout > minute {
            wrong.push("`timeout` must be more than 0 and at most 1m".into());
        }
        if self.retry > 60 * minute {
            wrong.push("`retry` must be at most 1h".into());
        }
        if self.user.is_some() != self.password_file.is_some() {
            wrong.push("`user` needs `password_file`, and the other way round".into());
        }
        if self.user.is_some() && self.token_file.is_some() {
            wrong.push("name either `token_file`, or `user` and `password_file`".into());
        }
        if self.user.is_some_and(|user| user.contains(':') || !is_line(user)) {
            wrong.push("`user` must be of visible letters without `:`".into());
        }
        if self.tenant.is_some_and(|tenant| tenant.is_empty() || !is_line(tenant)) {
            wrong.push("`tenant` must be of visible letters".into());
        }
        let files = [("token_file", self.token_file), ("password_file", self.password_file)];
        for (name, file) in files {
            if let Some(Err(error)) = file.map(secret::read) {
                wrong.push(format!("`{name}`: {error}"));
            }
        }
        if let Some(Err(error)) = self.ca_file.map(secret::certificates) {
            wrong.push(format!("`ca_file`: {error}"));
        }
        wrong
    }

    fn check_url(&self, wrong: &mut Vec<String>) {
        let (name, url) = self.url;
        let parsed = url.parse::<ureq::http::Uri>().ok();
        let scheme = parsed.as_ref().and_then(|url| url.scheme_str());
        let host = parsed.as_ref().and_then(|url| url.host()).filter(|host| !host.is_empty());
        let (Some(scheme @ ("http" | "https")), Some(host)) = (scheme, host) else {
            wrong.push(format!("`{name}` must be an address that begins with http:// or https://"));
            return;
        };
        if url.contains('?') {
            wrong.push(format!("`{name}` must have no `?`: what follows is added"));
        }
        if url.contains('@') {
            wrong.push(format!("`{name}` must hold no secret: use `user` and `password_file`"));
        }
        let has_secret = self.token_file.is_some() || self.password_file.is_some();
        if has_secret && scheme == "http" && !is_loopback(host) {
            wrong.push(format!(
                "`{name}` would carry a secret in the clear: use https, or an address of this \
                 host"
            ));
        }
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let parsed = address.parse::<std::net::IpAddr>();
    host == "localhost" || parsed.is_ok_and(|address| address.is_loopback())
}

/// Whether a text can stand in a header.
fn is_line(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}
