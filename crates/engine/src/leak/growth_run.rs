//! Detects ongoing growth: the newest run of windows whose allocations survived longer than freed
//! ones usually do, and whether that run is a leak.

use super::{ObservedWindows, SiteObservation};
use crate::model::Nanos;
use crate::verdict::Confidence;

/// Minimum number of live allocations of a leak that are older than freed ones get.
pub(super) const MIN_SURVIVORS: u64 = 10;
/// The same if they are a sample.
const MIN_SAMPLED_SURVIVORS: u64 = 16;

/// Standard errors by which the estimated total of a leak grows at least.
const MIN_STANDARD_ERRORS: f64 = 4.0;

/// Minimum windows in the run, and minimum windows in it with survivors.
const MIN_RUN_WINDOWS: usize = 6;
const MIN_SURVIVOR_WINDOWS: usize = 5;

/// With survivors in every window and at least this many, a shorter run is enough.
const DENSE_SURVIVORS: u64 = 40;
const MIN_DENSE_RUN_WINDOWS: usize = 4;

/// Minimum duration of the growth. Programs also grow at startup. An ended process cannot continue
/// to grow, so a shorter time is enough there.
pub const MIN_GROWTH: Nanos = Nanos::from_millis(30_000);
/// The same for a site that frees most of its allocations, and so has finished its startup.
const MIN_GROWTH_BUSY_NS: u64 = 12_000_000_000;
const MIN_GROWTH_ENDED_NS: u64 = 2_000_000_000;
/// The same for a program that freed most of it at its end, as short programs do.
const MIN_GROWTH_FREED_NS: u64 = 5_000_000_000;

/// Minimum number of survivors for a site to be watched before a verdict is possible.
const MIN_EARLY_SURVIVORS: u64 = 4;

const SECOND: u64 = 1_000_000_000;

/// From this number of frees on, the lifetimes at the site define what is normal.
const MIN_FREES_FOR_DUE_AGE: u64 = 32;

/// The newest run of windows in which old allocations survived.
pub(super) struct GrowthRun {
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
    pub(super) survived: u64,
    count: u64,
    /// Growth per hour, without outliers and without the first window, which may be incomplete.
    pub(super) per_hour: u64,
    /// Duration in nanoseconds.
    pub(super) duration: u64,
    /// The same with earlier, much slower growth.
    whole_duration: u64,
    /// Growth in the last third relative to the first third, without outliers.
    ratio: f64,
}

impl GrowthRun {
    /// Returns the newest run, or `None` if all live allocations are too young to be overdue.
    pub(super) fn newest(observed: &ObservedWindows) -> Option<Self> {
        let settled = last_settled(observed)?;
        let with_survivors: Vec<usize> = (0..=settled)
            .rev()
            .filter(|index| {
                observed.window(*index).survived > 0 && observed.window(*index).survived_count > 0
            })
            .collect();
        let to = *with_survivors.first()?;
        // Growth in ever rarer steps, as of a pool that doubles, is not a run.
        let widest = (observed.windows.len() / 5).max(2);
        let (mut from, mut gap) = (to, 1);
        for index in with_survivors {
            if from - index > widest {
                break;
            }
            gap = gap.max(from - index);
            from = index;
        }
        let mut run = Self::between(observed, from, to, settled, gap);
        // If growth became much faster, start the run later.
        while run.ratio > 5.0 && run.to - run.from >= 2 * MIN_RUN_WINDOWS {
            let later = (run.from + (run.to - run.from) / 3..=run.to)
                .find(|index| observed.window(*index).survived > 0)?;
            if later <= run.from {
                break;
            }
            let faster = Self::between(observed, later, to, settled, gap);
            // Growth became faster if it continues, and survivors do not only replace older allocations.
            let low = |index: usize| observed.windows.get(index).map_or(0, |window| window.low);
            let rose = low(to).saturating_sub(low(later)) >= faster.survived / 2;
            let idle = observed.now.saturating_sub(observed.bounds(to).1);
            let continues = rose && idle <= faster.duration / 4;
            let whole_duration = if continues { run.whole_duration } else { faster.duration };
            run = Self { whole_duration, ..faster };
        }
        Some(run)
    }

