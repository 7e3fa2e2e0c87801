//! Alignment of a log with a file: if both were taken at the same time, their memory rises and
//! falls together.
//!
//! The levels differ: the driver also counts contexts, code and pool reservations. So the *changes*
//! are compared. Both series are cut into bins of equal length. The change in each bin is taken,
//! and spread a little over its neighbors, since a log shows a change up to one interval late. For
//! each shift of one against the other, the score is their correlation: the sum of products over
//! the geometric mean of the sums of squares, 1 for the same shape and 0 for no relation. The best
//! shift is searched in coarse bins first, and then around it in finer ones.

use engine::model::Timestamp;

use super::GpuSeries;

/// Maximum number of bins of a series.
const MAX_BINS: usize = 4096;

/// Minimum width of a bin, in nanoseconds: logs are not taken more often.
const MIN_BIN_NS: i64 = 10_000_000;

/// Minimum score of a match.
const MIN_SCORE: f64 = 0.5;

/// A different shift with at least this share of the best score makes the match ambiguous.
const AMBIGUITY_RATIO: f64 = 0.95;

/// Alignment of a log with a file.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Alignment {
    /// Offset from a time of the log to a timestamp, in nanoseconds.
    pub offset: i64,
    /// Agreement of the changes: 1 is the same shape, 0 no relation. Also computed if the offset
    /// was given.
    pub score: f64,
}

/// Reason why the log and the file cannot be aligned.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum AlignmentError {
    /// Memory never changes in one of them.
    #[error("memory does not change in one of the two; set --smi-offset")]
    Still,
    /// The changes do not agree.
    #[error("log and file do not match (score {score:.2}, need {MIN_SCORE}); set --smi-offset")]
    Poor {
        /// Best score.
        score: f64,
    },
    /// The changes agree about as well at two different times.
    #[error(
        "changes of the two agree about as well at two times (scores {score:.2} and {other:.2}); set \
         --smi-offset"
    )]
    Unclear {
        /// Best score.
        score: f64,
        /// Best score at another time.
        other: f64,
    },
}

/// Aligns a log with a file. `usage` is the used memory of the same GPU, in the order of time. A
/// given `offset` is used unchanged.
///
/// # Errors
///
/// No offset is given, and the shapes do not determine one.
pub fn align(
    log: &GpuSeries,
    usage: &[(Timestamp, u64)],
    offset: Option<i64>,
) -> Result<Alignment, AlignmentError> {
    let usage: Vec<(i64, u64)> = usage
        .iter()
        .map(|&(Timestamp(at), bytes)| (i64::try_from(at).unwrap_or(i64::MAX), bytes))
        .collect();
    let (Some(log_span), Some(usage_span)) = (span(&log.points), span(&usage)) else {
        return offset
            .map_or(Err(AlignmentError::Still), |offset| Ok(Alignment { offset, score: 0.0 }));
    };
    let longest = length(log_span).max(length(usage_span));
    let coarse = (longest / MAX_BINS as i64).max(MIN_BIN_NS);
    if let Some(offset) = offset {
        let log_start = usage_span.0.saturating_sub(offset);
        let usage_bins = bins(&usage, usage_span.0, coarse, length(usage_span));
        let log_bins = bins(&log.points, log_start, coarse, length(usage_span));
        return Ok(Alignment { offset, score: score(&usage_bins, &log_bins, 0) });
    }
    let usage_bins = bins(&usage, usage_span.0, coarse, length(usage_span));
    let log_bins = bins(&log.points, log_span.0, coarse, length(log_span));
    let (shift, best, other) = best(&usage_bins, &log_bins).ok_or(AlignmentError::Still)?;
    if best < MIN_SCORE {
        return Err(AlignmentError::Poor { score: best });
    }
    if other > best * AMBIGUITY_RATIO {
        return Err(AlignmentError::Unclear { score: best, other });
    }
    let log_begin = log_span.0.saturating_add(coarse.saturating_mul(shift));
    let offset = usage_span.0.saturating_sub(log_begin);
    Ok(refine(&log.points, &usage, usage_span, Alignment { offset, score: best }, coarse))
}

