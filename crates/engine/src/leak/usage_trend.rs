//! Growth of a level over the last minutes, such as driver-reported usage.

use std::collections::VecDeque;

use crate::model::{Nanos, Timestamp};

/// Maximum number of windows.
const MAX_WINDOWS: usize = 64;

/// Shortest and longest window, as binary logarithms of nanoseconds: about 0.3 and 17 seconds. The
/// longest windows cover 18 minutes.
const MIN_WINDOW_LOG2: u32 = 28;
const MAX_WINDOW_LOG2: u32 = 34;

/// Minimum time for a statement about growth.
const MIN_SPAN: Nanos = Nanos::from_millis(4000);

/// Points between which slopes are computed.
const POINTS: u64 = 12;

/// Smaller changes are not growth: drivers count in pages of 2 MiB.
const MIN_CHANGE: i128 = 4 << 20;

/// Minimum and last level in one window.
#[derive(Clone, Copy, Debug)]
struct LevelWindow {
    number: u64,
    low: u64,
    end: u64,
}

/// Recent history of a level. Windows without a change take no space.
#[derive(Clone, Debug)]
pub(crate) struct UsageTrend {
    windows: VecDeque<LevelWindow>,
    first: Option<Timestamp>,
    power: u32,
}

impl Default for UsageTrend {
    fn default() -> Self {
        Self { windows: VecDeque::new(), first: None, power: MIN_WINDOW_LOG2 }
    }
}

impl UsageTrend {
    /// Records the level at a time. Times before the last one count as the last one.
    #[inline]
    pub(crate) fn observe(&mut self, at: Timestamp, level: u64) {
        let number = at.0 >> self.power;
        match self.windows.back_mut() {
            Some(last) if last.number >= number => {
                last.low = last.low.min(level);
                last.end = level;
            }
            _ => self.open(at, level),
        }
    }

    #[cold]
    fn open(&mut self, at: Timestamp, level: u64) {
        self.first.get_or_insert(at);
        // The level of the window before lasts until this time.
        let low = self.windows.back().map_or(level, |last| last.end.min(level));
        self.windows.push_back(LevelWindow { number: at.0 >> self.power, low, end: level });
        if self.windows.len() <= MAX_WINDOWS {
            return;
        }
        if self.power >= MAX_WINDOW_LOG2 {
            self.windows.pop_front();
            self.first = self.windows.front().map(|first| Timestamp(first.number << self.power));
            return;
        }
        self.power += 1;
        let mut merged: VecDeque<LevelWindow> = VecDeque::with_capacity(MAX_WINDOWS + 1);
        for window in self.windows.drain(..) {
            let number = window.number / 2;
            match merged.back_mut() {
                Some(last) if last.number == number => {
                    last.low = last.low.min(window.low);
                    last.end = window.end;
                }
                _ => merged.push_back(LevelWindow { number, ..window }),
            }
        }
        self.windows = merged;
    }

    /// Growth per hour in the second half of the history; `None` if the history is too short.
    /// `level` is the level at `now`. What was given back does not count as growth, so a fall ends
    /// the growth before it.
    pub(crate) fn growth_per_hour(&self, now: Timestamp, level: u64) -> Option<i64> {
        let first = self.first?;
        let span = (now - first).0;
        if span < MIN_SPAN.0 {
            return None;
        }
        let (start, half) = (first.0 + span / 2, span - span / 2);
        let low_at = |at: u64| {
            let number = at >> self.power;
            let after = self.windows.partition_point(|window| window.number <= number);
            let window = after.checked_sub(1).and_then(|index| self.windows.get(index));
            window.map_or(level, |w| if w.number == number { w.low } else { w.end })
        };
        let points: Vec<(u64, u64)> = (0..POINTS)
            .map(|index| start + half / POINTS * index)
            .map(|at| (at, low_at(at)))
            .chain([(now.0, level)])
            .collect();
        let mut middle = median_slope(&kept(&points))?;
        if middle == 0 && is_falling(&points) {
            middle = median_slope(&points)?;
        }
        let is_change = (middle * i128::from(half) / i128::from(Nanos::HOUR.0)).abs() >= MIN_CHANGE;
        i64::try_from(if is_change { middle } else { 0 }).ok()
    }
}