    fn between(
        observed: &ObservedWindows,
        from: usize,
        to: usize,
        settled: usize,
        gap: usize,
    ) -> Self {
        let windows = observed.windows.get(from..=to).unwrap_or_default();
        let mut sizes: Vec<u64> =
            windows.iter().map(|w| w.survived).filter(|survived| *survived > 0).collect();
        sizes.sort_unstable();
        let middle = sizes.get(sizes.len() / 2).copied().unwrap_or(0);
        let sum = |part: &[super::Window], most: u64| {
            part.iter().fold(0_u64, |sum, window| sum.saturating_add(window.survived.min(most)))
        };
        let cap = middle.saturating_mul(3);
        let duration = observed.bounds(to).1.saturating_sub(observed.bounds(from).0);
        let third = (windows.len() / 3).max(1).min(windows.len());
        let first = sum(windows.get(..third).unwrap_or_default(), cap);
        let last = sum(windows.get(windows.len() - third..).unwrap_or_default(), cap);
        Self {
            from,
            to,
            settled,
            gap,
            spread: sizes.len(),
            survived: sum(windows, u64::MAX),
            count: windows.iter().map(|window| u64::from(window.survived_count)).sum(),
            per_hour: per_hour(
                sum(windows.get(1..).unwrap_or_default(), middle.saturating_mul(8)),
                observed.bounds(to).1.saturating_sub(observed.bounds(from).1),
            ),
            duration,
            whole_duration: duration,
            ratio: last as f64 / first.max(1) as f64,
        }
    }

    /// Whether the run is a leak. Each condition excludes a pattern that resembles a leak.
    pub(super) fn is_leak(&self, observed: &ObservedWindows, site: &SiteObservation<'_>) -> bool {
        let long = self.count >= min_survivors(site)
            && self.spread >= MIN_SURVIVOR_WINDOWS
            && self.len() >= MIN_RUN_WINDOWS;
        let dense =
            self.count >= DENSE_SURVIVORS && self.gap == 1 && self.len() >= MIN_DENSE_RUN_WINDOWS;
        (long || dense)
            && self.missing_time(site) == 0
            && self.duration >= self.min_overdue(observed)
            && self.is_ongoing(observed, site)
            && self.is_even()
            && self.raises_live_total(observed)
            && self.exceeds_sampling_error(observed, site)
            && self.is_not_cache_tail(observed)
            && is_above_midpoint(observed, self.survived / self.count.max(1))
    }

    /// Time by which the growth is too short. If it only became faster, the slower growth before
    /// counts, too.
    fn missing_time(&self, site: &SiteObservation<'_>) -> u64 {
        let min = min_duration(site);
        let own = min.saturating_sub(self.duration);
        if self.gap > 1 {
            return own;
        }
        let whole = min.saturating_sub(self.whole_duration);
        own.min(whole.max(min.min(MIN_GROWTH_BUSY_NS).saturating_sub(self.duration)))
    }

    /// Minimum duration because of the due age. The few that outlive the due age are a tail of the
    /// lifetimes, which takes that long to distinguish from a leak. If many do, they are not its tail.
    fn min_overdue(&self, observed: &ObservedWindows) -> u64 {
        let due = observed.due.unwrap_or(0);
        let windows = observed.windows.get(self.from..=self.to).unwrap_or_default();
        let made: u64 = windows.iter().map(|window| u64::from(window.allocated_count)).sum();
        if self.count >= made / 5 { due / 4 } else { due }
    }

    /// Time until the run can be called a leak if it continues as it is; `None` if it does not look
    /// like one, or cannot continue.
    pub(super) fn remaining(
        &self,
        observed: &ObservedWindows,
        site: &SiteObservation<'_>,
    ) -> Option<Nanos> {
        let grows = !site.has_ended
            && self.count >= MIN_EARLY_SURVIVORS
            && self.is_ongoing(observed, site)
            && self.is_even()
            && self.raises_live_total(observed)
            && self.is_not_cache_tail(observed);
        let each = self.duration / self.count.max(1);
        let more = each.saturating_mul(min_survivors(site).saturating_sub(self.count));
        let overdue = self.min_overdue(observed).saturating_sub(self.duration);
        grows.then(|| Nanos(self.missing_time(site).max(overdue).max(more).max(SECOND)))
    }

    fn len(&self) -> usize {
        self.to - self.from + 1
    }

    /// Whether the last growth is recent. If not, it is a plateau.
    fn is_ongoing(&self, observed: &ObservedWindows, site: &SiteObservation<'_>) -> bool {
        let each = self.duration / self.count.max(1);
        let steps =
            if self.gap > 1 { observed.length.saturating_mul(2 * self.gap as u64) } else { 0 };
        let idle = site.now.0.saturating_sub(site.last.0);
        let max_idle = each.saturating_mul(6).max(steps).max(self.duration / 16);
        self.settled - self.to <= (2 * self.gap).max(2) && idle <= max_idle
    }

