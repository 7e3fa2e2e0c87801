//! What the engine thread knows, handed to whoever reads it: immutable, the newest at any time.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use engine::metrics::Figures;
use engine::snapshot::Snapshot;
use formats::export::Names;

use super::budget::Standing;
use crate::fault;

/// Everything at one moment. One a second, and one at once when something ran out of memory.
pub(crate) struct Published {
    /// Counts up from 1.
    pub(crate) sequence: u64,
    /// Who holds what. Lists of what happened "since the last snapshot" are since the last of these.
    pub(crate) snapshot: Snapshot,
    /// Names of GPUs and functions, times of day.
    pub(crate) names: Arc<Names>,
    /// The same as metrics.
    pub(crate) figures: Figures,
    /// What the agent itself takes, and what it gave up for that.
    pub(crate) own: Standing,
}

/// The newest of them, and a way to wait for a newer one.
#[derive(Default)]
pub(crate) struct Feed {
    newest: Mutex<Newest>,
    news: Condvar,
}

#[derive(Default)]
struct Newest {
    published: Option<Arc<Published>>,
    /// When that was published.
    at: Option<Instant>,
    closed: bool,
}

impl Feed {
    /// Makes it the newest.
    pub(crate) fn publish(&self, published: Published) -> Arc<Published> {
        self.publish_at(published, Instant::now())
    }

    /// The same, at a given time.
    pub(crate) fn publish_at(&self, published: Published, at: Instant) -> Arc<Published> {
        let published = Arc::new(published);
        let mut newest = self.lock();
        (newest.published, newest.at) = (Some(Arc::clone(&published)), Some(at));
        drop(newest);
        self.news.notify_all();
        published
    }

    /// How long ago the newest was published, once there is one.
    pub(crate) fn age(&self) -> Option<Duration> {
        Some(self.lock().at?.elapsed())
    }

    /// Nothing follows: whoever waits stops waiting.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.news.notify_all();
    }

    /// The newest, once there is one.
    pub(crate) fn newest(&self) -> Option<Arc<Published>> {
        self.lock().published.clone()
    }

    /// Whether nothing follows.
    pub(crate) fn is_closed(&self) -> bool {
        fault::point();
        self.lock().closed
    }

    /// One with a higher number than `seen`, when there is one within `timeout`. Those in between are
    /// passed over: a slow reader never holds up the engine thread.
    pub(crate) fn newer(&self, seen: u64, timeout: Duration) -> Option<Arc<Published>> {
        fault::point();
        let end = Instant::now() + timeout;
        let mut newest = self.lock();
        loop {
            let found = newest.published.as_ref().filter(|found| found.sequence > seen);
            if let Some(found) = found {
                return Some(Arc::clone(found));
            }
            let left = end.saturating_duration_since(Instant::now());
            if newest.closed || left.is_zero() {
                return None;
            }
            let woken = self.news.wait_timeout(newest, left);
            newest = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Newest> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
