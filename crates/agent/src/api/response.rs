//! Responses: content types, and errors with advice.

use axum::body::{Body, Bytes};
use axum::http::header::{self, HeaderValue};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use serde::Serialize;

use super::answers::VERSION;

pub(super) const JSON: &str = "application/json";
pub(super) const HTML: &str = "text/html; charset=utf-8";
pub(super) const TEXT: &str = "text/plain; charset=utf-8";

/// Binary files. Profiles are gzipped, and clients must not decompress them in transit.
pub(super) const BINARY: &str = "application/octet-stream";

/// A response, or an error.
pub(super) type ApiResult = Result<Response<Body>, ApiError>;

/// An error: what is wrong, and what to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    pub(super) error: &'static str,
    pub(super) hint: &'static str,
}

#[derive(Serialize)]
struct ErrorAnswer {
    api: &'static str,
    error: &'static str,
    hint: &'static str,
}

const fn error(status: StatusCode, error: &'static str, hint: &'static str) -> ApiError {
    ApiError { status, error, hint }
}

impl ApiError {
    pub(super) const NOT_FOUND: Self =
        error(StatusCode::NOT_FOUND, "not found", "see /api for all paths");
    pub(super) const NO_PROCESS: Self = error(
        StatusCode::NOT_FOUND,
        "no such process uses the CUDA driver",
        "see /api/v1/processes",
    );
    pub(super) const NO_FILE: Self = error(
        StatusCode::NOT_FOUND,
        "no such file in this incident",
        "see /api/v1/incidents/ID for its files",
    );
    pub(super) const PATHS_HIDDEN: Self = error(
        StatusCode::FORBIDDEN,
        "incident files contain paths of programs",
        "set show_paths in [http], or read them on the host",
    );
    pub(super) const NO_SNAPSHOT: Self =
        error(StatusCode::SERVICE_UNAVAILABLE, "no snapshot available yet", "retry in a second");
    pub(super) const TIMED_OUT: Self = error(
        StatusCode::SERVICE_UNAVAILABLE,
        "the agent has no CPU time for this request",
        "send fewer requests, or raise max_cpu in [trace]",
    );
    pub(super) const TOO_MANY_STREAMS: Self = error(
        StatusCode::SERVICE_UNAVAILABLE,
        "too many live pages are open",
        "close one, or retry later",
    );
    pub(super) const NO_SITE: Self =
        error(StatusCode::NOT_FOUND, "no such site", "see /api/v1/view/sites");
    pub(super) const WRONG_ORIGIN: Self = error(
        StatusCode::FORBIDDEN,
        "request of another web page",
        "open the address of the agent itself",
    );
    pub(super) const INTERNAL: Self =
        error(StatusCode::INTERNAL_SERVER_ERROR, "internal error", "please report this as a bug");
    pub(super) const METHOD: Self = error(
        StatusCode::METHOD_NOT_ALLOWED,
        "method not allowed: the API is read-only",
        "use GET",
    );
    pub(super) const ONE_HOST: Self =
        error(StatusCode::BAD_REQUEST, "an HTTP/1.1 request must have one Host header", "send one");
    pub(super) const BODY: Self =
        error(StatusCode::PAYLOAD_TOO_LARGE, "request body not allowed", "send no body");
    pub(super) const WRONG_HOST: Self = error(
        StatusCode::FORBIDDEN,
        "wrong Host header",
        "use 127.0.0.1 or localhost, or set token_file",
    );
    pub(super) const NO_TOKEN: Self = error(
        StatusCode::UNAUTHORIZED,
        "authentication required",
        "send `Authorization: Bearer TOKEN` with the content of token_file",
    );

    /// A query that the path does not take.
    pub(super) const fn query(reason: &'static str) -> Self {
        error(StatusCode::BAD_REQUEST, reason, "see docs/reference/http-api.md")
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let Self { status, error, hint } = self;
        let answer = ErrorAnswer { api: VERSION, error, hint };
        let mut response = ok(JSON, serde_json::to_vec(&answer).unwrap_or_default());
        *response.status_mut() = status;
        let more = match status {
            StatusCode::UNAUTHORIZED => Some((header::WWW_AUTHENTICATE, "Bearer")),
            StatusCode::METHOD_NOT_ALLOWED => Some((header::ALLOW, "GET, HEAD")),
            _ => None,
        };
        // What follows such a request on the connection may not be a request.
        let closes = matches!(status.as_u16(), 400 | 405 | 413);
        let close = closes.then_some((header::CONNECTION, "close"));
        for (name, value) in more.into_iter().chain(close) {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

/// Returns a response with a body in memory.
pub(super) fn ok(content_type: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::from(body.into()));
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

/// Returns an answer as JSON.
pub(super) fn json(answer: &impl Serialize) -> ApiResult {
    serde_json::to_vec(answer).map(|body| ok(JSON, body)).map_err(|_| ApiError::INTERNAL)
}
