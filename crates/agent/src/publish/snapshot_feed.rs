//! Snapshots published by the engine thread: immutable, read by any worker, always the latest.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use engine::metrics::MetricSet;
use engine::snapshot::Snapshot;
use engine::view::View;
use formats::export::ReportContext;
use formats::report::view::gpu_facts;
use tokio::sync::watch;

use crate::process::budget::AgentUsage;
use crate::process::fault;

/// A snapshot with its metrics. One is published every second, and one at once after an
/// out-of-memory error.
pub(crate) struct PublishedSnapshot {
    /// Counts up from 1.
    pub(crate) sequence: u64,
    /// State of the ledger. Lists of what happened "since the last snapshot" refer to the previous
    /// publication.
    pub(crate) snapshot: Snapshot,
    /// Names of GPUs and functions, and the wall clock.
    pub(crate) context: Arc<ReportContext>,
    /// The same state as metrics.
    pub(crate) metrics: MetricSet,
    /// Usage of the agent itself, and its degradation steps.
    pub(crate) own: AgentUsage,
}

impl PublishedSnapshot {
    /// Calls `show` with what outputs show of the snapshot.
    pub(crate) fn with_view<T>(&self, show: impl FnOnce(&View<'_>) -> T) -> T {
        let facts = gpu_facts(&self.context.gpus);
        show(&View::of(&self.snapshot, &facts))
    }
}

/// The latest snapshot, and a way to wait for the next one.
#[derive(Default)]
pub(crate) struct SnapshotFeed {
    latest: Mutex<LatestSlot>,
    changed: Condvar,
    /// Number of the latest snapshot, for tasks.
    sequence: watch::Sender<u64>,
}

#[derive(Default)]
struct LatestSlot {
    published: Option<Arc<PublishedSnapshot>>,
    /// Time of its publication.
    at: Option<Instant>,
    closed: bool,
}

impl SnapshotFeed {
    /// Publishes a snapshot.
    pub(crate) fn publish(&self, published: PublishedSnapshot) -> Arc<PublishedSnapshot> {
        self.publish_at(published, Instant::now())
    }

    /// Publishes a snapshot with a given publication time.
    pub(crate) fn publish_at(
        &self,
        published: PublishedSnapshot,
        at: Instant,
    ) -> Arc<PublishedSnapshot> {
        let published = Arc::new(published);
        let sequence = published.sequence;
        let mut latest = self.lock();
        (latest.published, latest.at) = (Some(Arc::clone(&published)), Some(at));
        drop(latest);
        self.changed.notify_all();
        self.sequence.send_replace(sequence);
        published
    }

    /// Returns a receiver that is notified of every snapshot, and of the end of the feed.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.sequence.subscribe()
    }

    /// Time since the latest publication, if there was one.
    pub(crate) fn age(&self) -> Option<Duration> {
        Some(self.lock().at?.elapsed())
    }

    /// Ends the feed: waiting readers return.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
        self.sequence.send_modify(|_| ());
    }

    /// The latest snapshot, if there is one.
    pub(crate) fn newest(&self) -> Option<Arc<PublishedSnapshot>> {
        self.lock().published.clone()
    }

    /// Whether no more snapshots follow.
    pub(crate) fn is_closed(&self) -> bool {
        fault::point();
        self.lock().closed
    }

    /// Waits up to `timeout` for a snapshot with a higher number than `seen`. Older ones are
    /// skipped: a slow reader never blocks the engine thread.
    pub(crate) fn newer(&self, seen: u64, timeout: Duration) -> Option<Arc<PublishedSnapshot>> {
        fault::point();
        let end = Instant::now() + timeout;
        let mut latest = self.lock();
        loop {
            let found = latest.published.as_ref().filter(|found| found.sequence > seen);
            if let Some(found) = found {
                return Some(Arc::clone(found));
            }
            let remaining = end.saturating_duration_since(Instant::now());
            if latest.closed || remaining.is_zero() {
                return None;
            }
            let result = self.changed.wait_timeout(latest, remaining);
            latest = result.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until a time, or until the feed is closed.
    pub(crate) fn wait_until(&self, end: Instant) {
        while !self.is_closed() && Instant::now() < end {
            // No snapshot has this number: only the time or the end of the feed ends the wait.
            let _ = self.newer(u64::MAX, end.saturating_duration_since(Instant::now()));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, LatestSlot> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
