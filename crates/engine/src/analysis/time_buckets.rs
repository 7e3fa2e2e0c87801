//! A level over time in a limited number of time buckets. The length of a file is not known in
//! advance: when the limit is reached, neighboring buckets are merged.

use super::RunningSum;
use crate::model::{Nanos, Timestamp};

/// A level from a given time on, with the number of the change, which orders levels of the same
/// time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    pub(super) number: u64,
    pub(super) at: Timestamp,
    pub(super) sum: RunningSum,
}

/// First, lowest, highest and last level of a bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeBucket {
    number: u64,
    pub(super) first: Mark,
    pub(super) low: Mark,
    pub(super) high: Mark,
    pub(super) last: Mark,
}

impl TimeBucket {
    /// Merges a later bucket into this one.
    fn merge(&mut self, later: &Self) {
        if later.low.sum < self.low.sum {
            self.low = later.low;
        }
        if later.high.sum > self.high.sum {
            self.high = later.high;
        }
        self.last = later.last;
    }
}

/// Buckets with changes, in order. Each is 2^`shift` ns long.
#[derive(Clone, Debug)]
pub(super) struct TimeBuckets {
    max: u64,
    shift: u32,
    list: Vec<TimeBucket>,
}

impl TimeBuckets {
    /// Creates at most `max` buckets.
    pub(super) const fn new(max: u64) -> Self {
        Self { max, shift: 0, list: Vec::new() }
    }

    /// Adds a level; `since` is the time since the first one of the file.
    pub(super) fn push(&mut self, since: Nanos, mark: Mark) {
        let mut number = since.0.checked_shr(self.shift).unwrap_or(0);
        while number >= self.max {
            self.shift += 1;
            number >>= 1;
            join(&mut self.list, |number| number >> 1);
        }
        let bucket = TimeBucket { number, first: mark, low: mark, high: mark, last: mark };
        match self.list.last_mut() {
            Some(last) if last.number >= number => last.merge(&bucket),
            _ => self.list.push(bucket),
        }
    }

    /// All buckets.
    pub(super) fn list(&self) -> &[TimeBucket] {
        &self.list
    }

    /// At most `columns` buckets of the same time.
    pub(super) fn columns(&self, columns: u64) -> Vec<TimeBucket> {
        let all = self.list.last().map_or(1, |bucket| bucket.number.saturating_add(1));
        let mut list = self.list.clone();
        join(&mut list, |number| number.saturating_mul(columns.min(all)) / all);
        list
    }
}

/// Assigns other numbers to buckets, and merges neighbors with the same number.
fn join(list: &mut Vec<TimeBucket>, renumber: impl Fn(u64) -> u64) {
    for bucket in list.iter_mut() {
        bucket.number = renumber(bucket.number);
    }
    list.dedup_by(|later, earlier| {
        let same = later.number == earlier.number;
        if same {
            earlier.merge(later);
        }
        same
    });
}