    /// Whether growth does not slow down. If it does, it is a warm-up. Few survivors vary by
    /// chance.
    fn is_even(&self) -> bool {
        self.ratio >= if self.count < 30 { 0.4 } else { 0.5 }
    }

    /// Whether the live total grows with the survivors. If not, they replace older allocations, as
    /// in a cache.
    fn raises_live_total(&self, observed: &ObservedWindows) -> bool {
        self.rise(observed) >= self.survived / 2
    }

    fn rise(&self, observed: &ObservedWindows) -> u64 {
        let base = if self.from == 0 { 0 } else { observed.floor(self.from) };
        let now = observed.windows.last().map_or(0, |window| window.low);
        now.saturating_sub(base)
    }

    /// Whether the growth of an estimate is more than the variation by chance of a stable total, of
    /// which as many are sampled.
    fn exceeds_sampling_error(
        &self,
        observed: &ObservedWindows,
        site: &SiteObservation<'_>,
    ) -> bool {
        let standard_error = site.live as f64 / (site.live_count.max(1) as f64).sqrt();
        !site.is_sampled || self.rise(observed) as f64 >= MIN_STANDARD_ERRORS * standard_error
    }

    /// Whether the survivors are a relevant share. If not, they are the few long-lived entries of a
    /// cache.
    fn is_not_cache_tail(&self, observed: &ObservedWindows) -> bool {
        let younger = observed.windows.iter().skip(self.settled + 1);
        let younger = younger.fold(0_u64, |sum, window| sum.saturating_add(window.survived));
        self.survived >= younger / 9
    }

    /// Confidence in a leak verdict.
    pub(super) fn confidence(&self, site: &SiteObservation<'_>) -> Confidence {
        let among_frees = site.freed >= MIN_FREES_FOR_DUE_AGE;
        let (count, windows) = (self.count, self.len());
        let is_strong = count >= 30 && windows >= 12 && (0.7..=2.0).contains(&self.ratio);
        let confidence = if is_strong && (among_frees || self.duration >= 60 * SECOND) {
            Confidence::Certain
        } else if count >= 16 && windows >= 8 && (among_frees || self.duration >= 20 * SECOND) {
            Confidence::Likely
        } else {
            Confidence::Possible
        };
        // Less certain: several sites as one, or memory that the program did free in the end.
        let weak = !site.has_stack || site.freed_at_end;
        match confidence {
            Confidence::Certain if weak => Confidence::Likely,
            Confidence::Likely if weak => Confidence::Possible,
            confidence => confidence,
        }
    }
}

const fn min_survivors(site: &SiteObservation<'_>) -> u64 {
    if site.is_sampled { MIN_SAMPLED_SURVIVORS } else { MIN_SURVIVORS }
}

fn per_hour(quantity: u64, time: u64) -> u64 {
    let hourly = u128::from(quantity) * u128::from(Nanos::HOUR.0) / u128::from(time.max(1));
    u64::try_from(hourly).unwrap_or(u64::MAX)
}

/// Newest window whose allocations are all older than the due age.
fn last_settled(observed: &ObservedWindows) -> Option<usize> {
    let due = observed.due.unwrap_or(0);
    (0..observed.windows.len()).rev().find(|index| {
        let (_, ends) = observed.bounds(*index);
        observed.now.saturating_sub(ends) >= due
    })
}

fn min_duration(site: &SiteObservation<'_>) -> u64 {
    if site.freed_at_end {
        MIN_GROWTH_FREED_NS
    } else if site.has_ended {
        MIN_GROWTH_ENDED_NS
    } else if site.freed >= MIN_FREES_FOR_DUE_AGE && site.freed > site.allocated / 2 {
        MIN_GROWTH_BUSY_NS
    } else {
        MIN_GROWTH.0
    }
}

/// Whether the live minimum exceeds that of the first window after the midpoint in some window of
/// the last quarter, by more than one allocation: a window in which one is replaced has a lower
/// minimum.
fn is_above_midpoint(observed: &ObservedWindows, allocation: u64) -> bool {
    let count = observed.windows.len();
    let late = observed.windows.iter().skip(count - count / 4 - 1).map(|window| window.low).max();
    let middle = observed.windows.get(count.div_ceil(2)).map(|window| window.low);
    late > middle.map(|low| low.saturating_add(allocation))
}
