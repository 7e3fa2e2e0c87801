//! The live page at `/`, and the stream of events that feeds it.

mod history;
mod page_state;
mod stream;
#[cfg(test)]
mod tests;

pub(super) use stream::stream;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use engine::model::Mark;
use engine::view::View;
use serde_json::{Value, json};

use super::Api;
use crate::PublishedSnapshot;
use history::History;
use page_state::PageState;

/// Maximum number of concurrent streams.
pub(super) const MAX_STREAMS: usize = 16;

/// Memory of the last hour, and the events for clients.
pub(crate) struct LivePage {
    events: Mutex<Events>,
    streams: Arc<AtomicUsize>,
}

/// The history, and the events of the latest snapshot; each event is built once for all clients.
struct Events {
    /// Last recorded snapshot.
    recorded: u64,
    history: History,
    state: Option<PageState>,
    /// Snapshot before the latest one, and the event that leads from it to the latest one.
    change: Option<(u64, Bytes)>,
    /// The latest state as a whole.
    whole: Option<Bytes>,
}

/// An open stream. Its end makes room for another one.
struct StreamSlot(Arc<AtomicUsize>);

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LivePage {
    /// Maximum memory of the history, in bytes.
    pub(crate) const HISTORY_BYTES: usize = History::MAX_BYTES;

    pub(crate) fn new() -> Self {
        let events =
            Events { recorded: 0, history: History::new(), state: None, change: None, whole: None };
        Self { events: Mutex::new(events), streams: Arc::default() }
    }

    /// Number of open streams.
    pub(crate) fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// Opens a stream, if there is room for one.
    fn open(&self) -> Option<StreamSlot> {
        let add = |open: usize| (open < MAX_STREAMS).then_some(open + 1);
        let added = self.streams.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        added.ok().map(|_| StreamSlot(Arc::clone(&self.streams)))
    }

    /// Adds a snapshot to the history.
    pub(super) fn record(&self, published: &PublishedSnapshot) {
        published.with_view(|view| self.lock().record(published, view));
    }

    /// Returns the marks of the last hour.
    pub(super) fn marks(&self, published: &PublishedSnapshot) -> Vec<Mark> {
        self.record(published);
        self.lock().history.marks.iter().cloned().collect()
    }

    /// Returns the event for a client that has seen the snapshot `seen`, and the snapshot that it
    /// leads to: the change since the snapshot before, or the whole state.
    fn event(&self, api: &Api, published: &PublishedSnapshot, seen: u64) -> Option<(u64, Bytes)> {
        let mut events = self.lock();
        if events.state.as_ref().is_none_or(|state| state.sequence < published.sequence) {
            events.update(api, published)?;
        }
        let sequence = events.state.as_ref()?.sequence;
        match &events.change {
            _ if seen == sequence => None,
            Some((from, event)) if *from == seen => Some((sequence, event.clone())),
            _ => Some((sequence, events.whole(api, published)?)),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Events {
    fn record(&mut self, published: &PublishedSnapshot, view: &View<'_>) {
        if published.sequence > self.recorded {
            self.recorded = published.sequence;
            self.history.record(published.sequence, view, &published.snapshot);
        }
    }

    /// Builds the state of a new snapshot, and the change to it.
    fn update(&mut self, api: &Api, published: &PublishedSnapshot) -> Option<()> {
        let state = published.with_view(|view| {
            self.record(published, view);
            PageState::new(published, view, api.shared.incidents.list(), &self.history)
        })?;
        self.change = self.state.take().map(|old| {
            (old.sequence, sse("change", state.sequence, &state.since(&old, &self.history)))
        });
        (self.state, self.whole) = (Some(state), None);
        Some(())
    }

    fn whole(&mut self, api: &Api, published: &PublishedSnapshot) -> Option<Bytes> {
        if self.whole.is_none() {
            let state = self.state.as_ref()?;
            let whole = state.whole(&self.history, published, facts(api));
            self.whole = Some(sse("whole", state.sequence, &whole));
        }
        self.whole.clone()
    }
}

/// Returns what does not change while the agent runs.
fn facts(api: &Api) -> Value {
    json!({
        "host": formats::sanitize::sanitize(&formats::hostname::name()),
        "version": env!("CARGO_PKG_VERSION"),
        // Incident files contain paths.
        "incident_files": api.shared.config.http.show_paths,
    })
}

/// Returns a server-sent event. JSON has no line breaks.
fn sse(name: &str, sequence: u64, data: &Value) -> Bytes {
    format!("event: {name}\nid: {sequence}\ndata: {data}\n\n").into()
}
