//! What a verdict rests on, in figures.

use super::era::Era;
use super::{Case, Past, shape};
use crate::units::Nanos;
use crate::verdict::{Evidence, Verdict};

/// The figures.
pub(super) fn of(past: &Past, case: &Case<'_>, verdict: Verdict, era: Option<&Era>) -> Evidence {
    let lows: Vec<u64> = past.windows.iter().map(|window| window.low).collect();
    let steps = |wanted: std::cmp::Ordering| {
        let steps = lows.windows(2).filter(|pair| pair.last().cmp(&pair.first()) == wanted);
        steps.count() as u32
    };
    Evidence {
        live: case.live,
        live_count: case.live_count,
        window: Nanos(past.length),
        peak: past.windows.iter().map(|window| window.high).max().unwrap_or(case.live),
        level: level(past, case.live),
        returns: shape::returns(past),
        steps: (lows.len() as u32).saturating_sub(1),
        growing_steps: steps(std::cmp::Ordering::Greater),
        shrinking_steps: steps(std::cmp::Ordering::Less),
        per_hour: match (era, verdict) {
            (Some(era), _) => era.per_hour,
            (None, Verdict::RampUp | Verdict::NotEnoughData) => slope(past),
            _ => 0,
        },
        begun: case.begun,
        ended: case.ended,
        watched: Nanos(past.watched()),
        median_age: median_age(past),
        oldest: oldest(past),
        mean_age: case.mean_age,
        mean_life: case.mean_life,
        median_life: case.spans.median(),
        longest_life: case.spans.longest(),
        overdue: overdue(past),
        full_in: None,
        tensors: None,
        lows,
    }
}

/// The middle of all slopes between two windows of the last half, per hour.
fn slope(past: &Past) -> u64 {
    let half = past.windows.len() / 2;
    let late: Vec<(usize, u64)> =
        past.windows.iter().map(|window| window.low).enumerate().skip(half).collect();
    let mut slopes = Vec::new();
    for (place, (from, before)) in late.iter().enumerate() {
        for (to, after) in late.iter().skip(place + 1) {
            let time = (to - from) as u128 * u128::from(past.length.max(1));
            let change = i128::from(*after) - i128::from(*before);
            slopes.push(change * 3_600_000_000_000 / time.max(1) as i128);
        }
    }
    slopes.sort_unstable();
    let middle = slopes.get(slopes.len() / 2).copied().unwrap_or(0);
    u64::try_from(middle.max(0)).unwrap_or(u64::MAX)
}

/// The least and the most that was live since half time.
fn level(past: &Past, live: u64) -> (u64, u64) {
    let late = || past.windows.iter().skip(past.windows.len() / 2);
    let low = late().map(|window| window.low).min().unwrap_or(live);
    (low, late().map(|window| window.high).max().unwrap_or(live))
}

/// What at least half of what is live is older than: its youngest window's end.
fn median_age(past: &Past) -> Option<Nanos> {
    let counts = || past.windows.iter().map(|window| u64::from(window.kept_count));
    let half = counts().sum::<u64>().div_ceil(2);
    let mut before = 0;
    let found = counts().position(|count| {
        before += count;
        count > 0 && before >= half
    })?;
    Some(Nanos(past.now.saturating_sub(past.bounds(found).1)))
}

/// What nothing that is live is older than: the beginning of its oldest window.
fn oldest(past: &Past) -> Option<Nanos> {
    let found = past.windows.iter().position(|window| window.kept_count > 0)?;
    Some(Nanos(past.now.saturating_sub(past.bounds(found).0)))
}

/// What is older than nearly everything that was freed became; nothing where nothing was freed.
fn overdue(past: &Past) -> u64 {
    let Some(due) = past.due else { return 0 };
    let old = (0..past.windows.len()).filter(|index| {
        let (_, ends) = past.bounds(*index);
        past.now.saturating_sub(ends) >= due
    });
    old.fold(0, |sum, index| sum.saturating_add(past.window(index).kept))
}
