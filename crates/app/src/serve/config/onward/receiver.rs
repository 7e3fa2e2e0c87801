//! How a receiver is reached, and what may not be sent to it in the clear.

use std::path::Path;
use std::time::Duration;

use crate::output;
use crate::serve::config::is_loopback;
use crate::serve::secret;

/// Declares sections that name a receiver, each with the setting that has its address and what tells
/// its tenant: their own settings, and those that every receiver has. A struct of these inside of each
/// (flattened by serde) would not do: whether a setting is unknown would be lost, and the line of a
/// mistake.
macro_rules! receivers {
    ($($(#[$about:meta])* $name:ident($url:ident, $tenant:expr) { $($own:tt)* })*) => {$(
        $(#[$about])*
        #[derive(Clone, Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            $($own)*
            /// For one attempt.
            #[serde(default = "ten_seconds")]
            timeout: Span,
            /// How long one delivery is tried again; newer ones are dropped meanwhile.
            #[serde(default = "minute")]
            max_retry_time: Span,
            /// A file with a bearer token.
            token_file: Option<PathBuf>,
            /// For a user and the password in a file.
            username: Option<String>,
            password_file: Option<PathBuf>,
            /// Certificates that are trusted, in PEM, instead of the system's.
            ca_file: Option<PathBuf>,
        }

        impl $name {
            /// How it is reached.
            pub(crate) fn receiver(&self) -> Receiver<'_> {
                let tenant: fn(&Self) -> Option<&str> = $tenant;
                Receiver {
                    url: (stringify!($url), &self.$url),
                    timeout: self.timeout.0,
                    retry: self.max_retry_time.0,
                    tenant: tenant(self),
                    token_file: self.token_file.as_deref(),
                    user: self.username.as_deref(),
                    password_file: self.password_file.as_deref(),
                    ca_file: self.ca_file.as_deref(),
                }
            }
        }
    )*};
}

pub(super) use receivers;

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
            wrong.push("`max_retry_time` must be at most 1h".into());
        }
        if self.user.is_some() != self.password_file.is_some() {
            wrong.push("`username` requires `password_file`, and vice versa".into());
        }
        if self.user.is_some() && self.token_file.is_some() {
            wrong.push("set either `token_file`, or `username` and `password_file`".into());
        }
        if self.user.is_some_and(|user| user.contains(':') || !is_line(user)) {
            wrong.push("`username` must have visible characters without `:`".into());
        }
        if self.tenant.is_some_and(|tenant| tenant.is_empty() || !is_line(tenant)) {
            wrong.push("`tenant` must have visible characters".into());
        }
        let files = [("token_file", self.token_file), ("password_file", self.password_file)];
        for (name, file) in files {
            if let Some(Err(error)) = file.map(secret::line) {
                wrong.push(format!("`{name}`: {}", output::reasons(&error)));
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
        let (Some(scheme @ ("http" | "https")), Some(_)) = (scheme, host) else {
            wrong.push(format!("`{name}` must be a URL that begins with http:// or https://"));
            return;
        };
        if url.contains('?') {
            wrong.push(format!("`{name}` must have no `?`: the path is added"));
        }
        if url.contains('@') {
            wrong.push(format!("`{name}` must hold no secret: use `username` and `password_file`"));
        }
        let has_secret = self.token_file.is_some() || self.password_file.is_some();
        if has_secret && scheme == "http" && !is_loopback(url) {
            wrong.push(format!(
                "`{name}` would send a secret unencrypted; use https or a loopback address"
            ));
        }
    }
}

/// Whether a text can stand in a header.
fn is_line(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}
