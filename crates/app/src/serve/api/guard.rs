//! Checks of every request: method, host, token and body.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::header::{self, HeaderMap};
use hyper::{Method, Request, StatusCode, Uri, Version};

use super::auth::token::BearerToken;
use super::cache::ResponseCache;
use super::limits::cpu_share::CpuGate;
use super::response::ApiResponse;
use super::routes;
use crate::serve::{AgentState, PublishedSnapshot};

/// Age of the latest snapshot beyond which the agent is not ready.
const READY_TIMEOUT: Duration = Duration::from_secs(15);

/// Checks a request before it is routed.
pub(super) struct RequestGuard {
    pub(super) shared: Arc<AgentState>,
    address: SocketAddr,
    token: Option<BearerToken>,
    cache: Mutex<ResponseCache>,
    gate: CpuGate,
}

impl RequestGuard {
    pub(super) fn new(
        shared: Arc<AgentState>,
        address: SocketAddr,
        token: Option<BearerToken>,
    ) -> Self {
        Self { shared, address, token, cache: Mutex::default(), gate: CpuGate::new() }
    }

    /// Whether the feed is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.shared.feed.is_closed()
    }

    pub(super) fn count(&self, status: u16) {
        self.shared.requests.count(status);
    }

    /// Waits until CPU time is available.
    pub(super) async fn wait_for_cpu(&self) {
        self.gate.pass(&self.shared.http_cpu).await;
    }

    /// Whether a driver is traced and snapshots are current.
    pub(super) fn is_ready(&self) -> bool {
        let feed = &self.shared.feed;
        feed.newest().is_some_and(|newest| newest.own.tracing)
            && feed.age().is_some_and(|age| age < READY_TIMEOUT)
    }

    pub(super) fn with_cache<T>(&self, work: impl FnOnce(&mut ResponseCache) -> T) -> T {
        work(&mut self.cache.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the snapshot for responses: without directories of file paths, unless the
    /// configuration allows them.
    pub(super) fn visible(&self, published: Arc<PublishedSnapshot>) -> Arc<PublishedSnapshot> {
        let show_paths = self.shared.config.http.show_paths;
        if show_paths { published } else { self.with_cache(|cache| cache.redacted(&published)) }
    }

    /// Returns the response to a request.
    pub(super) fn respond(&self, request: &Request<Incoming>) -> ApiResponse {
        let response = self.reject(request).unwrap_or_else(|| routes::respond(self, request.uri()));
        self.count(response.status());
        response
    }

    fn reject(&self, request: &Request<Incoming>) -> Option<ApiResponse> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            let (error, hint) = ("method not allowed: the API is read-only", "use GET");
            let mut response = ApiResponse::error(StatusCode::METHOD_NOT_ALLOWED, error, hint)
                .with(header::ALLOW, "GET, HEAD");
            response.close();
            return Some(response);
        }
        let hosts = request.headers().get_all(header::HOST).iter().count();
        if hosts > 1 || hosts == 0 && request.version() >= Version::HTTP_11 {
            let error = "an HTTP/1.1 request must have one Host header";
            let mut response = ApiResponse::error(StatusCode::BAD_REQUEST, error, "send one");
            response.close();
            return Some(response);
        }
        if !request.body().is_end_stream() {
            let (error, hint) = ("request body not allowed", "send no body");
            let mut response = ApiResponse::error(StatusCode::PAYLOAD_TOO_LARGE, error, hint);
            response.close();
            return Some(response);
        }
        if self.token.is_none() && !self.is_for_this_host(request.uri(), request.headers()) {
            return Some(ApiResponse::error(
                StatusCode::FORBIDDEN,
                "wrong Host header",
                "use 127.0.0.1 or localhost, or set token_file",
            ));
        }
        if !self.is_allowed(request.uri(), request.headers()) {
            let error = "authentication required";
            let hint = "send `Authorization: Bearer TOKEN` with the content of token_file";
            let response = ApiResponse::error(StatusCode::UNAUTHORIZED, error, hint);
            return Some(response.with(header::WWW_AUTHENTICATE, "Bearer"));
        }
        None
    }

    /// Whether a request without a token names this host. A foreign page whose DNS name points here
    /// (DNS rebinding) does not.
    fn is_for_this_host(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let named = headers.get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or("?"));
        let target = uri.authority().map(hyper::http::uri::Authority::as_str);
        named.chain(target).all(|host| is_own(host, self.address.ip()))
    }

    fn is_allowed(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let Some(token) = &self.token else { return true };
        if routes::is_open(uri.path()) {
            return true;
        }
        let header = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
        let header = header.and_then(|value| value.split_at_checked(7));
        header.is_some_and(|(scheme, value)| {
            scheme.eq_ignore_ascii_case(b"bearer ") && token.is(value.trim_ascii())
        })
    }
}

/// Whether a host, with or without a port, refers to this one.
fn is_own(host: &str, listen_address: IpAddr) -> bool {
    let bare = match host.rsplit_once(':') {
        Some((bare, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => bare,
        _ => host,
    };
    let bare = bare.trim_start_matches('[').trim_end_matches(']');
    let address: Option<IpAddr> = bare.parse().ok();
    bare.eq_ignore_ascii_case("localhost")
        || address.is_some_and(|address| address.is_loopback() || address == listen_address)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use engine::metrics::MetricSet;
    use engine::snapshot::Snapshot;

    use super::*;
    use crate::serve::config::Config;
    use crate::serve::exporters::published;

    #[test]
    fn agent_without_recent_snapshots_is_not_ready() {
        let shared = AgentState::new(Config::default());
        let guard = RequestGuard::new(Arc::clone(&shared), Config::default().http.listen, None);
        assert!(!guard.is_ready(), "nothing was published");
        for (sequence, age, is_ready) in [(1, 0, true), (2, 20, false), (3, 10, true)] {
            let mut snapshot = published(sequence, Snapshot::default(), MetricSet::default());
            snapshot.own.tracing = true;
            let at = Instant::now() - Duration::from_secs(age);
            shared.feed.publish_at(snapshot, at);
            assert_eq!(guard.is_ready(), is_ready, "{age} s ago");
        }
    }

    #[test]
    fn foreign_host_names_are_rejected() {
        let here: IpAddr = "127.0.0.1".parse().unwrap();
        for host in ["localhost", "LOCALHOST:9754", "127.0.0.1:1", "127.0.0.1", "[::1]:80", "[::1]"]
        {
            assert!(is_own(host, here), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil:80",
            "",
            "10.0.0.1",
            "?",
            "::",
        ] {
            assert!(!is_own(host, here), "{host}");
        }
        assert!(is_own("10.0.0.1:9754", "10.0.0.1".parse().unwrap()));
    }
}
