//! `[http]`: whom to answer, and how.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;

use crate::output;

/// See the module.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Http {
    /// Where to listen.
    pub(crate) listen: SocketAddr,
    /// A file with the token that requests must carry; anything but loopback needs one.
    pub(crate) token_file: Option<PathBuf>,
    /// A certificate and its key, both in PEM.
    pub(crate) tls_cert_file: Option<PathBuf>,
    pub(crate) tls_key_file: Option<PathBuf>,
    /// Folders of files and libraries of programs are told, not only names.
    pub(crate) show_paths: bool,
}

impl Http {
    /// Where the agent listens unless told otherwise.
    pub(crate) const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9754);

    /// What is wrong with it.
    pub(super) fn check(&self, wrong: &mut Vec<String>) {
        if !self.listen.ip().is_loopback() && self.token_file.is_none() {
            wrong.push(format!(
                "{} is reachable from other hosts: set token_file, or listen on 127.0.0.1",
                self.listen
            ));
        }
        if self.tls_cert_file.is_some() != self.tls_key_file.is_some() {
            wrong.push("[http] set both tls_cert_file and tls_key_file".into());
        }
        let files = crate::serve::http::check_files(self);
        wrong.extend(files.iter().map(|error| format!("[http] {}", output::reasons(error))));
    }
}

impl Default for Http {
    fn default() -> Self {
        Self {
            listen: Self::LISTEN,
            token_file: None,
            tls_cert_file: None,
            tls_key_file: None,
            show_paths: false,
        }
    }
}
