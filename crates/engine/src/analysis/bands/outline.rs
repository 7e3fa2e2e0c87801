//! First pass: the total over time, the peak of each band, and the sample points.

use std::cmp::Reverse;

use hashbrown::HashMap;

use super::super::{Amount, Measure, Place, Running};
use super::{Band, By};
use crate::change::{Change, How, Turn};
use crate::units::Moment;

/// Limit of time buckets. The length of the file is not known in advance: when the limit is
/// reached, neighboring buckets are merged.
const SPANS: u64 = 1 << 16;

/// Sample points per bucket: lowest, highest, last.
const MOMENTS: usize = 3;

/// The total after a change, and the number of that change.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    number: u64,
    at: Moment,
    sum: Running,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    number: u64,
    low: Mark,
    high: Mark,
    last: Mark,
}

/// Running values of a band.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    began: Amount,
    freed: u64,
    exited: Amount,
    live: Running,
    count: i64,
    peak: Running,
    peak_at: Moment,
}

/// Totals of a band after the first pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Total {
    /// The band.
    pub band: Band,
    /// All allocations.
    pub began: Amount,
    /// Number freed by the program.
    pub freed: u64,
    /// Live at the end of the file.
    pub live: Amount,
    /// Live when their process ended.
    pub exited: Amount,
    /// Peak size.
    pub peak_bytes: u64,
    /// When the peak was first reached.
    pub peak_at: Moment,
}

/// First pass over a file: computes the total over time and the totals of each band.
#[derive(Clone, Debug, Default)]
pub struct Outline {
    measure: Measure,
    /// Number of changes counted.
    number: u64,
    first: Option<Moment>,
    now: Running,
    peak: Mark,
    last: Mark,
    /// Buckets are 2^`shift` ns long.
    shift: u32,
    spans: Vec<Span>,
    sums: [HashMap<u64, Sum>; By::ALL.len()],
}

/// Result of the first pass.
#[derive(Clone, Debug)]
pub struct Drawn {
    pub(super) measure: Measure,
    /// Number of changes counted.
    pub changes: u64,
    /// Times of the first and last change.
    pub span: Option<(Moment, Moment)>,
    /// Peak of the total.
    pub peak_bytes: u64,
    /// When the peak was first reached.
    pub peak_at: Moment,
    pub(super) peak_number: u64,
    spans: Vec<Span>,
    /// Bands by [`GroupBy`], highest peak first.
    totals: [Vec<Total>; By::ALL.len()],
}

/// Changes after which the bands are sampled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Moments {
    /// After every counted change.
    Every,
    /// After the changes with these numbers, ascending.
    Some(Vec<u64>),
}

impl Outline {
    /// Creates an empty scan; `measure` selects the memory that counts.
    #[must_use]
    pub fn new(measure: Measure) -> Self {
        Self { measure, ..Self::default() }
    }

    /// Adds a change.
    pub fn change(&mut self, change: &Change) {
        if !self.measure.counts(change.kind) {
            return;
        }
        self.number += 1;
        let group = Place::of(change);
        let Change { at, bytes, .. } = *change;
        match change.what {
            Turn::Began => {
                self.now.add(bytes);
                self.each(&group, |sum| sum.begin(bytes, at));
            }
            Turn::Ended { how, .. } => {
                self.now.take(bytes);
                self.each(&group, |sum| sum.end(bytes, how));
            }
            Turn::Learned { before, .. } => {
                self.now.take(before.bytes);
                self.each(&group.on(before.device), |sum| sum.unlearn(before.bytes));
                self.now.add(bytes);
                self.each(&group, |sum| sum.begin(bytes, at));
            }
        }
        self.mark(at);
    }

    fn each(&mut self, group: &Place, mut to: impl FnMut(&mut Sum)) {
        for (by, sums) in By::ALL.into_iter().zip(&mut self.sums) {
            to(sums.entry(by.key(group)).or_default());
        }
    }

    fn mark(&mut self, at: Moment) {
        let mark = Mark { number: self.number, at, sum: self.now };
        if mark.sum > self.peak.sum {
            self.peak = mark;
        }
        self.last = mark;
        let since = at - *self.first.get_or_insert(at);
        let mut number = since.0.checked_shr(self.shift).unwrap_or(0);
        while number >= SPANS {
            self.shift += 1;
            number >>= 1;
            for span in &mut self.spans {
                span.number >>= 1;
            }
            join(&mut self.spans);
        }
        let span = Span { number, low: mark, high: mark, last: mark };
        match self.spans.last_mut() {
            Some(last) if last.number >= number => last.merge(&span),
            _ => self.spans.push(span),
        }
    }

