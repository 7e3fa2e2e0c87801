//! The growth that goes on: the newest run of windows from which something stayed that should be gone
//! by now, and whether that is a leak.

use super::{Case, Past};
use crate::verdict::Sureness;

/// Live ones that a leak needs, older than what is freed becomes.
pub(super) const SURVIVORS: u64 = 10;

/// Windows of the run, and windows of it that something stayed from.
const LENGTH: usize = 6;
const SPREAD: usize = 5;

/// Where something stayed from every window of the run, and so many, a shorter one is enough.
const DENSE: u64 = 40;
const LENGTH_DENSE: usize = 4;

/// How long growth must have lasted, in nanoseconds. A program that starts up grows too, and what has
/// ended cannot go on.
const START_UP: u64 = 30_000_000_000;
/// The same where the place frees most of what it makes: that is no start-up any more.
const START_UP_BUSY: u64 = 12_000_000_000;
const START_UP_OVER: u64 = 2_000_000_000;

/// Frees from which on the place's own lives tell what is usual.
const MANY_FREES: u64 = 32;

/// See the module.
pub(super) struct Era {
    /// The first and the last window, both of which something stayed from.
    from: usize,
    to: usize,
    /// The last window from which everything that is ever freed is freed.
    settled: usize,
    /// The widest step from one window with survivors to the next.
    gap: usize,
    /// Windows with survivors.
    spread: usize,
    /// What stayed, and how many.
    pub(super) kept: u64,
    count: u64,
    /// The same per hour without outliers, and without the first window, of which it may be a part.
    pub(super) per_hour: u64,
    /// In nanoseconds.
    pub(super) duration: u64,
    /// Growth of the last third against that of the first, without outliers.
    ratio: f64,
}

impl Era {
    /// The newest run; none where everything that is live is young enough to be freed yet.
    pub(super) fn find(past: &Past) -> Option<Self> {
        let settled = last_settled(past)?;
        let with_survivors: Vec<usize> = (0..=settled)
            .rev()
            .filter(|index| past.window(*index).kept > 0 && past.window(*index).kept_count > 0)
            .collect();
        let to = *with_survivors.first()?;
        // Growth in ever rarer steps, as of a pool that doubles, is no run.
        let widest = (past.windows.len() / 5).max(2);
        let (mut from, mut gap) = (to, 1);
        for index in with_survivors {
            if from - index > widest {
                break;
            }
            gap = gap.max(from - index);
            from = index;
        }
        let mut era = Self::between(past, from, to, settled, gap);
        // What grows much faster than before begins later.
        while era.ratio > 5.0 && era.to - era.from >= 2 * LENGTH {
            let later = (era.from + (era.to - era.from) / 3..=era.to)
                .find(|index| past.window(*index).kept > 0)?;
            if later <= era.from {
                break;
            }
            era = Self::between(past, later, to, settled, gap);
        }
        Some(era)
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

    /// Whether it is a leak. Each line is a way in which something else looks like one.
    pub(super) fn is_leak(&self, past: &Past, case: &Case<'_>) -> bool {
        let long = self.count >= SURVIVORS && self.spread >= SPREAD && self.len() >= LENGTH;
        let dense = self.count >= DENSE && self.gap == 1 && self.len() >= LENGTH_DENSE;
        (long || dense)
            && self.duration >= start_up(case)
            && self.duration >= past.due.unwrap_or(0)
            && self.goes_on(past, case)
            && self.is_even()
            && self.is_in_the_sum(past)
            && self.is_no_tail(past)
            && is_above_half_time(past)
    }

    fn len(&self) -> usize {
        self.to - self.from + 1
    }

    /// The last growth is not longer ago than usual: else it is a plateau.
    fn goes_on(&self, past: &Past, case: &Case<'_>) -> bool {
        let each = self.duration / self.count.max(1);
        let steps = if self.gap > 1 { past.length.saturating_mul(2 * self.gap as u64) } else { 0 };
        let idle = case.now.0.saturating_sub(case.last.0);
        let usual = each.saturating_mul(6).max(steps).max(self.duration / 16);
        self.settled - self.to <= (2 * self.gap).max(2) && idle <= usual
    }

    /// It does not slow down: else something warms up. Few survivors are uneven by chance.
    fn is_even(&self) -> bool {
        self.ratio >= if self.count < 30 { 0.4 } else { 0.5 }
    }

    /// What is live grows with it: else older things go in its place, as in a cache.
    fn is_in_the_sum(&self, past: &Past) -> bool {
        let base = if self.from == 0 { 0 } else { past.floor(self.from) };
        let now = past.windows.last().map_or(0, |window| window.low);
        now.saturating_sub(base) >= self.kept / 2
    }

    /// It is much against what comes and goes: else it is the few that a cache keeps for long.
    fn is_no_tail(&self, past: &Past) -> bool {
        let younger = past.windows.iter().skip(self.settled + 1);
        let younger = younger.fold(0_u64, |sum, window| sum.saturating_add(window.kept));
        self.kept >= younger / 9
    }

    /// How sure a leak is.
    pub(super) fn sureness(&self, case: &Case<'_>) -> Sureness {
        const SECOND: u64 = 1_000_000_000;
        let among_frees = case.ended >= MANY_FREES;
        let (count, windows) = (self.count, self.len());
        let much = count >= 30 && windows >= 12 && (0.7..=2.0).contains(&self.ratio);
        let sureness = if much && (among_frees || self.duration >= 60 * SECOND) {
            Sureness::Certain
        } else if count >= 16 && windows >= 8 && (among_frees || self.duration >= 20 * SECOND) {
            Sureness::Likely
        } else {
            Sureness::Possible
        };
        match sureness {
            Sureness::Certain if !case.named => Sureness::Likely,
            Sureness::Likely if !case.named => Sureness::Possible,
            sureness => sureness,
        }
    }
}

fn per_hour(quantity: u64, time: u64) -> u64 {
    let hourly = u128::from(quantity) * 3_600_000_000_000 / u128::from(time.max(1));
    u64::try_from(hourly).unwrap_or(u64::MAX)
}

/// The newest window whose youngest is older than what is freed becomes.
fn last_settled(past: &Past) -> Option<usize> {
    let due = past.due.unwrap_or(0);
    (0..past.windows.len()).rev().find(|index| {
        let (_, ends) = past.bounds(*index);
        past.now.saturating_sub(ends) >= due
    })
}

fn start_up(case: &Case<'_>) -> u64 {
    if case.over {
        START_UP_OVER
    } else if case.ended >= MANY_FREES && case.ended > case.begun / 2 {
        START_UP_BUSY
    } else {
        START_UP
    }
}

/// More is live than at half time, at least now and then.
fn is_above_half_time(past: &Past) -> bool {
    let count = past.windows.len();
    let late = past.windows.iter().skip(count - count / 4 - 1).map(|window| window.low).max();
    late > past.windows.get(count / 2).map(|window| window.low)
}
