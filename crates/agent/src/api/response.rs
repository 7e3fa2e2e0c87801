//! Responses: content types, and errors with advice.

use axum::body::{Body, Bytes};
use axum::http::header::{self, HeaderValue};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use serde::Serialize;
use serde_json::json;

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

/// Declares errors: name, status, what is wrong, and what to do.
macro_rules! errors {
    ($($name:ident: $status:ident, $error:literal, $hint:literal;)*) => {
        impl ApiError {
            $(pub(super) const $name: Self =
                Self { status: StatusCode::$status, error: $error, hint: $hint };)*
        }
    };
}

errors! {
    ONE_HOST: BAD_REQUEST, "an HTTP/1.1 request must have one Host header", "send one";
    NO_TOKEN: UNAUTHORIZED, "authentication required",
        "send `Authorization: Bearer TOKEN` with the content of token_file";
    PATHS_HIDDEN: FORBIDDEN, "incident files contain paths of programs",
        "set show_paths in [http], or read them on the host";
    WRONG_HOST: FORBIDDEN, "wrong Host header", "use 127.0.0.1 or localhost, or set token_file";
    WRONG_ORIGIN: FORBIDDEN, "request of another web page", "open the address of the agent itself";
    NOT_FOUND: NOT_FOUND, "not found", "see /api for all paths";
    NO_PROCESS: NOT_FOUND, "no such process uses the CUDA driver", "see /api/v1/processes";
    NO_SITE: NOT_FOUND, "no such site", "see /api/v1/view/sites";
    NO_FILE: NOT_FOUND, "no such file in this incident", "see /api/v1/incidents/ID for its files";
    METHOD: METHOD_NOT_ALLOWED, "method not allowed: the API is read-only", "use GET";
    BODY: PAYLOAD_TOO_LARGE, "request body not allowed", "send no body";
    INTERNAL: INTERNAL_SERVER_ERROR, "internal error", "please report this as a bug";
    NO_SNAPSHOT: SERVICE_UNAVAILABLE, "no snapshot available yet", "retry in a second";
    TIMED_OUT: SERVICE_UNAVAILABLE, "the agent has no CPU time for this request",
        "send fewer requests, or raise max_cpu in [trace]";
    TOO_MANY_STREAMS: SERVICE_UNAVAILABLE, "too many live pages are open",
        "close one, or retry later";
}

impl ApiError {
    /// A query that the path does not take.
    pub(super) const fn query(reason: &'static str) -> Self {
        let (status, hint) = (StatusCode::BAD_REQUEST, "see docs/reference/http-api.md");
        Self { status, error: reason, hint }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let Self { status, error, hint } = self;
        let answer = json!({ "api": VERSION, "error": error, "hint": hint });
        let mut response = ok(JSON, answer.to_string());
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
