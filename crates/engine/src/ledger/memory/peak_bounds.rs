//! Bounds of the peak. The driver does its work at some time between entry and return of a call,
//! which is not visible from outside. If calls of several threads overlap, their order is unknown,
//! and so is the amount of memory that was live at the same time.
//!
//! Two extreme schedules bound the true peak. In the *high* one, memory is allocated when its call
//! is entered and freed when the free returns; in the *low* one, it is allocated at return and
//! freed at the free's entry. Without overlapping calls both are equal, and the peak is exact.

use std::collections::VecDeque;

use crate::model::units::{Bytes, Timestamp};

/// Number of recent points that overlapping calls can still correct. A call that outlasts more
/// points than this corrects only the peak itself.
const MAX_CORRECTABLE_POINTS: usize = 64;

/// Levels from a given time on.
#[derive(Clone, Copy, Debug)]
struct LevelPoint {
    at: Timestamp,
    low: i128,
    high: i128,
}

/// Highest level, and when it was reached.
#[derive(Clone, Copy, Debug, Default)]
struct LevelPeak {
    level: i128,
    at: Timestamp,
}

impl LevelPeak {
    fn raise(&mut self, level: i128, at: Timestamp) {
        if level > self.level {
            *self = Self { level, at };
        }
    }
}

/// Bounds of a peak.
#[derive(Clone, Debug, Default)]
pub(in crate::ledger) struct PeakBounds {
    recent: VecDeque<LevelPoint>,
    /// Peaks of the points that are no longer recent.
    low: LevelPeak,
    high: LevelPeak,
    level: i128,
}

impl PeakBounds {
    /// Adds memory allocated by a call that lasted from `entered` to `at`.
    pub(in crate::ledger) fn add(&mut self, (entered, at): (Timestamp, Timestamp), bytes: u64) {
        let bytes = i128::from(bytes);
        self.level += bytes;
        let before = self.before(entered);
        if before == 0 && self.recent.len() == MAX_CORRECTABLE_POINTS && entered <= self.high.at {
            self.high.level += bytes;
        }
        if before < self.recent.len() {
            let level = before.checked_sub(1).map_or(0, |i| self.recent[i].high);
            for point in self.recent.range_mut(before..) {
                point.high += bytes;
            }
            // The level at the entry itself: the level before, plus this allocation.
            let low = before.checked_sub(1).map_or(0, |i| self.recent[i].low);
            self.recent.insert(before, LevelPoint { at: entered, low, high: level + bytes });
        }
        self.push(at);
    }

    /// Subtracts memory freed by a call that lasted from `entered` to `at`.
    pub(in crate::ledger) fn subtract(
        &mut self,
        (entered, at): (Timestamp, Timestamp),
        bytes: u64,
    ) {
        let bytes = i128::from(bytes);
        self.level -= bytes;
        let before = self.before(entered);
        if before == 0 && self.recent.len() == MAX_CORRECTABLE_POINTS && entered <= self.low.at {
            self.low.level -= bytes;
        }
        for point in self.recent.range_mut(before..) {
            point.low -= bytes;
        }
        self.push(at);
    }

    /// Corrects a free: memory that seemed to be freed by a call entered at `until` was freed by
    /// one entered at `from`.
    pub(in crate::ledger) fn correct_end(&mut self, from: Timestamp, until: Timestamp, bytes: u64) {
        let bytes = i128::from(bytes);
        if from <= self.low.at && self.low.at < until {
            self.low.level -= bytes;
        }
        for point in self.recent.iter_mut().filter(|point| (from..until).contains(&point.at)) {
            point.low -= bytes;
        }
    }

    /// Lower and upper bound of the peak, if they differ.
    pub(in crate::ledger) fn bounds(&self) -> Option<(Bytes, Bytes)> {
        let (low, high) = self.range();
        (low < high).then_some((low, high))
    }

    fn range(&self) -> (Bytes, Bytes) {
        let clamp = |level: i128| Bytes(u64::try_from(level.max(0)).unwrap_or(u64::MAX));
        let low = self.recent.iter().map(|point| point.low).fold(self.low.level, i128::max);
        let high = self.recent.iter().map(|point| point.high).fold(self.high.level, i128::max);
        (clamp(low), clamp(high))
    }

