//! What every request passes: CPU share, time limit and common headers first, then checks of
//! method, host, body and token.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::uri::Authority;
use axum::http::{Method, Response, Uri, Version};
use axum::middleware::Next;
use axum::response::IntoResponse;
use tokio::time::timeout;

use crate::api::response::ApiError;
use crate::api::{Api, routes};

/// Time for a response, most of which is waiting for CPU time.
const RESPONSE_TIMEOUT: Duration = Duration::from_mins(1);

/// Headers of every response: no content sniffing, no caching, no scripts, no use by other pages.
const SECURITY_HEADERS: [(HeaderName, &str); 5] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Waits for CPU time, limits the time of a request, counts it, and adds headers.
pub(in crate::api) async fn limit(
    State(api): State<Arc<Api>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let work = async {
        api.wait_for_cpu().await;
        next.run(request).await
    };
    let response = timeout(RESPONSE_TIMEOUT, work).await;
    let mut response = response.unwrap_or_else(|_| ApiError::TIMED_OUT.into_response());
    for (name, value) in SECURITY_HEADERS {
        // Pages have their own policy.
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    api.shared.requests.count(response.status().as_u16());
    response
}

/// Rejects requests that are not allowed.
pub(in crate::api) async fn check(
    State(api): State<Arc<Api>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    match reject(&api, &request) {
        Some(error) => error.into_response(),
        None => next.run(request).await,
    }
}

fn reject(api: &Api, request: &Request) -> Option<ApiError> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return Some(ApiError::METHOD);
    }
    let (uri, headers) = (request.uri(), request.headers());
    let hosts = headers.get_all(header::HOST).iter().count();
    if hosts > 1 || hosts == 0 && request.version() >= Version::HTTP_11 {
        return Some(ApiError::ONE_HOST);
    }
    if !request.body().is_end_stream() {
        return Some(ApiError::BODY);
    }
    if api.token.is_none() && !is_for_this_host(uri, headers, api.address.ip()) {
        return Some(ApiError::WRONG_HOST);
    }
    if !is_same_origin(headers) {
        return Some(ApiError::WRONG_ORIGIN);
    }
    (!is_allowed(api, uri, headers)).then_some(ApiError::NO_TOKEN)
}

/// Whether a request without a token names this host. A foreign page whose DNS name points here
/// (DNS rebinding) does not.
fn is_for_this_host(uri: &Uri, headers: &HeaderMap, listen_address: IpAddr) -> bool {
    let named = headers.get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or("?"));
    let target = uri.authority().map(Authority::as_str);
    named.chain(target).all(|host| is_own(host, listen_address))
}

/// Whether no other web page sent the request. Browsers send `Origin` with requests of other pages.
fn is_same_origin(headers: &HeaderMap) -> bool {
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let host = headers.get(header::HOST).map(HeaderValue::as_bytes).unwrap_or_default();
    origins.all(|origin| {
        let origin = origin.as_bytes();
        let host_of = origin.strip_prefix(b"https://").or(origin.strip_prefix(b"http://"));
        host_of.is_some_and(|origin| origin.eq_ignore_ascii_case(host))
    })
}

fn is_allowed(api: &Api, uri: &Uri, headers: &HeaderMap) -> bool {
    let Some(token) = &api.token else { return true };
    if routes::is_open(uri.path()) {
        return true;
    }
    let header = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
    let header = header.and_then(|value| value.split_at_checked(7));
    header.is_some_and(|(scheme, value)| {
        scheme.eq_ignore_ascii_case(b"bearer ") && token.is(value.trim_ascii())
    })
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
    use super::*;

    #[test]
    fn requests_of_other_pages_are_rejected() {
        let from = |origin: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static("gpu.example:9754"));
            headers.insert(header::ORIGIN, HeaderValue::from_static(origin));
            is_same_origin(&headers)
        };
        assert!(from("http://gpu.example:9754") && from("https://gpu.example:9754"));
        for origin in ["null", "http://evil.example", "http://gpu.example", "gpu.example:9754", ""]
        {
            assert!(!from(origin), "{origin}");
        }
        assert!(is_same_origin(&HeaderMap::new()), "no browser");
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
