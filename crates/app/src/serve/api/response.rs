//! An HTTP response: status, headers and body.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use super::files::FileBody;
use super::limits::connections::InFlightRequest;

/// Headers of every response: no content sniffing, no caching, no scripts.
const SECURITY_HEADERS: [(HeaderName, &str); 4] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    (header::REFERRER_POLICY, "no-referrer"),
];

pub(super) const CONTENT_TYPE_JSON: &str = "application/json";
pub(super) const CONTENT_TYPE_TEXT: &str = "text/plain; charset=utf-8";

/// A response under construction.
pub(super) struct ApiResponse {
    response: Response<ResponseBody>,
}

/// Body: in memory, or a file read in chunks.
pub(super) enum ResponseBody {
    Full(Option<Bytes>),
    File(FileBody),
}

impl ApiResponse {
    pub(super) fn new(status: StatusCode, kind: &'static str, body: ResponseBody) -> Self {
        let mut response = Response::new(body);
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        for (name, value) in SECURITY_HEADERS {
            headers.insert(name, HeaderValue::from_static(value));
        }
        Self { response }
    }

    pub(super) fn ok(kind: &'static str, bytes: impl Into<Bytes>) -> Self {
        Self::new(StatusCode::OK, kind, ResponseBody::Full(Some(bytes.into())))
    }

    pub(super) fn text(status: StatusCode, text: &'static str) -> Self {
        Self::new(
            status,
            CONTENT_TYPE_TEXT,
            ResponseBody::Full(Some(Bytes::from_static(text.as_bytes()))),
        )
    }

    pub(super) fn json(value: &Value) -> Self {
        Self::ok(CONTENT_TYPE_JSON, value.to_string())
    }

    /// An error, with advice.
    pub(super) fn error(status: StatusCode, error: &str, hint: &str) -> Self {
        let value = json!({ "api": super::endpoints::VERSION, "error": error, "hint": hint });
        Self::new(status, CONTENT_TYPE_JSON, ResponseBody::Full(Some(value.to_string().into())))
    }

    pub(super) fn with(mut self, name: HeaderName, value: &'static str) -> Self {
        self.response.headers_mut().insert(name, HeaderValue::from_static(value));
        self
    }

    /// Closes the connection after this response.
    pub(super) fn close(&mut self) {
        let close = HeaderValue::from_static("close");
        self.response.headers_mut().insert(header::CONNECTION, close);
    }

    pub(super) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    pub(super) fn finish(self) -> Response<ResponseBody> {
        self.response
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let chunk = match &mut *self {
            Self::Full(bytes) => bytes.take().map(Ok),
            Self::File(file) => file.next(),
        };
        Poll::Ready(chunk.map(|chunk| chunk.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Self::File(file) => file.remaining() == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(match self {
            Self::Full(bytes) => bytes.as_ref().map_or(0, Bytes::len) as u64,
            Self::File(file) => file.remaining(),
        })
    }
}

/// A body with its in-flight request, which ends when the body is sent.
pub(super) struct TrackedBody {
    body: ResponseBody,
    _busy: InFlightRequest,
}

impl TrackedBody {
    pub(super) const fn new(body: ResponseBody, busy: InFlightRequest) -> Self {
        Self { body, _busy: busy }
    }
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
