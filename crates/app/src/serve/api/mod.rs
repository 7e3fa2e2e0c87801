//! The HTTP server: metrics, the API and health checks, on one thread that never blocks the engine.

mod auth;
mod cache;
mod endpoints;
mod files;
mod guard;
mod incidents;
mod limits;
mod query;
mod response;
mod routes;
mod server;
#[cfg(test)]
mod tests;

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};

use super::config::http::HttpConfig;
use super::{AgentState, AgentThread};
use crate::io::output;
use auth::token::BearerToken;
use guard::RequestGuard;
pub(crate) use limits::cpu_share::CpuShare;

/// Number of responses by status class.
#[derive(Default)]
pub(crate) struct RequestCounts {
    classes: [AtomicU64; 5],
}

impl RequestCounts {
    /// Counts a response.
    pub(crate) fn count(&self, status: u16) {
        let class = usize::from(status / 100).saturating_sub(1);
        if let Some(count) = self.classes.get(class) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of responses with 1xx, 2xx, and so on.
    pub(crate) fn classes(&self) -> [u64; 5] {
        self.classes.each_ref().map(|count| count.load(Ordering::Relaxed))
    }
}

/// Checks the files that the configuration names.
pub(crate) fn check_files(http: &HttpConfig) -> Vec<anyhow::Error> {
    let token = http.token_file.as_deref().and_then(|file| BearerToken::read(file).err());
    let tls = match (&http.tls_cert_file, &http.tls_key_file) {
        (Some(certificate), Some(key)) => auth::tls::acceptor(certificate, key).err(),
        _ => None,
    };
    token.into_iter().chain(tls).collect()
}

/// Listens and starts the HTTP worker. Fails if the port is in use, the token is readable by
/// others, or a certificate does not match its key.
pub(crate) fn start(shared: &Arc<AgentState>) -> Result<AgentThread> {
    let http = &shared.config.http;
    let token = http.token_file.as_deref().map(BearerToken::read).transpose()?;
    let tls = match (&http.tls_cert_file, &http.tls_key_file) {
        (Some(certificate), Some(key)) => Some(auth::tls::acceptor(certificate, key)?),
        _ => None,
    };
    let listener = TcpListener::bind(http.listen).with_context(|| {
        format!("cannot listen on {}; choose another address with --listen", http.listen)
    })?;
    listener.set_nonblocking(true).context("cannot make the socket non-blocking")?;
    let address = listener.local_addr().context("cannot get the listen address")?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    if !address.ip().is_loopback() && tls.is_none() {
        output::log(&format!(
            "{address} is reachable from other hosts without TLS, so the token can be intercepted; set \
             tls_cert_file and tls_key_file"
        ));
    }
    output::log(&format!("listening on {scheme}://{address}"));
    let guard = RequestGuard::new(Arc::clone(shared), address, token);
    AgentThread::spawn("http", shared, move |_| Ok(server::run(listener, tls, guard)?))
}
