//! The HTTP server: metrics, the API and health checks, on one thread that never blocks the engine.

mod answers;
mod auth;
mod cache;
mod files;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
pub(crate) mod live;
mod query;
mod response;
mod routes;
mod server;
#[cfg(any(test, feature = "fuzzing"))]
mod tests;

use std::net::{SocketAddr, TcpListener};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::body::Bytes;
use serde::Serialize;
use tokio_rustls::TlsAcceptor;

use super::config::http::HttpConfig;
use super::{AgentState, PublishedSnapshot, Worker};
use answers::Answer;
use auth::token::BearerToken;
use cache::{CacheKey, ResponseCache, Visible};
use live::LivePage;
use query::ListQuery;
use response::{ApiError, ApiResult, JSON, ok};
use server::cpu_share::CpuGate;
pub(crate) use server::cpu_share::CpuShare;

/// Age of the latest snapshot beyond which the agent is not ready.
const READY_TIMEOUT: Duration = Duration::from_secs(15);

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

/// State of the server.
struct Api {
    shared: Arc<AgentState>,
    address: SocketAddr,
    token: Option<BearerToken>,
    cache: Mutex<ResponseCache>,
    gate: CpuGate,
    live: LivePage,
    page: formats::report::html::LivePageFile,
}

impl Api {
    fn new(shared: Arc<AgentState>, address: SocketAddr, token: Option<BearerToken>) -> Arc<Self> {
        Arc::new(Self {
            shared,
            address,
            token,
            cache: Mutex::default(),
            gate: CpuGate::new(),
            live: LivePage::new(),
            page: formats::report::html::live_page(),
        })
    }

    /// Waits until CPU time is available.
    async fn wait_for_cpu(&self) {
        self.gate.pass(&self.shared.http_cpu).await;
    }

    /// Whether a driver is traced and snapshots are current.
    fn is_ready(&self) -> bool {
        let feed = &self.shared.feed;
        feed.newest().is_some_and(|newest| newest.own.tracing)
            && feed.age().is_some_and(|age| age < READY_TIMEOUT)
    }

    fn with_cache<T>(&self, work: impl FnOnce(&mut ResponseCache) -> T) -> T {
        work(&mut self.cache.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the latest snapshot: without directories of file paths, unless the configuration
    /// allows them.
    fn visible(&self) -> Result<Visible, ApiError> {
        let published = self.newest()?;
        if self.shared.config.http.show_paths {
            return Ok(Visible::whole(published));
        }
        Ok(self.with_cache(|cache| cache.redacted(&published)))
    }

    /// Returns a body that is built once per snapshot.
    fn cached(
        &self,
        published: &PublishedSnapshot,
        key: CacheKey,
        build: impl FnOnce() -> Option<Vec<u8>>,
    ) -> Result<Bytes, ApiError> {
        self.with_cache(|cache| cache.response(published, key, build)).ok_or(ApiError::INTERNAL)
    }

    /// Returns the latest snapshot with all paths, for answers without call stacks: to hide all paths
    /// costs time.
    fn newest(&self) -> Result<Arc<PublishedSnapshot>, ApiError> {
        self.shared.feed.newest().ok_or(ApiError::NO_SNAPSHOT)
    }

    /// Returns an answer to a query of a snapshot, which is built once.
    fn answer<S: Deref<Target = PublishedSnapshot>, T: Serialize>(
        &self,
        published: &S,
        name: &'static str,
        query: ListQuery,
        fields: impl FnOnce(&S) -> T,
    ) -> ApiResult {
        let build = || serde_json::to_vec(&Answer::new(published, fields(published))).ok();
        Ok(ok(JSON, self.cached(published, (name, query), build)?))
    }
}

/// Returns the acceptor of TLS connections, if a certificate is configured.
fn acceptor(http: &HttpConfig) -> Result<Option<TlsAcceptor>> {
    match (&http.tls_cert_file, &http.tls_key_file) {
        (Some(certificate), Some(key)) => auth::tls::acceptor(certificate, key).map(Some),
        _ => Ok(None),
    }
}

/// Checks the files that the configuration names.
pub(crate) fn check_files(http: &HttpConfig) -> Vec<anyhow::Error> {
    let token = http.token_file.as_deref().and_then(|file| BearerToken::read(file).err());
    token.into_iter().chain(acceptor(http).err()).collect()
}

/// Listens and starts the HTTP worker. Fails if the port is in use, the token is readable by
/// others, or a certificate does not match its key.
pub(crate) fn start(shared: &Arc<AgentState>) -> Result<Worker> {
    let http = &shared.config.http;
    let token = http.token_file.as_deref().map(BearerToken::read).transpose()?;
    let tls = acceptor(http)?;
    let listener = TcpListener::bind(http.listen).with_context(|| {
        format!("cannot listen on {}; choose another address with --listen", http.listen)
    })?;
    listener.set_nonblocking(true).context("cannot make the socket non-blocking")?;
    let address = listener.local_addr().context("cannot get the listen address")?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    if !address.ip().is_loopback() && tls.is_none() {
        tracing::warn!(
            "{address} is reachable from other hosts without TLS, so the token can be intercepted; set \
             tls_cert_file and tls_key_file"
        );
    }
    tracing::info!("listening on {scheme}://{address}");
    let api = Api::new(Arc::clone(shared), address, token);
    Worker::of_agent("http", shared, move |_| Ok(server::run(listener, tls, &api)?))
}
