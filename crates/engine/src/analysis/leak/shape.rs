//! What a place does that does not leak.

use super::{Case, Past};
use crate::verdict::{Sureness, Verdict};

/// Windows that a verdict needs.
const ENOUGH: usize = 6;

/// How long a running place must have been watched, in nanoseconds.
const LONG_ENOUGH: u64 = 2_000_000_000;

/// Births from which on growth can be judged.
const BIRTHS: u64 = 8;

/// Returns to the same level that make it a habit.
const RETURNS: u32 = 3;

/// The verdict.
pub(super) fn of(past: &Past, case: &Case<'_>) -> (Verdict, Sureness) {
    let count = past.windows.len();
    if count < ENOUGH || (!case.over && past.watched() < LONG_ENOUGH) {
        return (Verdict::NotEnoughData, Sureness::Possible);
    }
    let verdict = name(past, case);
    let sureness = match (verdict, case.begun) {
        (Verdict::NotEnoughData, _) => Sureness::Possible,
        (Verdict::Plateau | Verdict::Burst, _) if past.watched() >= 10 * LONG_ENOUGH => {
            Sureness::Likely
        }
        (Verdict::Cache | Verdict::Periodic, 64..) if count >= 12 => Sureness::Likely,
        _ => Sureness::Possible,
    };
    (verdict, sureness)
}

fn name(past: &Past, case: &Case<'_>) -> Verdict {
    let peak = past.windows.iter().map(|window| window.high).max().unwrap_or(0);
    if returns(past) >= RETURNS {
        return Verdict::Periodic;
    }
    let at_half_time = past.window(past.windows.len() / 2).low;
    if case.live <= peak / 8 || case.live <= at_half_time / 2 {
        return Verdict::Burst;
    }
    if is_growing(past) {
        let few = case.begun < BIRTHS;
        return if few { Verdict::NotEnoughData } else { Verdict::RampUp };
    }
    if is_renewed(past, case) { Verdict::Cache } else { Verdict::Plateau }
}

/// How often it went up and came back to where it was, where it still does. At least as often it did:
/// a window does not say whether its least came before its most.
pub(super) fn returns(past: &Past) -> u32 {
    let rest = past.windows.get(1..).unwrap_or_default();
    let lowest = rest.iter().map(|window| window.low).min().unwrap_or(0);
    let peak = rest.iter().map(|window| window.high).max().unwrap_or(0);
    if lowest > peak / 3 || peak == 0 {
        return 0;
    }
    let quarter = (peak - lowest) / 4;
    let (down, up) = (lowest.saturating_add(quarter), lowest.saturating_add(2 * quarter.max(1)));
    // It is still so: it was down in the last half, and the last third is not above the others.
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

/// The last quarter is nowhere below the one before it, and by a thirtieth above it in the end.
fn is_growing(past: &Past) -> bool {
    let count = past.windows.len();
    let lows: Vec<u64> = past.windows.iter().map(|window| window.low).collect();
    let (before, late) = lows.split_at(count - (count / 4).max(1));
    let level = before.iter().skip(count / 2).max().copied().unwrap_or(0);
    let now = late.last().copied().unwrap_or(0);
    now.saturating_sub(level) > now / 30 && late.iter().all(|low| *low >= level)
}

/// Less than half of what is live is from the first half of its life.
fn is_renewed(past: &Past, case: &Case<'_>) -> bool {
    let half = past.windows.len() / 2;
    let old = past.windows.iter().take(half);
    let old = old.fold(0_u64, |sum, window| sum.saturating_add(window.kept));
    case.ended > 0 && old <= case.live / 2
}
