//! History of the live memory of a site in constant space: up to 32 windows that cover its whole
//! life. When all are in use, neighbors are merged into windows of twice the length.
//!
//! All sites of a trace share one grid of windows, so that histories can be added. Each site has
//! its own first window, so that a site that starts late gets the same resolution. Idle time costs
//! nothing: missing windows are filled in with the next change.
#![allow(clippy::cast_possible_truncation, reason = "indices of windows are small")]

use crate::model::{Bytes, Nanos, Timestamp};
use crate::snapshot::SiteHistory;

/// Maximum number of windows.
pub const MAX_WINDOWS: usize = 32;

/// Initial window length: 2^20 ns, about one millisecond.
const MIN_WINDOW_LOG2: u32 = 20;

/// One time window. Quantities are bytes or object counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Window {
    /// Minimum of the live quantity.
    pub low: u64,
    /// Maximum of the live quantity.
    pub high: u64,
    /// Live quantity at the end of the window.
    pub end: u64,
    /// Quantity allocated in this window and still live.
    pub survived: u64,
    /// Number of allocations of this window that are still live.
    pub survived_count: u32,
    /// Number of allocations in this window.
    pub allocated_count: u32,
}

impl Window {
    /// A window without changes.
    const fn idle(live: u64) -> Self {
        Self {
            low: live,
            high: live,
            end: live,
            survived: 0,
            survived_count: 0,
            allocated_count: 0,
        }
    }

    /// Merges this window with the later window `next`.
    pub(super) fn then(self, next: Self) -> Self {
        Self {
            low: self.low.min(next.low),
            high: self.high.max(next.high),
            end: next.end,
            survived: self.survived.saturating_add(next.survived),
            survived_count: self.survived_count.saturating_add(next.survived_count),
            allocated_count: self.allocated_count.saturating_add(next.allocated_count),
        }
    }

    /// Adds a window of the same time. The sums are bounds: the true minimum may be higher, the
    /// true maximum lower.
    fn plus(self, other: Self) -> Self {
        Self {
            low: self.low.saturating_add(other.low),
            high: self.high.saturating_add(other.high),
            end: self.end.saturating_add(other.end),
            survived: self.survived.saturating_add(other.survived),
            survived_count: self.survived_count.saturating_add(other.survived_count),
            allocated_count: self.allocated_count.saturating_add(other.allocated_count),
        }
    }
}

/// History of the live quantity of a site. Times are relative to the start of the trace.
#[derive(Clone, Debug)]
pub struct GrowthHistory {
    windows: Vec<Window>,
    /// Grid number of the first window.
    first: u64,
    /// Binary logarithm of the window length.
    power: u32,
    /// Frees since the last allocation.
    frees: FreeRun,
}

/// Frees since the last allocation, so that the history before them can be restored.
#[derive(Clone, Debug, Default)]
struct FreeRun {
    /// Time of the first free; live quantity before it, and its minimum in that window.
    at: Nanos,
    live: u64,
    low: u64,
    /// Quantity and number of freed allocations by the window that they were made in; empty if the
    /// last change is an allocation.
    by_window: Vec<(usize, u64, u32)>,
}

impl Default for GrowthHistory {
    fn default() -> Self {
        Self { windows: Vec::new(), first: 0, power: MIN_WINDOW_LOG2, frees: FreeRun::default() }
    }
}

impl GrowthHistory {
    /// Records an allocation; `live` is the live quantity before it.
    pub fn allocated(&mut self, at: Nanos, live: u64, size: u64) {
        self.frees.by_window.clear();
        self.enter(at, live);
        let after = live.saturating_add(size);
        let index = self.window_index(at);
        if let Some(window) = self.windows.last_mut() {
            window.high = window.high.max(after);
            window.end = after;
        }
        if let Some(window) = self.windows.get_mut(index) {
            window.survived = window.survived.saturating_add(size);
            window.survived_count = window.survived_count.saturating_add(1);
            window.allocated_count = window.allocated_count.saturating_add(1);
        }
    }