/// Refines a coarse alignment in finer and finer bins.
fn refine(
    log: &[(i64, u64)],
    usage: &[(i64, u64)],
    usage_span: (i64, i64),
    coarse: Alignment,
    width: i64,
) -> Alignment {
    let mut best = coarse;
    let mut step = width;
    while step > MIN_BIN_NS / 4 {
        step = (step / 2).max(1);
        let bin = step.max(MIN_BIN_NS);
        // Only the part with changes is needed, up to a limit of bins.
        let length = length(usage_span).min(bin.saturating_mul(16 * MAX_BINS as i64));
        let usage_bins = bins(usage, usage_span.0, bin, length);
        let candidates = [-2, -1, 0, 1, 2].map(|steps: i64| {
            let offset = best.offset.saturating_add(steps.saturating_mul(step));
            let log_bins = bins(log, usage_span.0.saturating_sub(offset), bin, length);
            Alignment { offset, score: score(&usage_bins, &log_bins, 0) }
        });
        let better = candidates.into_iter().max_by(|a, b| a.score.total_cmp(&b.score));
        best.offset = better.map_or(best.offset, |better| better.offset);
    }
    best
}

fn span(points: &[(i64, u64)]) -> Option<(i64, i64)> {
    let (first, last) = (points.first()?, points.last()?);
    let changes = points.windows(2).any(|pair| matches!(pair, [(_, a), (_, b)] if a != b));
    (changes && last.0 > first.0).then_some((first.0, last.0))
}

const fn length(span: (i64, i64)) -> i64 {
    span.1.saturating_sub(span.0)
}

/// Changes of a series in bins of equal length. Most bins have none.
struct Bins {
    count: i64,
    /// Number and change of each bin that has one, in order.
    changes: Vec<(i64, f64)>,
}

/// Returns the changes in bins of `width` starting at `begin`, spread over neighbors.
fn bins(points: &[(i64, u64)], begin: i64, width: i64, length: i64) -> Bins {
    let count = (length / width).min(16 * MAX_BINS as i64) + 1;
    let changes = points.windows(2).filter_map(|pair| {
        let [(_, before), (at, after)] = pair else { return None };
        let bin = at.saturating_sub(begin).div_euclid(width);
        (0..count).contains(&bin).then_some((bin, *after as f64 - *before as f64))
    });
    let near = [(-1, 0.25), (0, 0.5), (1, 0.25)];
    let spread = sum_equal(changes.collect())
        .into_iter()
        .flat_map(|(bin, change)| near.map(|(distance, weight)| (bin + distance, weight * change)));
    let mut spread: Vec<_> = spread.filter(|(bin, _)| (0..count).contains(bin)).collect();
    spread.sort_by_key(|(bin, _)| *bin);
    Bins { count, changes: sum_equal(spread) }
}

/// Adds up the changes of the same bin, which are next to each other.
fn sum_equal(mut changes: Vec<(i64, f64)>) -> Vec<(i64, f64)> {
    changes.dedup_by(|next, sum| {
        let same = next.0 == sum.0;
        sum.1 += if same { next.1 } else { 0.0 };
        same
    });
    changes
}

/// Returns the agreement of `ours` with `theirs` from bin `shift` on.
fn score(ours: &Bins, theirs: &Bins, shift: i64) -> f64 {
    let from = theirs.changes.partition_point(|(bin, _)| *bin < shift);
    let theirs = theirs.changes.get(from..).unwrap_or_default();
    let overlap = theirs.iter().take_while(|(bin, _)| bin - shift < ours.count);
    let mut overlap = overlap.map(|&(bin, change)| (bin - shift, change)).peekable();
    let (mut product, mut left, mut right) = (0.0, 0.0, 0.0);
    for &(bin, own) in &ours.changes {
        left += own * own;
        while let Some((at, other)) = overlap.next_if(|(at, _)| *at <= bin) {
            right += other * other;
            product += if at == bin { own * other } else { 0.0 };
        }
    }
    right = overlap.fold(right, |sum, (_, other)| sum + other * other);
    if left > 0.0 && right > 0.0 { product / (left * right).sqrt() } else { 0.0 }
}

/// Returns the best shift, its score, and the best score of a shift that is not adjacent to it.
fn best(ours: &Bins, theirs: &Bins) -> Option<(i64, f64, f64)> {
    // At least half of the file has to be in the log.
    let half = ours.count / 2;
    let max = theirs.count.saturating_sub(half);
    let scores: Vec<(i64, f64)> =
        (-half..=max).map(|shift| (shift, score(ours, theirs, shift))).collect();
    let &(shift, best) = scores.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let others = scores.iter().filter(|(other, _)| (other - shift).abs() > 4);
    let other = others.map(|&(_, score)| score).fold(0.0, f64::max);
    Some((shift, best, other))
}
