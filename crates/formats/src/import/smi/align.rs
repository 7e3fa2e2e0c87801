//! When a log and a file were taken at the same time, their memory rises and falls together.
//!
//! The levels differ: the driver counts contexts, code and the reserve of pools too. So the *changes*
//! are compared. Both series are cut into bins of equal length, the change in each bin is taken, and
//! spread a little over its neighbours, since a log sees a change up to one interval late. For each
//! shift of one against the other the score is their correlation: the sum of products over the
//! geometric mean of the sums of squares, 1 for the same shape and 0 for no relation. The best shift is
//! looked for in coarse bins first, and then around it in finer ones.

use engine::units::Moment;

use super::Series;

/// Bins that a series is cut into at most.
const BINS: usize = 4096;

/// The finest bins, in nanoseconds: logs are not taken more often.
const FINEST: i64 = 10_000_000;

/// Lower scores are no evidence.
const ENOUGH: f64 = 0.5;

/// Another shift that scores nearly as well leaves the choice open.
const CLOSE: f64 = 0.95;

/// How a log relates to a file.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Aligned {
    /// What to add to a time of the log to get a moment, in nanoseconds.
    pub offset: i64,
    /// How well the changes agree: 1 is the same shape, 0 no relation. Known even where the offset
    /// was given.
    pub score: f64,
}

/// The log and the file do not belong together, or nothing tells how.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum Unlike {
    /// One of them never changes.
    #[error("memory does not change in one of the two; set --smi-offset")]
    Still,
    /// The changes do not agree.
    #[error("log and file do not match (score {score:.2}, need {ENOUGH}); set --smi-offset")]
    Poor {
        /// The best score.
        score: f64,
    },
    /// They agree about as well at two different times.
    #[error(
        "changes of the two agree about as well at two times (scores {score:.2} and {other:.2}); set \
         --smi-offset"
    )]
    Unclear {
        /// The best score.
        score: f64,
        /// The best one of another time.
        other: f64,
    },
}

/// Finds how the times of a log become moments. `usage` is the used memory of the same GPU by moment,
/// in the order of time. An `offset` that is given is taken as it is.
///
/// # Errors
///
/// No offset is given, and the shapes do not tell one.
pub fn align(
    log: &Series,
    usage: &[(Moment, u64)],
    offset: Option<i64>,
) -> Result<Aligned, Unlike> {
    let usage: Vec<(i64, u64)> = usage
        .iter()
        .map(|&(Moment(at), bytes)| (i64::try_from(at).unwrap_or(i64::MAX), bytes))
        .collect();
    let (Some(log_span), Some(usage_span)) = (span(&log.points), span(&usage)) else {
        return offset.map_or(Err(Unlike::Still), |offset| Ok(Aligned { offset, score: 0.0 }));
    };
    let longest = length(log_span).max(length(usage_span));
    let coarse = (longest / BINS as i64).max(FINEST);
    if let Some(offset) = offset {
        let moved = usage_span.0.saturating_sub(offset);
        let ours = bins(&usage, usage_span.0, coarse, length(usage_span));
        let theirs = bins(&log.points, moved, coarse, length(usage_span));
        return Ok(Aligned { offset, score: score(&ours, &theirs, 0) });
    }
    let ours = bins(&usage, usage_span.0, coarse, length(usage_span));
    let theirs = bins(&log.points, log_span.0, coarse, length(log_span));
    let (shift, best, other) = best(&ours, &theirs).ok_or(Unlike::Still)?;
    if best < ENOUGH {
        return Err(Unlike::Poor { score: best });
    }
    if other > best * CLOSE {
        return Err(Unlike::Unclear { score: best, other });
    }
    let begin = log_span.0.saturating_add(coarse.saturating_mul(shift));
    let offset = usage_span.0.saturating_sub(begin);
    Ok(refine(&log.points, &usage, usage_span, Aligned { offset, score: best }, coarse))
}