    /// Records the free of an allocation made at `allocated_at`; `live` is the live quantity before
    /// it.
    pub fn freed(&mut self, allocated_at: Nanos, at: Nanos, live: u64, size: u64) {
        self.enter(at, live);
        let after = live.saturating_sub(size);
        let low = self.windows.last().map_or(live, |window| window.low);
        if let Some(window) = self.windows.last_mut() {
            window.low = window.low.min(after);
            window.end = after;
        }
        let index = self.window_index(allocated_at);
        if let Some(window) = self.windows.get_mut(index) {
            window.survived = window.survived.saturating_sub(size);
            window.survived_count = window.survived_count.saturating_sub(1);
        }
        if self.frees.by_window.is_empty() {
            (self.frees.at, self.frees.live, self.frees.low) = (at, live, low);
        }
        self.frees.add(index, size, 1);
    }

    /// Time of the first free since the last allocation, the live quantity before it, and the
    /// history up to it; `None` if the last change is an allocation.
    pub(super) fn before_frees(&self) -> Option<(Nanos, u64, Self)> {
        let FreeRun { at, live, low, ref by_window } = self.frees;
        if by_window.is_empty() {
            return None;
        }
        let mut windows = self.windows.clone();
        windows.truncate(self.window_index(at) + 1);
        if let Some(last) = windows.last_mut() {
            (last.low, last.end) = (low, live);
        }
        for (index, size, count) in by_window {
            if let Some(window) = windows.get_mut(*index) {
                window.survived = window.survived.saturating_add(*size);
                window.survived_count = window.survived_count.saturating_add(*count);
            }
        }
        let frees = FreeRun::default();
        Some((at, live, Self { windows, first: self.first, power: self.power, frees }))
    }

    /// Records that an allocation made at `allocated_at` is larger by `more` than assumed; `live` is
    /// the live quantity before that.
    pub fn resized(&mut self, allocated_at: Nanos, at: Nanos, live: u64, more: u64) {
        self.enter(at, live);
        let after = live.saturating_add(more);
        if let Some(window) = self.windows.last_mut() {
            window.high = window.high.max(after);
            window.end = after;
        }
        let index = self.window_index(allocated_at);
        if let Some(window) = self.windows.get_mut(index) {
            window.survived = window.survived.saturating_add(more);
        }
    }

    /// Records a change of a level that is not a sum of allocations.
    pub fn level(&mut self, at: Nanos, before: u64, after: u64) {
        self.enter(at, before);
        if let Some(window) = self.windows.last_mut() {
            window.low = window.low.min(after);
            window.high = window.high.max(after);
            window.end = after;
        }
    }

    /// Frees spare capacity once no change can follow.
    pub fn shrink_to_fit(&mut self) {
        self.windows.shrink_to_fit();
    }

    /// Adds windows up to `at`, in which `live` was the live quantity.
    #[inline]
    fn enter(&mut self, at: Nanos, live: u64) {
        if (at.0 >> self.power).wrapping_sub(self.first) >= self.windows.len() as u64 {
            self.catch_up(at, live);
        }
    }

    #[cold]
    fn catch_up(&mut self, at: Nanos, live: u64) {
        if self.windows.is_empty() {
            self.first = at.0 >> self.power;
        }
        while (at.0 >> self.power).saturating_sub(self.first) >= MAX_WINDOWS as u64 {
            self.double();
        }
        let number = (at.0 >> self.power).saturating_sub(self.first) as usize;
        while self.windows.len() <= number {
            self.windows.push(Window::idle(live));
        }
    }

    fn double(&mut self) {
        let (old, first) = (self.first, self.first / 2);
        if !self.frees.by_window.is_empty() {
            let index = self.window_index(self.frees.at);
            let before = index.checked_sub(1).and_then(|before| self.windows.get(before));
            // The window before is merged with that of the first free.
            if let Some(before) = before.filter(|_| !(old + index as u64).is_multiple_of(2)) {
                self.frees.low = self.frees.low.min(before.low);
            }
            for (index, size, count) in std::mem::take(&mut self.frees.by_window) {
                self.frees.add((u64::midpoint(old, index as u64) - first) as usize, size, count);
            }
        }
        let mut count = 0;
        for index in 0..self.windows.len() {
            let target = (u64::midpoint(old, index as u64) - first) as usize;
            let Some(&window) = self.windows.get(index) else { break };
            if let Some(slot) = self.windows.get_mut(target) {
                *slot = if target < count { slot.then(window) } else { window };
            }
            count = target + 1;
        }
        self.windows.truncate(count);
        self.first = first;
        self.power += 1;
    }

    /// Index of the window of a time, clamped to the existing windows.
    fn window_index(&self, at: Nanos) -> usize {
        let number = (at.0 >> self.power).saturating_sub(self.first);
        usize::try_from(number).unwrap_or(usize::MAX).min(self.windows.len().saturating_sub(1))
    }

