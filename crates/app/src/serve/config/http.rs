//! `[http]`: address, authentication and TLS of the HTTP API.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;

use crate::io::output;

/// `[http]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct HttpConfig {
    /// Listen address.
    pub(crate) listen: SocketAddr,
    /// File with the bearer token that clients must send; required unless the address is loopback.
    pub(crate) token_file: Option<PathBuf>,
    /// Certificate and its private key, both in PEM.
    pub(crate) tls_cert_file: Option<PathBuf>,
    pub(crate) tls_key_file: Option<PathBuf>,
    /// Show full paths of files and libraries, not only names.
    pub(crate) show_paths: bool,
}

impl HttpConfig {
    /// Default listen address.
    pub(crate) const DEFAULT_LISTEN: SocketAddr =
        SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9754);

    /// Adds the errors of this section.
    pub(super) fn check(&self, errors: &mut Vec<String>) {
        if !self.listen.ip().is_loopback() && self.token_file.is_none() {
            errors.push(format!(
                "{} is reachable from other hosts: set token_file, or listen on 127.0.0.1",
                self.listen
            ));
        }
        if self.tls_cert_file.is_some() != self.tls_key_file.is_some() {
            errors.push("[http] set both tls_cert_file and tls_key_file".into());
        }
        let files = crate::serve::api::check_files(self);
        errors.extend(files.iter().map(|error| format!("[http] {}", output::error_chain(error))));
    }
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            listen: Self::DEFAULT_LISTEN,
            token_file: None,
            tls_cert_file: None,
            tls_key_file: None,
            show_paths: false,
        }
    }
}
