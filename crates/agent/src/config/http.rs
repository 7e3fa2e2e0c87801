//! `[http]`: address, authentication and TLS of the HTTP API.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use formats::sanitize::error_chain;

use super::section::section;

section! {
    /// The HTTP API. Endpoints and limits: http-api.md.
    HttpConfig {
        /// Listen address; same as `--listen`. Anything but loopback requires `token_file`.
        listen: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9754), default "\"127.0.0.1:9754\"";
        /// Secret file with the bearer token that clients must send; same as `--token-file`.
        token_file: Option<PathBuf> = None, example "\"/etc/vramscope/token\"";
        /// Certificate chain in PEM; TLS 1.2 or 1.3. Requires `tls_key_file`.
        tls_cert_file: Option<PathBuf> = None, example "\"/etc/vramscope/server.pem\"";
        /// Secret file with the private key in PEM. Requires `tls_cert_file`.
        tls_key_file: Option<PathBuf> = None, example "\"/etc/vramscope/server.key\"";
        /// Show whole paths of source files and libraries in responses, not only the last part.
        show_paths: bool = false, default "false";
    }
}

impl HttpConfig {
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
        let files = crate::api::check_files(self);
        errors.extend(files.iter().map(|error| format!("[http] {}", error_chain(error.as_ref()))));
    }
}
