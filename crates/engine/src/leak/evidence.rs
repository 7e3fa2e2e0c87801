//! Values that support a verdict.
#![allow(clippy::cast_possible_truncation, reason = "fewer windows than 2^32")]

use super::growth_run::GrowthRun;
use super::usage_trend::median_slope;
use super::{ObservedWindows, SiteObservation, pattern};
use crate::model::Nanos;
use crate::verdict::{Evidence, Verdict};

/// Computes the evidence.
pub(super) fn of(
    observed: &ObservedWindows,
    site: &SiteObservation<'_>,
    verdict: Verdict,
    run: Option<&GrowthRun>,
) -> Evidence {
    let window_min: Vec<u64> = observed.windows.iter().map(|window| window.low).collect();
    let steps = |wanted: std::cmp::Ordering| {
        let steps = window_min.windows(2).filter(|pair| pair.last().cmp(&pair.first()) == wanted);
        steps.count() as u32
    };
    Evidence {
        live: site.live,
        live_count: site.live_count,
        window: Nanos(observed.length),
        peak: observed.windows.iter().map(|window| window.high).max().unwrap_or(site.live),
        level: level(observed, site.live),
        returns: pattern::returns(observed),
        steps: (window_min.len() as u32).saturating_sub(1),
        growing_steps: steps(std::cmp::Ordering::Greater),
        shrinking_steps: steps(std::cmp::Ordering::Less),
        growth_per_hour: match (run, verdict) {
            (Some(run), _) => run.per_hour,
            (None, Verdict::RampUp | Verdict::NotEnoughData) => slope(observed),
            _ => 0,
        },
        created: site.allocated,
        freed: site.freed,
        observed: Nanos(observed.duration()),
        median_age: median_age(observed),
        oldest: oldest(observed),
        mean_age: site.mean_age,
        mean_life: site.mean_life,
        median_life: site.lifetimes.median(),
        longest_life: site.lifetimes.max(),
        overdue: overdue(observed),
        window_min,
        ..Evidence::default()
    }
}

/// Median slope per hour of the second half.
fn slope(observed: &ObservedWindows) -> u64 {
    let half = observed.windows.len() / 2;
    let late = observed.windows.iter().enumerate().skip(half);
    let points: Vec<_> = late
        .map(|(index, window)| (observed.length.saturating_mul(index as u64), window.low))
        .collect();
    u64::try_from(median_slope(&points).unwrap_or(0).max(0)).unwrap_or(u64::MAX)
}

/// Minimum and maximum of the live quantity in the second half.
fn level(observed: &ObservedWindows, live: u64) -> (u64, u64) {
    let late = || observed.windows.iter().skip(observed.windows.len() / 2);
    let low = late().map(|window| window.low).min().unwrap_or(live);
    (low, late().map(|window| window.high).max().unwrap_or(live))
}

/// Lower bound of the age of at least half of the live allocations.
fn median_age(observed: &ObservedWindows) -> Option<Nanos> {
    let counts = || observed.windows.iter().map(|window| u64::from(window.survived_count));
    let half = counts().sum::<u64>().div_ceil(2);
    let mut before = 0;
    let found = counts().position(|count| {
        before += count;
        count > 0 && before >= half
    })?;
    Some(Nanos(observed.now.saturating_sub(observed.bounds(found).1)))
}

/// Upper bound of the age of all live allocations.
fn oldest(observed: &ObservedWindows) -> Option<Nanos> {
    let found = observed.windows.iter().position(|window| window.survived_count > 0)?;
    Some(Nanos(observed.now.saturating_sub(observed.bounds(found).0)))
}

/// Quantity older than the due age; 0 if nothing was freed.
fn overdue(observed: &ObservedWindows) -> u64 {
    let Some(due) = observed.due else { return 0 };
    let old = (0..observed.windows.len()).filter(|index| {
        let (_, ends) = observed.bounds(*index);
        observed.now.saturating_sub(ends) >= due
    });
    old.fold(0, |sum, index| sum.saturating_add(observed.window(index).survived))
}