    /// Adds the history of another site, whose live quantity is `other_live`.
    pub fn merge(&mut self, live: u64, other: &Self, other_live: u64) {
        self.frees.by_window.clear();
        if other.windows.is_empty() {
            return;
        }
        if self.windows.is_empty() {
            self.clone_from(other);
            self.frees.by_window.clear();
            return;
        }
        let mut other = other.clone();
        while other.power < self.power {
            other.double();
        }
        while self.power < other.power {
            self.double();
        }
        let first = self.first.min(other.first);
        while self.next().max(other.next()) - self.first.min(other.first) > MAX_WINDOWS as u64 {
            self.double();
            other.double();
        }
        let (from, to) = (self.first.min(other.first), self.next().max(other.next()));
        debug_assert!(from <= first);
        self.windows = (from..to)
            .map(|number| self.at(number, live).plus(other.at(number, other_live)))
            .collect();
        self.first = from;
    }

    /// Grid number after the last window.
    fn next(&self) -> u64 {
        self.first + self.windows.len() as u64
    }

    /// Window by grid number, which may be before or after the stored windows.
    fn at(&self, number: u64, live: u64) -> Window {
        match number.checked_sub(self.first) {
            None => Window::default(),
            Some(index) => {
                let index = usize::try_from(index).unwrap_or(usize::MAX);
                self.windows.get(index).copied().unwrap_or(Window::idle(live))
            }
        }
    }

    /// Returns the windows up to `now`: their length, the start of the first, and the windows.
    pub fn windows_until(&self, now: Nanos, live: u64) -> (Nanos, Nanos, Vec<Window>) {
        let mut history = self.clone();
        if !history.windows.is_empty() {
            history.enter(now, live);
        }
        let start = history.first << history.power;
        (Nanos(1 << history.power), Nanos(start), history.windows)
    }

    /// Returns the live quantity at the end of each window of the whole trace, with the same
    /// windows for all sites. The last window is still open: its value is the current live
    /// quantity.
    pub fn history(&self, start: Timestamp, now: Nanos, live: u64) -> SiteHistory {
        let mut history = self.clone();
        history.enter(now, live);
        let last = |history: &Self| (now.0 >> history.power).max(history.next().saturating_sub(1));
        while last(&history) >= MAX_WINDOWS as u64 {
            history.double();
        }
        let ends = (0..last(&history)).map(|number| Bytes(history.at(number, live).end));
        let live = ends.chain([Bytes(live)]).collect();
        SiteHistory { start, window: Nanos(1 << history.power), live }
    }
}