/// Returns of each level only the part that was never given back later.
fn kept(points: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut kept = points.to_vec();
    let mut lowest = u64::MAX;
    for (_, level) in kept.iter_mut().rev() {
        lowest = lowest.min(*level);
        *level = lowest;
    }
    kept
}

/// Whether a level falls again and again, not just once.
fn is_falling(points: &[(u64, u64)]) -> bool {
    let falls = points.windows(2).filter(|pair| matches!(pair, [(_, a), (_, b)] if b < a)).count();
    falls * 2 >= points.len()
}

/// Median slope per hour between all pairs of points, given as times and levels (Theil–Sen
/// estimator).
pub(super) fn median_slope(points: &[(u64, u64)]) -> Option<i128> {
    let mut slopes = Vec::new();
    for (index, (from, before)) in points.iter().enumerate() {
        for (to, after) in points.iter().skip(index + 1) {
            let change = i128::from(*after) - i128::from(*before);
            let time = i128::from(to.saturating_sub(*from).max(1));
            slopes.push(change * i128::from(Nanos::HOUR.0) / time);
        }
    }
    slopes.sort_unstable();
    slopes.get(slopes.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SECOND: u64 = 1_000_000_000;

    /// Growth per hour in MiB of a level that is observed ten times a second.
    fn growth(seconds: u64, level: impl Fn(u64) -> u64) -> Option<i64> {
        let mut trend = UsageTrend::default();
        let tenths = seconds * 10;
        for tenth in 0..=tenths {
            trend.observe(Timestamp(7 + tenth * SECOND / 10), level(tenth));
        }
        let now = Timestamp(7 + seconds * SECOND);
        trend.growth_per_hour(now, level(tenths)).map(|bytes| bytes / MIB as i64)
    }

    #[test]
    fn steady_growth_has_its_slope() {
        for seconds in [10, 60, 600, 7200] {
            let found = growth(seconds, |tenth| tenth * MIB).unwrap();
            assert!((34_500..=37_500).contains(&found), "{found} MiB/h after {seconds} s");
        }
        let shrinking = growth(60, |tenth| (1000 - tenth) * MIB).unwrap();
        assert!((-37_500..=-34_500).contains(&shrinking), "{shrinking}");
    }

    #[test]
    fn levels_that_only_start_or_alternate_do_not_grow() {
        assert_eq!(growth(60, |tenth| tenth.min(100) * 100 * MIB), Some(0));
        assert_eq!(growth(60, |tenth| (1 + tenth % 2) * 1000 * MIB), Some(0));
        assert_eq!(growth(60, |_| 5), Some(0));
    }

    #[test]
    fn growth_ends_with_a_fall() {
        // A program takes 8 GiB within 16 seconds and exits, 2 to 60 seconds before now.
        for after in [20, 100, 300, 600] {
            let level = |tenth: u64| if tenth < 160 { tenth * 50 * MIB } else { 3 * MIB };
            assert_eq!(growth(16 + after / 10, level), Some(0), "{after}");
        }
        // Another one goes on growing: its growth counts again in the second half of the history.
        let level = |tenth: u64| tenth * MIB + if tenth < 200 { 5000 * MIB } else { 0 };
        assert_eq!(growth(21, level), Some(0));
        assert!((34_500..=37_500).contains(&growth(60, level).unwrap()));
    }

    #[test]
    fn growth_that_began_long_ago_and_ended_is_forgotten() {
        assert_eq!(growth(7200, |tenth| tenth.min(36_000) * MIB), Some(0));
    }

    #[test]
    fn short_histories_have_no_growth() {
        assert_eq!(growth(3, |tenth| tenth * MIB), None);
        assert_eq!(UsageTrend::default().growth_per_hour(Timestamp(9), 9), None);
    }

    #[test]
    fn idle_time_counts_as_time() {
        let mut trend = UsageTrend::default();
        for second in 0..10 {
            trend.observe(Timestamp(second * SECOND), second * 100 * MIB);
        }
        assert_eq!(trend.growth_per_hour(Timestamp(60 * SECOND), 900 * MIB), Some(0));
        trend.observe(Timestamp(1), 0);
        assert!(trend.windows.len() <= 10);
    }
}
