//! Connection settings of an exporter over HTTP, and checks that secrets are not sent unencrypted.

use std::path::Path;
use std::time::Duration;

use crate::io::output;
use crate::serve::config::is_loopback;
use crate::serve::secret;

/// Declares the sections of exporters over HTTP, each with the key of its URL and an accessor for
/// its tenant: own keys, plus the keys that all of them share. A flattened struct would lose the
/// detection of unknown keys, and the line number of an error.
macro_rules! receivers {
    ($($(#[$about:meta])* $name:ident($url:ident, $tenant:expr) { $($own:tt)* })*) => {$(
        $(#[$about])*
        #[derive(Clone, Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            $($own)*
            /// Timeout of one attempt.
            #[serde(default = "ten_seconds")]
            timeout: DurationValue,
            /// How long one export is retried; newer ones are dropped meanwhile.
            #[serde(default = "minute")]
            max_retry_time: DurationValue,
            /// File with a bearer token.
            token_file: Option<PathBuf>,
            /// User name, and the password in a file.
            username: Option<String>,
            password_file: Option<PathBuf>,
            /// Trusted CA certificates in PEM, instead of the system's.
            ca_file: Option<PathBuf>,
        }

        impl $name {
            /// Returns the connection settings.
            pub(crate) fn http_endpoint(&self) -> HttpEndpoint<'_> {
                let tenant: fn(&Self) -> Option<&str> = $tenant;
                HttpEndpoint {
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

/// Connection settings of an exporter over HTTP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpEndpoint<'a> {
    /// Name of the key, and the URL.
    pub(crate) url: (&'static str, &'a str),
    /// Timeout of one attempt.
    pub(crate) timeout: Duration,
    /// How long one export is retried.
    pub(crate) retry: Duration,
    /// Tenant id.
    pub(crate) tenant: Option<&'a str>,
    /// File with a bearer token.
    pub(crate) token_file: Option<&'a Path>,
    /// User name, and a file with the password.
    pub(crate) user: Option<&'a str>,
    pub(crate) password_file: Option<&'a Path>,
    /// Trusted CA certificates.
    pub(crate) ca_file: Option<&'a Path>,
}

impl HttpEndpoint<'_> {
    /// Returns its problems.
    pub(super) fn check(&self) -> Vec<String> {
        let mut errors = Vec::new();
        self.check_url(&mut errors);
        let minute = Duration::from_secs(60);
        if self.timeout.is_zero() || self.timeout > minute {
            errors.push("`timeout` must be more than 0 and at most 1m".into());
        }
        if self.retry > 60 * minute {
            errors.push("`max_retry_time` must be at most 1h".into());
        }
        if self.user.is_some() != self.password_file.is_some() {
            errors.push("`username` requires `password_file`, and vice versa".into());
        }
        if self.user.is_some() && self.token_file.is_some() {
            errors.push("set either `token_file`, or `username` and `password_file`".into());
        }
        if self.user.is_some_and(|user| user.contains(':') || !is_header_value(user)) {
            errors.push("`username` must have visible characters without `:`".into());
        }
        if self.tenant.is_some_and(|tenant| tenant.is_empty() || !is_header_value(tenant)) {
            errors.push("`tenant` must have visible characters".into());
        }
        let files = [("token_file", self.token_file), ("password_file", self.password_file)];
        for (name, file) in files {
            if let Some(Err(error)) = file.map(secret::line) {
                errors.push(format!("`{name}`: {}", output::error_chain(&error)));
            }
        }
        if let Some(Err(error)) = self.ca_file.map(secret::certificates) {
            errors.push(format!("`ca_file`: {error}"));
        }
        errors
    }

    fn check_url(&self, errors: &mut Vec<String>) {
        let (name, url) = self.url;
        let parsed = url.parse::<ureq::http::Uri>().ok();
        let scheme = parsed.as_ref().and_then(|url| url.scheme_str());
        let host = parsed.as_ref().and_then(|url| url.host()).filter(|host| !host.is_empty());
        let (Some(scheme @ ("http" | "https")), Some(_)) = (scheme, host) else {
            errors.push(format!("`{name}` must be a URL that begins with http:// or https://"));
            return;
        };
        if url.contains('?') {
            errors.push(format!("`{name}` must have no `?`: the path is added"));
        }
        if url.contains('@') {
            errors
                .push(format!("`{name}` must hold no secret: use `username` and `password_file`"));
        }
        let has_secret = self.token_file.is_some() || self.password_file.is_some();
        if has_secret && scheme == "http" && !is_loopback(url) {
            errors.push(format!(
                "`{name}` would send a secret unencrypted; use https or a loopback address"
            ));
        }
    }
}

/// Whether a text can be a header value.
fn is_header_value(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}