impl FreeRun {
    fn add(&mut self, index: usize, size: u64, count: u32) {
        match self.by_window.iter_mut().find(|(other, ..)| *other == index) {
            Some((_, all, number)) => {
                *all = all.saturating_add(size);
                *number = number.saturating_add(count);
            }
            None => self.by_window.push((index, size, count)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: u64 = 1 << MIN_WINDOW_LOG2;

    /// A history in which `size` is added in each given window.
    fn history(steps: &[(u64, u64)]) -> GrowthHistory {
        let mut history = GrowthHistory::default();
        let mut live = 0;
        for &(window, size) in steps {
            history.allocated(Nanos(window * LENGTH), live, size);
            live += size;
        }
        history
    }

    fn ends(history: &GrowthHistory, now: u64, live: u64) -> (u64, Vec<u64>) {
        let growth = history.history(Timestamp(0), Nanos(now * LENGTH), live);
        (growth.window.0 / LENGTH, growth.live.iter().map(|bytes| bytes.0).collect())
    }

    #[test]
    fn idle_windows_are_filled_in_and_late_sites_start_at_zero() {
        let history = history(&[(2, 7), (5, 1)]);
        assert_eq!(ends(&history, 6, 8), (1, vec![0, 0, 7, 7, 7, 8, 8]));
        assert_eq!(ends(&history, 2, 8).1.len(), 6);
    }

    #[test]
    fn full_windows_are_merged_in_pairs() {
        let steps: Vec<_> = (0..33).map(|number| (number, 1)).collect();
        let history = history(&steps);
        let (length, start, windows) = history.windows_until(Nanos(32 * LENGTH), 33);
        assert_eq!((length.0 / LENGTH, start, windows.len()), (2, Nanos(0), 17));
        // The second pair: 2 were live before, 2 were allocated and survived.
        let want =
            Window { low: 2, high: 4, end: 4, survived: 2, survived_count: 2, allocated_count: 2 };
        assert_eq!(windows[1], want);
        assert_eq!(windows.iter().map(|window| window.survived).sum::<u64>(), 33);
    }

    #[test]
    fn late_site_has_short_windows_on_the_same_grid() {
        let mut history = history(&[(1001, 5)]);
        history.allocated(Nanos(1003 * LENGTH), 5, 5);
        let (length, start, windows) = history.windows_until(Nanos(1004 * LENGTH), 10);
        assert_eq!((length.0, start.0 / LENGTH, windows.len()), (LENGTH, 1001, 4));
        let (length, ends) = ends(&history, 1004, 10);
        // 1004 windows become 31 windows of 32; the last one is still open.
        assert_eq!((length, ends.len(), ends[31], ends[30]), (32, 32, 10, 0));
    }

    #[test]
    fn free_is_subtracted_from_the_window_of_its_allocation() {
        let mut history = history(&[(0, 10), (40, 20)]);
        history.freed(Nanos(0), Nanos(41 * LENGTH), 30, 10);
        let (_, _, windows) = history.windows_until(Nanos(41 * LENGTH), 20);
        let survived: Vec<_> = windows.iter().map(|window| window.survived).collect();
        assert_eq!(survived.iter().sum::<u64>(), 20);
        assert_eq!((survived[0], survived[20], windows[20].low), (0, 20, 10));
    }

    #[test]
    fn history_before_the_last_frees_is_restored() {
        let mut random = 7_u64;
        for _ in 0..200 {
            let (mut history, mut live, mut at) = (GrowthHistory::default(), 0, 0);
            let mut next = |below: u64| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 33) % below
            };
            let mut held = Vec::new();
            for _ in 0..=next(60) {
                at += next(3 * LENGTH);
                if next(3) > 0 || held.is_empty() {
                    let size = next(100) + 1;
                    history.allocated(Nanos(at), live, size);
                    held.push((at, size));
                    live += size;
                } else {
                    let (allocated_at, size): (u64, u64) = held.swap_remove(0);
                    history.freed(Nanos(allocated_at), Nanos(at), live, size);
                    live -= size;
                }
            }
            at += next(2 * LENGTH);
            history.allocated(Nanos(at), live, 5);
            held.push((at, 5));
            live += 5;
            let (before, live_before) = (history.clone(), live);
            assert!(history.before_frees().is_none());
            let first = at + next(2 * LENGTH);
            at = first;
            for (allocated_at, size) in &held {
                history.freed(Nanos(*allocated_at), Nanos(at), live, *size);
                live -= size;
                at += next(9 * LENGTH);
            }
            let (freed_at, restored_live, restored) = history.before_frees().unwrap();
            assert_eq!((freed_at, restored_live), (Nanos(first), live_before));
            // Both with windows of the same length.
            let mut before = before;
            before.enter(Nanos(first), live_before);
            while before.power < restored.power {
                before.double();
            }
            assert_eq!((before.windows, before.first), (restored.windows, restored.first));
        }
    }

    #[test]
    fn maximum_timestamp_does_not_overflow() {
        let mut history = history(&[(5, 1)]);
        history.allocated(Nanos(u64::MAX), 1, 1);
        history.allocated(Nanos(0), 2, 1);
        history.freed(Nanos(0), Nanos(3), 3, 1);
        let (_, _, windows) = history.windows_until(Nanos(u64::MAX), 2);
        assert_eq!(windows.len(), 32);
        assert_eq!(windows.iter().map(|window| window.survived).sum::<u64>(), 2);
    }

    #[test]
    fn histories_with_different_window_lengths_are_merged() {
        let (mut early, late) = (history(&[(0, 1), (2, 9)]), history(&[(39, 10)]));
        early.merge(10, &late, 10);
        let (length, ends) = ends(&early, 40, 20);
        assert_eq!((length, ends.len()), (2, 21));
        assert_eq!((ends[0], ends[1], ends[18], ends[19]), (1, 10, 10, 20));
        let mut none = GrowthHistory::default();
        none.merge(0, &early, 20);
        assert_eq!(
            none.windows_until(Nanos(40 * LENGTH), 20),
            early.windows_until(Nanos(40 * LENGTH), 20)
        );
    }
}
