//! First pass: the total over time, the peak of each band, and the sample points.

use std::cmp::Reverse;
use std::sync::Arc;

use hashbrown::HashMap;

use super::super::{Amount, GroupKey, MemoryScope, RunningSum};
use super::second_pass::key;
use super::{Band, GroupBy};
use crate::headline::UNKNOWN_LIBRARY;
use crate::model::change::{AllocationChange, ChangeKind, EndReason};
use crate::model::ids::SiteId;
use crate::model::stack::StackTable;
use crate::model::units::Timestamp;

/// Limit of time buckets. The length of the file is not known in advance: when the limit is
/// reached, neighboring buckets are merged.
const MAX_BUCKETS: u64 = 1 << 16;

/// Sample points per bucket: lowest, highest, last.
const POINTS_PER_BUCKET: usize = 3;

/// The total after a change, and the number of that change.
#[derive(Clone, Copy, Debug, Default)]
struct SumMark {
    number: u64,
    at: Timestamp,
    sum: RunningSum,
}

#[derive(Clone, Copy, Debug)]
struct TimeBucket {
    number: u64,
    low: SumMark,
    high: SumMark,
    last: SumMark,
}

/// Running values of a band.
#[derive(Clone, Copy, Debug, Default)]
struct RunningBand {
    allocated: Amount,
    freed: u64,
    exited: Amount,
    live: RunningSum,
    count: i64,
    peak: RunningSum,
    peak_at: Timestamp,
}

/// Totals of a band after the first pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BandTotal {
    /// The band.
    pub band: Band,
    /// All allocations.
    pub allocated: Amount,
    /// Number freed by the program.
    pub freed: u64,
    /// Live at the end of the file.
    pub live: Amount,
    /// Live when their process ended.
    pub exited: Amount,
    /// Peak size.
    pub peak_bytes: u64,
    /// When the peak was first reached.
    pub peak_at: Timestamp,
}

/// First pass over a file: computes the total over time and the totals of each band.
#[derive(Clone, Debug, Default)]
pub struct BandScan {
    scope: MemoryScope,
    /// Number of changes counted.
    number: u64,
    first: Option<Timestamp>,
    now: RunningSum,
    peak: SumMark,
    last: SumMark,
    /// Buckets are 2^`shift` ns long.
    shift: u32,
    buckets: Vec<TimeBucket>,
    sums: [HashMap<u64, RunningBand>; GroupBy::SCANNED.len()],
}

/// Result of the first pass.
#[derive(Clone, Debug)]
pub struct BandScanResult {
    pub(super) scope: MemoryScope,
    /// Number of changes counted.
    pub changes: u64,
    /// Times of the first and last change.
    pub span: Option<(Timestamp, Timestamp)>,
    /// Peak of the total.
    pub peak_bytes: u64,
    /// When the peak was first reached.
    pub peak_at: Timestamp,
    pub(super) peak_number: u64,
    buckets: Vec<TimeBucket>,
    /// Bands by [`GroupBy`], highest peak first.
    totals: [Vec<BandTotal>; GroupBy::ALL.len()],
    /// Table key of the library of each site.
    pub(super) library_of_site: HashMap<u64, u64>,
}

/// Changes after which the bands are sampled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SamplePoints {
    /// After every counted change.
    Every,
    /// After the changes with these numbers, ascending.
    Some(Vec<u64>),
}

impl BandScan {
    /// Creates an empty scan; `scope` selects the memory that counts.
    #[must_use]
    pub fn new(scope: MemoryScope) -> Self {
        Self { scope, ..Self::default() }
    }

    /// Adds a change.
    pub fn observe(&mut self, change: &AllocationChange) {
        if !self.scope.counts(change.kind) {
            return;
        }
        self.number += 1;
        let group = GroupKey::of(change);
        let AllocationChange { at, bytes, .. } = *change;
        match change.action {
            ChangeKind::Allocated => {
                self.now.add(bytes);
                self.each(&group, |sum| sum.begin(bytes, at));
            }
            ChangeKind::Ended { reason, .. } => {
                self.now.subtract(bytes);
                self.each(&group, |sum| sum.end(bytes, reason));
            }
            ChangeKind::Updated { before, .. } => {
                self.now.subtract(before.bytes);
                self.each(&group.on(before.device), |sum| sum.retract(before.bytes));
                self.now.add(bytes);
                self.each(&group, |sum| sum.begin(bytes, at));
            }
        }
        self.mark(at);
    }

    fn each(&mut self, group: &GroupKey, mut update: impl FnMut(&mut RunningBand)) {
        for (by, sums) in GroupBy::SCANNED.into_iter().zip(&mut self.sums) {
            update(sums.entry(by.key(group)).or_default());
        }
    }

    fn mark(&mut self, at: Timestamp) {
        let mark = SumMark { number: self.number, at, sum: self.now };
        if mark.sum > self.peak.sum {
            self.peak = mark;
        }
        self.last = mark;
        let since = at - *self.first.get_or_insert(at);
        let mut number = since.0.checked_shr(self.shift).unwrap_or(0);
        while number >= MAX_BUCKETS {
            self.shift += 1;
            number >>= 1;
            for bucket in &mut self.buckets {
                bucket.number >>= 1;
            }
            join(&mut self.buckets);
        }
        let bucket = TimeBucket { number, low: mark, high: mark, last: mark };
        match self.buckets.last_mut() {
            Some(last) if last.number >= number => last.merge(&bucket),
            _ => self.buckets.push(bucket),
        }
    }