    /// Returns the result.
    #[must_use]
    pub fn finish(self) -> Drawn {
        let totals = |(by, sums): (By, HashMap<u64, Sum>)| {
            let mut all: Vec<_> = sums.into_iter().collect();
            all.sort_by_key(|(key, sum)| (Reverse(sum.peak), *key));
            all.into_iter().map(|(key, sum)| sum.total(by.band(key))).collect::<Vec<Total>>()
        };
        let [kinds, sites, processes, devices] = self.sums;
        Drawn {
            measure: self.measure,
            changes: self.number,
            span: self.first.map(|first| (first, self.last.at)),
            peak_bytes: self.peak.sum.shown(),
            peak_at: self.peak.at,
            peak_number: self.peak.number,
            spans: self.spans,
            totals: [
                totals((By::Kind, kinds)),
                totals((By::Site, sites)),
                totals((By::Process, processes)),
                totals((By::Device, devices)),
            ],
        }
    }
}

impl Drawn {
    /// All bands, highest peak first.
    #[must_use]
    pub fn totals(&self, by: By) -> &[Total] {
        self.totals.get(by.index()).map_or(&[], |totals| totals)
    }

    /// Selects sample points for a chart with at most `points` points: every change if there are
    /// few enough, else the lowest, highest and last point of equal time buckets.
    #[must_use]
    pub fn moments(&self, points: usize) -> Moments {
        if usize::try_from(self.changes).is_ok_and(|changes| changes <= points) {
            return Moments::Every;
        }
        let columns = (points / MOMENTS).max(1) as u64;
        let all = self.spans.last().map_or(1, |span| span.number.saturating_add(1));
        let mut spans = self.spans.clone();
        for span in &mut spans {
            // Both are at most 2^16, so the product cannot overflow.
            span.number = span.number * columns.min(all) / all.max(1);
        }
        join(&mut spans);
        let mut numbers: Vec<u64> = spans
            .iter()
            .flat_map(|span| [span.low.number, span.high.number, span.last.number])
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        Moments::Some(numbers)
    }
}

/// Merges neighboring buckets with the same number.
fn join(spans: &mut Vec<Span>) {
    spans.dedup_by(|later, earlier| {
        let same = later.number == earlier.number;
        if same {
            earlier.merge(later);
        }
        same
    });
}

impl Span {
    /// Merges a later bucket into this one.
    fn merge(&mut self, later: &Self) {
        if later.low.sum < self.low.sum {
            self.low = later.low;
        }
        if later.high.sum > self.high.sum {
            self.high = later.high;
        }
        self.last = later.last;
    }
}

impl Sum {
    fn begin(&mut self, bytes: u64, at: Moment) {
        self.began = self.began.plus(Amount { bytes, allocations: 1 });
        self.live.add(bytes);
        self.count = self.count.saturating_add(1);
        if self.live > self.peak {
            self.peak = self.live;
            self.peak_at = at;
        }
    }

    fn end(&mut self, bytes: u64, how: How) {
        self.live.take(bytes);
        self.count = self.count.saturating_sub(1);
        match how {
            How::Freed | How::Replaced => self.freed = self.freed.saturating_add(1),
            How::Exited => self.exited = self.exited.plus(Amount { bytes, allocations: 1 }),
            How::Released => {}
        }
    }

    /// Takes back earlier, incomplete data on a live allocation.
    fn unlearn(&mut self, bytes: u64) {
        self.live.take(bytes);
        self.count = self.count.saturating_sub(1);
        self.began.bytes = self.began.bytes.saturating_sub(bytes);
        self.began.allocations = self.began.allocations.saturating_sub(1);
    }

    fn total(&self, band: Band) -> Total {
        let allocations = u64::try_from(self.count).unwrap_or(0);
        Total {
            band,
            began: self.began,
            freed: self.freed,
            live: Amount { bytes: self.live.shown(), allocations },
            exited: self.exited,
            peak_bytes: self.peak.shown(),
            peak_at: self.peak_at,
        }
    }
}
