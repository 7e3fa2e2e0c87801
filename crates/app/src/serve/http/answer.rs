//! An answer: its status, its headers, its body.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use super::files::FileBody;
use super::places::Busy;

/// What every answer says to browsers: do not guess, do not keep, do not run anything.
const HEADERS: [(HeaderName, &str); 4] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    (header::REFERRER_POLICY, "no-referrer"),
];

pub(super) const JSON: &str = "application/json";
pub(super) const TEXT: &str = "text/plain; charset=utf-8";

/// An answer in the making.
pub(super) struct Answer {
    response: Response<Content>,
}

/// What is answered: at once, or a file piece by piece.
pub(super) enum Content {
    Whole(Option<Bytes>),
    File(FileBody),
}

impl Answer {
    pub(super) fn new(status: StatusCode, kind: &'static str, content: Content) -> Self {
        let mut response = Response::new(content);
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        for (name, value) in HEADERS {
            headers.insert(name, HeaderValue::from_static(value));
        }
        Self { response }
    }

    pub(super) fn whole(kind: &'static str, bytes: impl Into<Bytes>) -> Self {
        Self::new(StatusCode::OK, kind, Content::Whole(Some(bytes.into())))
    }

    pub(super) fn text(status: StatusCode, text: &'static str) -> Self {
        Self::new(status, TEXT, Content::Whole(Some(Bytes::from_static(text.as_bytes()))))
    }

    pub(super) fn json(value: &Value) -> Self {
        Self::whole(JSON, value.to_string())
    }

    /// What went wrong, and what to do.
    pub(super) fn error(status: StatusCode, error: &str, hint: &str) -> Self {
        let value = json!({ "api": super::api::VERSION, "error": error, "hint": hint });
        Self::new(status, JSON, Content::Whole(Some(value.to_string().into())))
    }

    pub(super) fn with(mut self, name: HeaderName, value: &'static str) -> Self {
        self.response.headers_mut().insert(name, HeaderValue::from_static(value));
        self
    }

    /// The connection ends with this answer.
    pub(super) fn close(&mut self) {
        let close = HeaderValue::from_static("close");
        self.response.headers_mut().insert(header::CONNECTION, close);
    }

    pub(super) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    pub(super) fn finish(self) -> Response<Content> {
        self.response
    }
}

impl Body for Content {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let piece = match &mut *self {
            Self::Whole(bytes) => bytes.take().map(Ok),
            Self::File(file) => file.next(),
        };
        Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Self::File(file) => file.left() == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(match self {
            Self::Whole(bytes) => bytes.as_ref().map_or(0, Bytes::len) as u64,
            Self::File(file) => file.left(),
        })
    }
}

/// What is answered, with the request that it is for: that is over when all is handed over.
pub(super) struct Told {
    content: Content,
    _busy: Busy,
}

impl Told {
    pub(super) const fn new(content: Content, busy: Busy) -> Self {
        Self { content, _busy: busy }
    }
}

impl Body for Told {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Pin::new(&mut self.content).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.content.size_hint()
    }
}
