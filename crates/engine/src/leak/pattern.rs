//! Verdicts other than a leak.

use super::{ObservedWindows, SiteObservation};
use crate::verdict::{Confidence, Verdict};

/// Minimum number of windows for a verdict.
const MIN_WINDOWS: usize = 6;

/// Minimum observation time of a running process, in nanoseconds.
const MIN_OBSERVED_NS: u64 = 2_000_000_000;

/// Minimum number of allocations to assess growth.
const MIN_ALLOCATIONS: u64 = 8;

/// Minimum number of returns to the same level for a periodic verdict.
const MIN_RETURNS: u32 = 3;

/// Returns verdict and confidence for a site that does not leak.
pub(super) fn classify_non_leak(
    observed: &ObservedWindows,
    site: &SiteObservation<'_>,
) -> (Verdict, Confidence) {
    let count = observed.windows.len();
    if count < MIN_WINDOWS || (!site.has_ended && observed.duration() < MIN_OBSERVED_NS) {
        return (Verdict::NotEnoughData, Confidence::Possible);
    }
    let verdict = pattern(observed, site);
    let confidence = match (verdict, site.allocated) {
        (Verdict::NotEnoughData, _) => Confidence::Possible,
        (Verdict::Plateau | Verdict::Burst, _) if observed.duration() >= 10 * MIN_OBSERVED_NS => {
            Confidence::Likely
        }
        (Verdict::Cache | Verdict::Periodic, 64..) if count >= 12 => Confidence::Likely,
        _ => Confidence::Possible,
    };
    (verdict, confidence)
}

fn pattern(observed: &ObservedWindows, site: &SiteObservation<'_>) -> Verdict {
    let peak = observed.windows.iter().map(|window| window.high).max().unwrap_or(0);
    if returns(observed) >= MIN_RETURNS {
        return Verdict::Periodic;
    }
    let at_half_time = observed.window(observed.windows.len() / 2).low;
    if site.live <= peak / 8 || site.live <= at_half_time / 2 {
        return Verdict::Burst;
    }
    if is_growing(observed) {
        let few = site.allocated < MIN_ALLOCATIONS;
        return if few { Verdict::NotEnoughData } else { Verdict::RampUp };
    }
    if is_renewed(observed, site) { Verdict::Cache } else { Verdict::Plateau }
}

/// Counts how often the level rose and fell back, if it still does. A lower bound: within a window,
/// the order of minimum and maximum is unknown.
pub(super) fn returns(observed: &ObservedWindows) -> u32 {
    let rest = observed.windows.get(1..).unwrap_or_default();
    let lowest = rest.iter().map(|window| window.low).min().unwrap_or(0);
    let peak = rest.iter().map(|window| window.high).max().unwrap_or(0);
    if lowest > peak / 3 || peak == 0 {
        return 0;
    }
    let quarter = (peak - lowest) / 4;
    let (down, up) = (lowest.saturating_add(quarter), lowest.saturating_add(2 * quarter.max(1)));
    // It still does only if the level was low at some time in the second half.
    let late = rest.get(rest.len() / 2..).unwrap_or_default();
    if !late.iter().any(|window| window.low <= down) {
        return 0;
    }
    let (mut count, mut is_up) = (0, false);
    for window in rest {
        let fell = if is_up {
            window.low <= down
        } else {
            is_up = window.high >= up;
            is_up && window.end <= down
        };
        if fell {
            count += 1;
            is_up = window.end >= up;
        }
    }
    count
}

/// Whether the last quarter is nowhere below the quarter before, and at least 1/30 above it at the
/// end.
fn is_growing(observed: &ObservedWindows) -> bool {
    let count = observed.windows.len();
    let lows: Vec<u64> = observed.windows.iter().map(|window| window.low).collect();
    let (before, late) = lows.split_at(count - (count / 4).max(1));
    let level = before.iter().skip(count / 2).max().copied().unwrap_or(0);
    let now = late.last().copied().unwrap_or(0);
    now.saturating_sub(level) > now / 30 && late.iter().all(|low| *low >= level)
}

/// Whether less than half of the live quantity is from the first half of the time.
fn is_renewed(observed: &ObservedWindows, site: &SiteObservation<'_>) -> bool {
    let half = observed.windows.len() / 2;
    let old = observed.windows.iter().take(half);
    let old = old.fold(0_u64, |sum, window| sum.saturating_add(window.survived));
    site.freed > 0 && old <= site.live / 2
}
