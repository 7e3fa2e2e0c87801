//! The newest that is published, once in an interval.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::serve::{Feed, Published};

/// The longest time that is waited at once.
const LONGEST: Duration = Duration::from_secs(3600);

/// See the module.
pub(super) struct Beat {
    every: Duration,
    due: Instant,
    seen: u64,
    /// When the last turn was.
    last: Option<Instant>,
    is_over: bool,
}

/// Something to send.
pub(super) struct Turn {
    /// What.
    pub(super) published: Arc<Published>,
    /// Intervals that passed without a turn since the last one.
    pub(super) missed: u64,
    /// The agent ends: nothing follows, and nobody should wait long.
    pub(super) is_last: bool,
}

impl Beat {
    /// The first turn comes with the first that is published.
    pub(super) fn new(every: Duration) -> Self {
        Self { every, due: Instant::now(), seen: 0, last: None, is_over: false }
    }

    /// No turn before that much time has passed.
    pub(super) fn rest(&mut self, time: Duration) {
        self.due = self.due.max(Instant::now() + time.min(LONGEST));
    }

    /// Waits for the next one. When the feed is closed, what is newest comes at once, if it did not
    /// come yet; then nothing does.
    pub(super) fn next(&mut self, feed: &Feed) -> Option<Turn> {
        let published = loop {
            if self.is_over {
                return None;
            }
            wait(feed, self.due);
            let newer = feed.newer(self.seen, LONGEST);
            self.is_over = feed.is_closed();
            // Something may have been published just before the end.
            let newest = || feed.newest().filter(|newest| newest.sequence > self.seen);
            if let Some(published) = newer.or_else(newest) {
                break published;
            }
        };
        self.seen = published.sequence;
        let now = Instant::now();
        let since = self.last.replace(now).map_or(Duration::ZERO, |last| now.duration_since(last));
        let passed = since.as_nanos() / self.every.as_nanos().max(1);
        let missed = u64::try_from(passed).unwrap_or(u64::MAX).saturating_sub(1);
        self.due = now + self.every;
        Some(Turn { published, missed, is_last: self.is_over })
    }
}

/// Waits until a moment, or until the feed is closed.
pub(super) fn wait(feed: &Feed, until: Instant) {
    while !feed.is_closed() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        // Nothing has so high a number: only time and the end are waited for.
        let _ = feed.newer(u64::MAX, left.min(LONGEST));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use engine::metrics::Figures;
    use engine::snapshot::Snapshot;
    use engine::units::Moment;
    use formats::WallClock;
    use formats::export::Names;
    use formats::recording::Functions;

    use super::*;
    use crate::serve::budget::Standing;

    /// Something to publish.
    pub(crate) fn published(sequence: u64, snapshot: Snapshot, figures: Figures) -> Published {
        let clock = WallClock::fixed(Moment(0), 1_700_000_000);
        let recorded = Functions::default();
        let names = Names { clock, function: |_| "", recorded, gpus: Vec::new() };
        let (names, own) = (Arc::new(names), Standing::default());
        Published { sequence, snapshot, names, figures, own }
    }

    fn publish(feed: &Feed, sequence: u64) {
        feed.publish(published(sequence, Snapshot::default(), Figures::default()));
    }

    #[test]
    fn each_turn_is_the_newest_and_the_last_one_comes_at_once() {
        let feed = Feed::default();
        let mut beat = Beat::new(Duration::from_millis(20));
        publish(&feed, 1);
        publish(&feed, 2);
        let first = beat.next(&feed).unwrap();
        assert_eq!((first.published.sequence, first.missed, first.is_last), (2, 0, false));
        publish(&feed, 3);
        let due = beat.due;
        assert_eq!(due, beat.last.unwrap() + beat.every);
        assert_eq!(beat.next(&feed).unwrap().published.sequence, 3);
        assert!(Instant::now() >= due, "a turn came before its time");
        beat.rest(Duration::from_secs(600));
        publish(&feed, 4);
        feed.close();
        let last = beat.next(&feed).unwrap();
        assert_eq!((last.published.sequence, last.is_last), (4, true));
        assert!(beat.next(&feed).is_none());
    }

    #[test]
    fn intervals_that_passed_are_counted() {
        let feed = Feed::default();
        let minute = Duration::from_secs(60);
        let mut beat = Beat::new(minute);
        beat.due -= minute * 4;
        publish(&feed, 1);
        assert_eq!(beat.next(&feed).unwrap().missed, 0, "nothing was there to be sent");
        // As if the turn had been four and a half minutes ago: one is due, and three were missed.
        let ago = minute * 9 / 2;
        beat.due -= ago;
        beat.last = beat.last.map(|last| last - ago);
        publish(&feed, 2);
        assert_eq!(beat.next(&feed).unwrap().missed, 3);
        feed.close();
        assert!(beat.next(&feed).is_none(), "nothing new");
    }
}
