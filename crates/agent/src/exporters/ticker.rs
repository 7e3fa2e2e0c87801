//! The latest snapshot once per interval.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{PublishedSnapshot, SnapshotFeed};

/// Maximum wait at a time.
const MAX_WAIT: Duration = Duration::from_hours(1);

/// Yields the latest snapshot once per interval.
pub(super) struct Ticker {
    interval: Duration,
    /// Whether snapshots between two exports are returned, too.
    each: bool,
    due: Instant,
    seen: u64,
    /// Time of the last tick.
    last: Option<Instant>,
    is_closed: bool,
}

/// One export.
pub(super) struct Tick {
    /// The snapshot to export.
    pub(super) published: Arc<PublishedSnapshot>,
    /// Whether an export is due.
    pub(super) is_due: bool,
    /// Intervals without an export since the last one.
    pub(super) missed: u64,
    /// The agent is shutting down: nothing follows, and waits must be short.
    pub(super) is_last: bool,
}

impl Ticker {
    /// The first tick comes with the first snapshot.
    pub(super) fn new(interval: Duration) -> Self {
        Self { interval, each: false, due: Instant::now(), seen: 0, last: None, is_closed: false }
    }

    /// Also returns the snapshots between two exports.
    pub(super) fn each_snapshot(self) -> Self {
        Self { each: true, ..self }
    }

    /// Waits for the next tick. After the feed is closed, the latest snapshot is returned at once
    /// if it was not yet; then none.
    pub(super) fn next(&mut self, feed: &SnapshotFeed) -> Option<Tick> {
        let published = loop {
            if self.is_closed {
                return None;
            }
            if !self.each {
                feed.wait_until(self.due);
            }
            let newer = feed.newer(self.seen, MAX_WAIT);
            self.is_closed = feed.is_closed();
            // A snapshot may have been published just before the feed was closed.
            let newest = || feed.newest().filter(|newest| newest.sequence > self.seen);
            if let Some(published) = newer.or_else(newest) {
                break published;
            }
        };
        self.seen = published.sequence;
        let now = Instant::now();
        if now < self.due && !self.is_closed {
            return Some(Tick { published, is_due: false, missed: 0, is_last: false });
        }
        let since = self.last.replace(now).map_or(Duration::ZERO, |last| now.duration_since(last));
        let passed = since.as_nanos() / self.interval.as_nanos().max(1);
        let missed = u64::try_from(passed).unwrap_or(u64::MAX).saturating_sub(1);
        self.due = now + self.interval;
        Some(Tick { published, is_due: true, missed, is_last: self.is_closed })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use engine::metrics::MetricSet;
    use engine::model::Timestamp;
    use engine::snapshot::Snapshot;
    use formats::WallClock;
    use formats::export::ReportContext;

    use super::*;
    use crate::process::budget::AgentUsage;

    /// Returns a synthetic snapshot.
    pub(crate) fn published(
        sequence: u64,
        snapshot: Snapshot,
        metrics: MetricSet,
    ) -> PublishedSnapshot {
        let clock = WallClock::fixed(Timestamp(0), 1_700_000_000);
        let (context, own) = (Arc::new(ReportContext::new(clock)), AgentUsage::default());
        PublishedSnapshot { sequence, snapshot, context, metrics, own }
    }

    fn publish(feed: &SnapshotFeed, sequence: u64) {
        feed.publish(published(sequence, Snapshot::default(), MetricSet::default()));
    }

    #[test]
    fn ticks_return_the_latest_and_the_last_at_once() {
        let feed = SnapshotFeed::default();
        let mut ticker = Ticker::new(Duration::from_millis(20));
        publish(&feed, 1);
        publish(&feed, 2);
        let first = ticker.next(&feed).unwrap();
        assert_eq!((first.published.sequence, first.missed, first.is_last), (2, 0, false));
        publish(&feed, 3);
        let due = ticker.due;
        assert_eq!(due, ticker.last.unwrap() + ticker.interval);
        assert_eq!(ticker.next(&feed).unwrap().published.sequence, 3);
        assert!(Instant::now() >= due, "a tick came too early");
        ticker.due += Duration::from_mins(10);
        publish(&feed, 4);
        feed.close();
        let last = ticker.next(&feed).unwrap();
        assert_eq!((last.published.sequence, last.is_last), (4, true));
        assert!(ticker.next(&feed).is_none());
    }

    #[test]
    fn missed_intervals_are_counted() {
        let feed = SnapshotFeed::default();
        let minute = Duration::from_mins(1);
        let mut ticker = Ticker::new(minute);
        ticker.due -= minute * 4;
        publish(&feed, 1);
        assert_eq!(ticker.next(&feed).unwrap().missed, 0, "there was nothing to send");
        // As if the last tick was four and a half minutes ago: one is due, and three were missed.
        let ago = minute * 9 / 2;
        ticker.due -= ago;
        ticker.last = ticker.last.map(|last| last.checked_sub(ago).unwrap());
        publish(&feed, 2);
        assert_eq!(ticker.next(&feed).unwrap().missed, 3);
        feed.close();
        assert!(ticker.next(&feed).is_none(), "nothing new");
    }
}
