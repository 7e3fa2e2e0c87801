//! The highest levels of the past, for calls that last longer than the recent points reach back.

use std::collections::VecDeque;

use crate::model::Timestamp;

/// Maximum number of levels; the oldest are merged.
const MAX_LEVELS: usize = 64;

/// A level that no later one has reached.
#[derive(Clone, Copy, Debug)]
struct OldLevel {
    at: Timestamp,
    /// When the level changed.
    until: Timestamp,
    high: i128,
}

/// Upper bounds of past levels, in the order of time, so each is higher than all after it.
#[derive(Clone, Debug, Default)]
pub(super) struct OldLevels(VecDeque<OldLevel>);

impl OldLevels {
    /// Adds a level that lasted from `at` to `until`, after all others.
    pub(super) fn push(&mut self, at: Timestamp, until: Timestamp, high: i128) {
        while self.0.back().is_some_and(|older| older.high <= high) {
            self.0.pop_back();
        }
        self.0.push_back(OldLevel { at, until, high });
        if self.0.len() > MAX_LEVELS
            && let Some(oldest) = self.0.pop_front()
            && let Some(next) = self.0.front_mut()
        {
            // For calls entered between the two, this is more than the level was.
            next.high = oldest.high;
        }
    }

    /// Highest level.
    pub(super) fn max(&self) -> i128 {
        self.0.front().map_or(0, |level| level.high)
    }

    /// Time and height of the last level.
    pub(super) fn last(&self) -> Option<(Timestamp, i128)> {
        self.0.back().map(|level| (level.at, level.high))
    }

    /// Raises the levels from a time on: memory may have been allocated since then.
    pub(super) fn raise(&mut self, entered: Timestamp, bytes: i128) {
        let first = self.0.partition_point(|level| level.at < entered);
        for level in self.0.range_mut(first..) {
            level.high += bytes;
        }
        // The level at that time itself. If it is not listed, a later one is at least as high.
        let current = first.checked_sub(1).and_then(|index| self.0.get_mut(index));
        if let Some(current) = current.filter(|level| entered <= level.until) {
            let raised = OldLevel { at: entered, high: current.high + bytes, ..*current };
            current.until = entered;
            self.0.insert(first, raised);
        }
        let mut highest = i128::MIN;
        let mut kept: VecDeque<OldLevel> = VecDeque::new();
        for level in self.0.drain(..).rev() {
            if level.high > highest {
                highest = level.high;
                kept.push_front(level);
            }
        }
        self.0 = kept;
    }
}
