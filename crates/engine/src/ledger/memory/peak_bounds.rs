//! Bounds of the peak. The driver does its work at some time between entry and return of a call,
//! which is not visible from outside. If calls of several threads overlap, their order is unknown,
//! and so is the amount of memory that was live at the same time.
//!
//! Two extreme schedules bound the true peak. In the *high* one, memory is allocated when its call
//! is entered and freed when the free returns; in the *low* one, it is allocated at return and
//! freed at the free's entry. Without overlapping calls both are equal, and the peak is exact.

use std::collections::VecDeque;

use super::old_levels::OldLevels;
use crate::model::{Bytes, Timestamp};

/// Number of recent points that overlapping calls can still correct one by one.
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
pub(crate) struct PeakBounds {
    recent: VecDeque<LevelPoint>,
    /// Lower bound of the peak of the points that are no longer recent.
    low: LevelPeak,
    /// Their upper bounds, and the lower bound of the last one.
    old: OldLevels,
    last_low: i128,
    level: i128,
}

impl PeakBounds {
    /// Bounds of the peak from a time on, with that much live memory.
    pub(crate) fn starting_with(live: Bytes, at: Timestamp) -> Self {
        let level = i128::from(live.0);
        let first = LevelPoint { at, low: level, high: level };
        Self { recent: VecDeque::from([first]), level, ..Self::default() }
    }

    /// Adds memory allocated by a call that lasted from `entered` to `at`.
    pub(crate) fn add(&mut self, (entered, at): (Timestamp, Timestamp), bytes: u64) {
        let bytes = i128::from(bytes);
        self.level += bytes;
        let before = self.before(entered);
        if before < self.recent.len() {
            let older = before.checked_sub(1).map(|index| self.recent[index]);
            for point in self.recent.range_mut(before..) {
                point.high += bytes;
            }
            match (older, self.old.last()) {
                (None, Some((last, _))) if entered <= last => self.old.raise(entered, bytes),
                (older, old) => {
                    // The level at the entry itself: the level before, plus this allocation.
                    let (low, high) = older.map_or_else(
                        || (self.last_low, old.map_or(0, |(_, high)| high)),
                        |point| (point.low, point.high),
                    );
                    let point = LevelPoint { at: entered, low, high: high + bytes };
                    self.recent.insert(before, point);
                }
            }
        }
        self.push(at);
    }

    /// Subtracts memory freed by a call that lasted from `entered` to `at`.
    pub(crate) fn subtract(&mut self, (entered, at): (Timestamp, Timestamp), bytes: u64) {
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
    pub(crate) fn correct_end(&mut self, from: Timestamp, until: Timestamp, bytes: u64) {
        let bytes = i128::from(bytes);
        if from <= self.low.at && self.low.at < until {
            self.low.level -= bytes;
        }
        for point in self.recent.iter_mut().filter(|point| (from..until).contains(&point.at)) {
            point.low -= bytes;
        }
    }

    /// Lower and upper bound of the peak, if they differ.
    pub(crate) fn bounds(&self) -> Option<(Bytes, Bytes)> {
        let (low, high) = self.range();
        (low < high).then_some((low, high))
    }

    fn range(&self) -> (Bytes, Bytes) {
        let clamp = |level: i128| Bytes(u64::try_from(level.max(0)).unwrap_or(u64::MAX));
        let low = self.recent.iter().map(|point| point.low).fold(self.low.level, i128::max);
        let high = self.recent.iter().map(|point| point.high).fold(self.old.max(), i128::max);
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
                self.last_low = low;
                let until = self.recent.front().map_or(at, |next| next.at);
                self.old.push(at, until, high);
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
    fn long_allocation_after_the_peak_raises_the_upper_bound() {
        let mut peak = PeakBounds::default();
        peak.add((at(1), at(2)), 1000);
        // The level stays near the peak for as long as the recent points reach, and longer.
        for i in 1..200 {
            peak.subtract((at(10 * i), at(10 * i + 1)), 10);
            peak.add((at(10 * i + 2), at(10 * i + 3)), 10);
        }
        peak.add((at(5), at(3000)), 50);
        assert_eq!(peak.range(), (Bytes(1050), Bytes(1050)));
        // The level was low at the entry of this one and after.
        peak.subtract((at(3001), at(3002)), 1000);
        for i in 301..500 {
            peak.add((at(10 * i + 2), at(10 * i + 3)), 10);
            peak.subtract((at(10 * i + 4), at(10 * i + 5)), 10);
        }
        peak.add((at(3005), at(6000)), 70);
        assert_eq!(peak.range(), (Bytes(1050), Bytes(1050)));
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
            for _ in 0..150 {
                let entered = now + 1 + next(20);
                // Some calls last longer than the recent points reach back.
                let long = if next(12) == 0 { 3000 } else { 30 };
                let done = entered + 1 + next(long);
                let returned = done + 1 + next(long);
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