    /// Number of recent points before a given time.
    fn before(&self, entered: Timestamp) -> usize {
        // Usually all of them, because calls rarely overlap.
        match self.recent.back() {
            Some(last) if last.at >= entered => {
                self.recent.partition_point(|point| point.at < entered)
            }
            _ => self.recent.len(),
        }
    }

    fn push(&mut self, at: Timestamp) {
        let at = self.recent.back().map_or(at, |last| last.at.max(at));
        self.recent.push_back(LevelPoint { at, low: self.level, high: self.level });
        while self.recent.len() > MAX_CORRECTABLE_POINTS {
            if let Some(LevelPoint { at, low, high }) = self.recent.pop_front() {
                self.low.raise(low, at);
                self.high.raise(high, at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(time: u64) -> Timestamp {
        Timestamp(time)
    }

    #[test]
    fn calls_one_after_the_other_give_an_exact_peak() {
        let mut peak = PeakBounds::default();
        let mut expected = (0_u64, 0_u64);
        for i in 0..1000 {
            peak.add((at(4 * i), at(4 * i + 1)), i + 1);
            expected.0 += i + 1;
            expected.1 = expected.1.max(expected.0);
            if i % 3 == 0 {
                peak.subtract((at(4 * i + 2), at(4 * i + 3)), i + 1);
                expected.0 -= i + 1;
            }
        }
        assert_eq!(peak.range(), (Bytes(expected.1), Bytes(expected.1)));
        assert_eq!(peak.bounds(), None);
    }

    #[test]
    fn free_in_flight_widens_peak_bounds() {
        let mut peak = PeakBounds::default();
        peak.add((at(1), at(2)), 100);
        // Seen in this order: the allocation returned while the free was in progress.
        peak.add((at(11), at(12)), 50);
        peak.subtract((at(10), at(13)), 100);
        assert_eq!(peak.range(), (Bytes(100), Bytes(150)));
    }

    #[test]
    fn allocation_in_flight_widens_peak_bounds() {
        let mut peak = PeakBounds::default();
        peak.add((at(1), at(2)), 100);
        peak.subtract((at(11), at(12)), 100);
        peak.add((at(10), at(13)), 50);
        assert_eq!(peak.range(), (Bytes(100), Bytes(150)));
    }

    /// Calls of several threads, each with the hidden time at which the driver executed it.
    fn scenario(seed: u64) -> Vec<(u64, u64, u64, i64)> {
        let mut state = seed;
        let mut next = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        let mut calls = Vec::new();
        for _ in 0..4 {
            let (mut now, mut held) = (0, Vec::new());
            for _ in 0..60 {
                let entered = now + 1 + next(20);
                let done = entered + 1 + next(30);
                let returned = done + 1 + next(30);
                now = returned;
                if !held.is_empty() && next(2) == 0 {
                    let bytes: i64 = held.swap_remove(next(held.len() as u64) as usize);
                    calls.push((entered, done, returned, -bytes));
                } else {
                    let bytes = 1 + next(1000) as i64;
                    held.push(bytes);
                    calls.push((entered, done, returned, bytes));
                }
            }
        }
        calls
    }

    #[test]
    fn peak_is_within_its_bounds() {
        for seed in crate::random::many(500) {
            let mut calls = scenario(seed);
            calls.sort_by_key(|call| call.1);
            let mut level = 0;
            let expected = calls.iter().map(|call| {
                level += call.3;
                level
            });
            let expected = expected.max().unwrap().unsigned_abs();
            calls.sort_by_key(|call| call.2);
            let mut peak = PeakBounds::default();
            for (entered, _, returned, bytes) in calls {
                let size = bytes.unsigned_abs();
                if bytes > 0 {
                    peak.add((at(entered), at(returned)), size);
                } else {
                    peak.subtract((at(entered), at(returned)), size);
                }
            }
            let (low, high) = peak.range();
            let expected = Bytes(expected);
            assert!(
                (low..=high).contains(&expected),
                "seed {seed}: {expected} not in {low}..={high}"
            );
        }
    }
}
