//! Detects ongoing growth: the newest run of windows whose allocations survived longer than freed
//! ones usually do, and whether that run is a leak.

use super::{Case, Past};
use crate::verdict::Sureness;

/// Minimum number of live allocations of a leak that are older than freed ones get.
pub(super) const SURVIVORS: u64 = 10;

/// Minimum windows in the run, and minimum windows in it with survivors.
const LENGTH: usize = 6;
const SPREAD: usize = 5;

/// With survivors in every window and at least this many, a shorter run is enough.
const DENSE: u64 = 40;
const LENGTH_DENSE: usize = 4;

/// Minimum duration of the growth. Programs also grow at startup. An ended process cannot continue
/// to grow, so a shorter time is enough there.
const START_UP: u64 = 30_000_000_000;
/// The same for a site that frees most of its allocations, and so has finished its startup.
const START_UP_BUSY: u64 = 12_000_000_000;
const START_UP_OVER: u64 = 2_000_000_000;

/// From this number of frees on, the lifetimes at the site define what is normal.
const MANY_FREES: u64 = 32;

/// The newest run of windows in which old allocations survived.
pub(super) struct Era {
    /// First and last window, both with survivors.
    from: usize,
    to: usize,
    /// Last window whose allocations are all older than the due age.
    settled: usize,
    /// Largest distance between two windows with survivors.
    gap: usize,
    /// Number of windows with survivors.
    spread: usize,
    /// Surviving quantity, and number of survivors.
    pub(super) kept: u64,
    count: u64,
    /// Growth per hour, without outliers and without the first window, which may be incomplete.
    pub(super) per_hour: u64,
    /// Duration in nanoseconds.
    pub(super) duration: u64,
    /// Growth in the last third relative to the first third, without outliers.
    ratio: f64,
}

impl Era {
    /// Returns the newest run, or `None` if all live allocations are too young to be overdue.
    pub(super) fn find(past: &Past) -> Option<Self> {
        let settled = last_settled(past)?;
        let with_survivors: Vec<usize> = (0..=settled)
            .rev()
            .filter(|index| past.window(*index).kept > 0 && past.window(*index).kept_count > 0)
            .collect();
        let to = *with_survivors.first()?;
        // Growth in ever rarer steps, as of a pool that doubles, is not a run.
        let widest = (past.windows.len() / 5).max(2);
        let (mut from, mut gap) = (to, 1);
        for index in with_survivors {
            if from - index > widest {
                break;
            }
            gap = gap.max(from - index);
            from = index;
        }
        let mut run = Self::between(past, from, to, settled, gap);
        // If growth became much faster, start the run later.
        while run.ratio > 5.0 && run.to - run.from >= 2 * LENGTH {
            let later = (run.from + (run.to - run.from) / 3..=run.to)
                .find(|index| past.window(*index).kept > 0)?;
            if later <= run.from {
                break;
            }
            run = Self::between(past, later, to, settled, gap);
        }
        Some(run)
    }

    fn between(past: &Past, from: usize, to: usize, settled: usize, gap: usize) -> Self {
        let windows = past.windows.get(from..=to).unwrap_or_default();
        let mut sizes: Vec<u64> = windows.iter().map(|w| w.kept).filter(|kept| *kept > 0).collect();
        sizes.sort_unstable();
        let middle = sizes.get(sizes.len() / 2).copied().unwrap_or(0);
        let sum = |part: &[super::Window], most: u64| {
            part.iter().fold(0_u64, |sum, window| sum.saturating_add(window.kept.min(most)))
        };
        let cap = middle.saturating_mul(3);
        let third = (windows.len() / 3).max(1).min(windows.len());
        let first = sum(windows.get(..third).unwrap_or_default(), cap);
        let last = sum(windows.get(windows.len() - third..).unwrap_or_default(), cap);
        Self {
            from,
            to,
            settled,
            gap,
            spread: sizes.len(),
            kept: sum(windows, u64::MAX),
            count: windows.iter().map(|window| u64::from(window.kept_count)).sum(),
            per_hour: per_hour(
                sum(windows.get(1..).unwrap_or_default(), middle.saturating_mul(8)),
                past.bounds(to).1.saturating_sub(past.bounds(from).1),
            ),
            duration: past.bounds(to).1.saturating_sub(past.bounds(from).0),
            ratio: last as f64 / first.max(1) as f64,
        }
    }