    /// Returns the result.
    #[must_use]
    pub fn finish(self) -> BandScanResult {
        let totals = |(by, sums): (GroupBy, HashMap<u64, RunningBand>)| {
            let mut all: Vec<_> = sums.into_iter().collect();
            all.sort_by_key(|(key, sum)| (Reverse(sum.peak), *key));
            all.into_iter().map(|(key, sum)| sum.total(by.band(key))).collect::<Vec<BandTotal>>()
        };
        let [kinds, sites, processes, devices] = self.sums;
        BandScanResult {
            scope: self.scope,
            changes: self.number,
            span: self.first.map(|first| (first, self.last.at)),
            peak_bytes: self.peak.sum.value(),
            peak_at: self.peak.at,
            peak_number: self.peak.number,
            buckets: self.buckets,
            totals: [
                totals((GroupBy::Kind, kinds)),
                totals((GroupBy::Site, sites)),
                totals((GroupBy::Process, processes)),
                totals((GroupBy::Device, devices)),
                Vec::new(),
            ],
            library_of_site: HashMap::new(),
        }
    }
}

impl BandScanResult {
    /// All bands, highest peak first.
    #[must_use]
    pub fn totals(&self, by: GroupBy) -> &[BandTotal] {
        self.totals.get(by.index()).map_or(&[], |totals| totals)
    }

    /// Adds up sites by library, now that their call stacks are known. The peak of a library is an
    /// upper bound: the peaks of its sites may have been at different times.
    pub fn add_libraries(&mut self, stacks: &StackTable) {
        let mut first: HashMap<Arc<str>, Option<SiteId>> = HashMap::new();
        let mut sums: Vec<BandTotal> = Vec::new();
        for total in self.totals(GroupBy::Site).to_vec() {
            let Band::Site(site) = total.band else { continue };
            let name = site.map_or_else(|| UNKNOWN_LIBRARY.into(), |site| stacks.library(site));
            let library = Band::Library(*first.entry(name).or_insert(site));
            self.library_of_site.insert(key(total.band), key(library));
            match sums.iter_mut().find(|sum| sum.band == library) {
                Some(sum) => {
                    sum.allocated = sum.allocated.plus(total.allocated);
                    sum.freed = sum.freed.saturating_add(total.freed);
                    sum.live = sum.live.plus(total.live);
                    sum.exited = sum.exited.plus(total.exited);
                    sum.peak_bytes = sum.peak_bytes.saturating_add(total.peak_bytes);
                }
                None => sums.push(BandTotal { band: library, ..total }),
            }
        }
        sums.sort_by_key(|sum| Reverse(sum.peak_bytes));
        if let Some(totals) = self.totals.get_mut(GroupBy::Library.index()) {
            *totals = sums;
        }
    }

    /// Selects sample points for a chart with at most `points` points: every change if there are
    /// few enough, else the lowest, highest and last point of equal time buckets.
    #[must_use]
    pub fn sample_points(&self, points: usize) -> SamplePoints {
        if usize::try_from(self.changes).is_ok_and(|changes| changes <= points) {
            return SamplePoints::Every;
        }
        let columns = (points / POINTS_PER_BUCKET).max(1) as u64;
        let all = self.buckets.last().map_or(1, |bucket| bucket.number.saturating_add(1));
        let mut buckets = self.buckets.clone();
        for bucket in &mut buckets {
            // Both are at most 2^16, so the product cannot overflow.
            bucket.number = bucket.number * columns.min(all) / all.max(1);
        }
        join(&mut buckets);
        let mut numbers: Vec<u64> = buckets
            .iter()
            .flat_map(|bucket| [bucket.low.number, bucket.high.number, bucket.last.number])
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        SamplePoints::Some(numbers)
    }
}

/// Merges neighboring buckets with the same number.
fn join(buckets: &mut Vec<TimeBucket>) {
    buckets.dedup_by(|later, earlier| {
        let same = later.number == earlier.number;
        if same {
            earlier.merge(later);
        }
        same
    });
}

impl TimeBucket {
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

impl RunningBand {
    fn begin(&mut self, bytes: u64, at: Timestamp) {
        self.allocated = self.allocated.plus(Amount { bytes, allocations: 1 });
        self.live.add(bytes);
        self.count = self.count.saturating_add(1);
        if self.live > self.peak {
            self.peak = self.live;
            self.peak_at = at;
        }
    }

    fn end(&mut self, bytes: u64, reason: EndReason) {
        self.live.subtract(bytes);
        self.count = self.count.saturating_sub(1);
        match reason {
            EndReason::Freed | EndReason::Replaced => self.freed = self.freed.saturating_add(1),
            EndReason::ProcessExited => {
                self.exited = self.exited.plus(Amount { bytes, allocations: 1 })
            }
            EndReason::Released => {}
        }
    }

    /// Takes back earlier, incomplete data on a live allocation.
    fn retract(&mut self, bytes: u64) {
        self.live.subtract(bytes);
        self.count = self.count.saturating_sub(1);
        self.allocated.bytes = self.allocated.bytes.saturating_sub(bytes);
        self.allocated.allocations = self.allocated.allocations.saturating_sub(1);
    }

    fn total(&self, band: Band) -> BandTotal {
        let allocations = u64::try_from(self.count).unwrap_or(0);
        BandTotal {
            band,
            allocated: self.allocated,
            freed: self.freed,
            live: Amount { bytes: self.live.value(), allocations },
            exited: self.exited,
            peak_bytes: self.peak.value(),
            peak_at: self.peak_at,
        }
    }
}
