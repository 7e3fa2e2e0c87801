//! `/api/v1/stream`: server-sent events with the state of the live page, one per snapshot. A client
//! that reads slowly skips snapshots and gets the whole state afterwards, so none is queued.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::Response;
use axum::http::header::{self, HeaderValue};
use futures_util::stream::unfold;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::StreamSlot;
use crate::api::Api;
use crate::api::query::NoQuery;
use crate::api::response::{ApiError, ApiResult};

/// Age at which a stream ends. Clients connect again, with their token.
const MAX_STREAM_AGE: Duration = Duration::from_mins(10);

/// Time without a snapshot after which a comment is sent, so that an ended client is noticed.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// A client.
struct Client {
    api: Arc<Api>,
    snapshots: watch::Receiver<u64>,
    /// Last snapshot that was sent; 0 for none.
    seen: u64,
    end: Instant,
    /// Frees the place of the stream when the client is gone.
    _slot: StreamSlot,
}

/// Returns the stream.
pub(in crate::api) async fn stream(State(api): State<Arc<Api>>, _: NoQuery) -> ApiResult {
    let slot = api.live.open().ok_or(ApiError::TOO_MANY_STREAMS)?;
    let snapshots = api.shared.feed.subscribe();
    let end = Instant::now() + MAX_STREAM_AGE;
    let client = Client { api, snapshots, seen: 0, end, _slot: slot };
    let events = unfold(client, |mut client| async {
        let event = client.next().await?;
        Some((Ok::<Bytes, Infallible>(event), client))
    });
    let mut response = Response::new(Body::from_stream(events));
    let content_type = HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    Ok(response)
}

impl Client {
    /// Waits for a newer snapshot and for CPU time. Returns its event, or `None` at the end of the
    /// stream.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if Instant::now() >= self.end {
                return None;
            }
            self.api.wait_for_cpu().await;
            self.snapshots.mark_unchanged();
            // Events contain no paths.
            if let Ok(published) = self.api.newest()
                && let Some((sequence, event)) =
                    self.api.live.event(&self.api, &published, self.seen)
            {
                self.seen = sequence;
                return Some(event);
            }
            if self.api.shared.feed.is_closed() {
                return None;
            }
            match timeout(HEARTBEAT, self.snapshots.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return None,
                Err(_) => return Some(Bytes::from_static(b": no snapshot\n\n")),
            }
        }
    }
}