/// Looks around a coarse answer in finer and finer bins.
fn refine(
    log: &[(i64, u64)],
    usage: &[(i64, u64)],
    usage_span: (i64, i64),
    coarse: Aligned,
    width: i64,
) -> Aligned {
    let mut found = coarse;
    let mut step = width;
    while step > FINEST / 4 {
        step = (step / 2).max(1);
        let bin = step.max(FINEST);
        // Only the part with changes is needed, but never more than a bound of bins.
        let length = length(usage_span).min(bin.saturating_mul(16 * BINS as i64));
        let ours = bins(usage, usage_span.0, bin, length);
        let around = [-2, -1, 0, 1, 2].map(|steps: i64| {
            let offset = found.offset.saturating_add(steps.saturating_mul(step));
            let theirs = bins(log, usage_span.0.saturating_sub(offset), bin, length);
            Aligned { offset, score: score(&ours, &theirs, 0) }
        });
        let better = around.into_iter().max_by(|a, b| a.score.total_cmp(&b.score));
        found.offset = better.map_or(found.offset, |better| better.offset);
    }
    found
}

fn span(points: &[(i64, u64)]) -> Option<(i64, i64)> {
    let (first, last) = (points.first()?, points.last()?);
    let changes = points.windows(2).any(|pair| matches!(pair, [(_, a), (_, b)] if a != b));
    (changes && last.0 > first.0).then_some((first.0, last.0))
}

const fn length(span: (i64, i64)) -> i64 {
    span.1.saturating_sub(span.0)
}

/// The changes in bins of `width` from `begin` on, spread over neighbours.
fn bins(points: &[(i64, u64)], begin: i64, width: i64, length: i64) -> Vec<f64> {
    let count = usize::try_from(length / width).unwrap_or(0).min(16 * BINS) + 1;
    let mut sharp = vec![0.0; count];
    for pair in points.windows(2) {
        let [(_, before), (at, after)] = pair else { continue };
        let Ok(bin) = usize::try_from(at.saturating_sub(begin).div_euclid(width)) else { continue };
        if let Some(slot) = sharp.get_mut(bin) {
            *slot += *after as f64 - *before as f64;
        }
    }
    let mut spread = vec![0.0; count];
    for (at, &change) in sharp.iter().enumerate() {
        for (near, weight) in [(at.checked_sub(1), 0.25), (Some(at), 0.5), (Some(at + 1), 0.25)] {
            if let Some(slot) = near.and_then(|near| spread.get_mut(near)) {
                *slot += weight * change;
            }
        }
    }
    spread
}

/// How well `ours` agrees with `theirs` from bin `shift` on.
fn score(ours: &[f64], theirs: &[f64], shift: i64) -> f64 {
    let (mut product, mut left, mut right) = (0.0, 0.0, 0.0);
    for (at, &mine) in (shift..).zip(ours) {
        let other = usize::try_from(at).ok().and_then(|at| theirs.get(at)).copied().unwrap_or(0.0);
        product += mine * other;
        left += mine * mine;
        right += other * other;
    }
    if left > 0.0 && right > 0.0 { product / (left * right).sqrt() } else { 0.0 }
}

/// The best shift, its score, and the best score of a shift that is not beside it.
fn best(ours: &[f64], theirs: &[f64]) -> Option<(i64, f64, f64)> {
    // Half of the file at least has to be in the log.
    let half = i64::try_from(ours.len() / 2).ok()?;
    let most = i64::try_from(theirs.len()).ok()?.saturating_sub(half);
    let scores: Vec<(i64, f64)> =
        (-half..=most).map(|shift| (shift, score(ours, theirs, shift))).collect();
    let &(shift, best) = scores.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let apart = scores.iter().filter(|(other, _)| (other - shift).abs() > 4);
    let other = apart.map(|&(_, score)| score).fold(0.0, f64::max);
    Some((shift, best, other))
}