    /// Whether the run is a leak. Each condition excludes a pattern that resembles a leak.
    pub(super) fn is_leak(&self, past: &Past, case: &Case<'_>) -> bool {
        let long = self.count >= SURVIVORS && self.spread >= SPREAD && self.len() >= LENGTH;
        let dense = self.count >= DENSE && self.gap == 1 && self.len() >= LENGTH_DENSE;
        (long || dense)
            && self.duration >= min_duration(case)
            && self.duration >= past.due.unwrap_or(0)
            && self.is_ongoing(past, case)
            && self.is_even()
            && self.raises_live_total(past)
            && self.is_not_cache_tail(past)
            && is_above_midpoint(past)
    }

    fn len(&self) -> usize {
        self.to - self.from + 1
    }

    /// Whether the last growth is recent. If not, it is a plateau.
    fn is_ongoing(&self, past: &Past, case: &Case<'_>) -> bool {
        let each = self.duration / self.count.max(1);
        let steps = if self.gap > 1 { past.length.saturating_mul(2 * self.gap as u64) } else { 0 };
        let idle = case.now.0.saturating_sub(case.last.0);
        let usual = each.saturating_mul(6).max(steps).max(self.duration / 16);
        self.settled - self.to <= (2 * self.gap).max(2) && idle <= usual
    }

    /// Whether growth does not slow down. If it does, it is a warm-up. Few survivors vary by
    /// chance.
    fn is_even(&self) -> bool {
        self.ratio >= if self.count < 30 { 0.4 } else { 0.5 }
    }

    /// Whether the live total grows with the survivors. If not, they replace older allocations, as
    /// in a cache.
    fn raises_live_total(&self, past: &Past) -> bool {
        let base = if self.from == 0 { 0 } else { past.floor(self.from) };
        let now = past.windows.last().map_or(0, |window| window.low);
        now.saturating_sub(base) >= self.kept / 2
    }

    /// Whether the survivors are a relevant share. If not, they are the few long-lived entries of a
    /// cache.
    fn is_not_cache_tail(&self, past: &Past) -> bool {
        let younger = past.windows.iter().skip(self.settled + 1);
        let younger = younger.fold(0_u64, |sum, window| sum.saturating_add(window.kept));
        self.kept >= younger / 9
    }

    /// Confidence in a leak verdict.
    pub(super) fn sureness(&self, case: &Case<'_>) -> Sureness {
        const SECOND: u64 = 1_000_000_000;
        let among_frees = case.ended >= MANY_FREES;
        let (count, windows) = (self.count, self.len());
        let much = count >= 30 && windows >= 12 && (0.7..=2.0).contains(&self.ratio);
        let confidence = if much && (among_frees || self.duration >= 60 * SECOND) {
            Sureness::Certain
        } else if count >= 16 && windows >= 8 && (among_frees || self.duration >= 20 * SECOND) {
            Sureness::Likely
        } else {
            Sureness::Possible
        };
        match confidence {
            Sureness::Certain if !case.named => Sureness::Likely,
            Sureness::Likely if !case.named => Sureness::Possible,
            confidence => confidence,
        }
    }
}

fn per_hour(quantity: u64, time: u64) -> u64 {
    let hourly = u128::from(quantity) * 3_600_000_000_000 / u128::from(time.max(1));
    u64::try_from(hourly).unwrap_or(u64::MAX)
}

/// Newest window whose allocations are all older than the due age.
fn last_settled(past: &Past) -> Option<usize> {
    let due = past.due.unwrap_or(0);
    (0..past.windows.len()).rev().find(|index| {
        let (_, ends) = past.bounds(*index);
        past.now.saturating_sub(ends) >= due
    })
}

fn min_duration(case: &Case<'_>) -> u64 {
    if case.over {
        START_UP_OVER
    } else if case.ended >= MANY_FREES && case.ended > case.begun / 2 {
        START_UP_BUSY
    } else {
        START_UP
    }
}

/// Whether the live minimum exceeds that of the midpoint in some window of the last quarter.
fn is_above_midpoint(past: &Past) -> bool {
    let count = past.windows.len();
    let late = past.windows.iter().skip(count - count / 4 - 1).map(|window| window.low).max();
    late > past.windows.get(count / 2).map(|window| window.low)
}
