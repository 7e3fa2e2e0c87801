//! First pass: the total over time, the peak of each band, and the sample points.

use std::cmp::Reverse;
use std::sync::Arc;

use hashbrown::HashMap;

use super::super::groups::{Group, GroupSums};
use super::super::time_buckets::{Mark, TimeBuckets};
use super::super::{Delta, MemoryScope, RunningSum, Table};
use super::{Band, GroupBy};
use crate::headline::UNKNOWN_LIBRARY;
use crate::model::{AllocationChange, SiteId, StackTable, Timestamp};

/// Limit of time buckets.
const MAX_BUCKETS: u64 = 1 << 16;

/// Sample points per bucket: lowest, highest, last.
const POINTS_PER_BUCKET: usize = 3;

/// First pass over a file: computes the total over time and the totals of each band.
#[derive(Clone, Debug)]
pub struct BandScan {
    scope: MemoryScope,
    first: Option<Timestamp>,
    now: RunningSum,
    peak: Mark,
    /// The last change; its number is that of all changes.
    last: Mark,
    buckets: TimeBuckets,
    sums: [Table<Band, GroupSums>; GroupBy::SCANNED.len()],
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
    buckets: TimeBuckets,
    /// Bands by [`GroupBy`], highest peak first.
    totals: [Vec<Group<Band>>; GroupBy::ALL.len()],
    /// Library of each site.
    pub(super) library_of_site: HashMap<Band, Band>,
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
    pub fn new(scope: MemoryScope) -> Self {
        Self {
            scope,
            first: None,
            now: RunningSum::default(),
            peak: Mark::default(),
            last: Mark::default(),
            buckets: TimeBuckets::new(MAX_BUCKETS),
            sums: Default::default(),
        }
    }

    /// Adds a change.
    pub fn observe(&mut self, change: &AllocationChange) {
        if !self.scope.counts(change.kind) {
            return;
        }
        for delta in Delta::of(change) {
            delta.apply(&mut self.now);
            for (by, sums) in GroupBy::SCANNED.into_iter().zip(&mut self.sums) {
                sums.get(by.band(&delta.key), GroupSums::default).apply(&delta, change);
            }
        }
        self.last = Mark { number: self.last.number + 1, at: change.at, sum: self.now };
        if self.last.sum > self.peak.sum {
            self.peak = self.last;
        }
        let since = change.at - *self.first.get_or_insert(change.at);
        self.buckets.push(since, self.last);
    }

    /// Returns the result.
    pub fn finish(self) -> BandScanResult {
        let mut totals: [Vec<Group<Band>>; GroupBy::ALL.len()] = Default::default();
        for (totals, sums) in totals.iter_mut().zip(&self.sums) {
            totals.extend(sums.iter().map(|(band, sums)| sums.group(band)));
            totals.sort_by_key(|total| (Reverse(total.peak_bytes), total.key));
        }
        BandScanResult {
            scope: self.scope,
            changes: self.last.number,
            span: self.first.map(|first| (first, self.last.at)),
            peak_bytes: self.peak.sum.value(),
            peak_at: self.peak.at,
            peak_number: self.peak.number,
            buckets: self.buckets,
            totals,
            library_of_site: HashMap::new(),
        }
    }
}

impl BandScanResult {
    /// All bands, highest peak first.
    pub fn totals(&self, by: GroupBy) -> &[Group<Band>] {
        self.totals.get(by.index()).map_or(&[], |totals| totals)
    }

    /// Adds up sites by library, now that their call stacks are known. The peak of a library is an
    /// upper bound: the peaks of its sites may have been at different times.
    pub fn add_libraries(&mut self, stacks: &StackTable) {
        let mut first: HashMap<Arc<str>, Option<SiteId>> = HashMap::new();
        let mut sums: Vec<Group<Band>> = Vec::new();
        for total in self.totals(GroupBy::Site).to_vec() {
            let Band::Site(site) = total.key else { continue };
            let name = site.map_or_else(|| UNKNOWN_LIBRARY.into(), |site| stacks.library(site));
            let key = Band::Library(*first.entry(name).or_insert(site));
            self.library_of_site.insert(total.key, key);
            match sums.iter_mut().find(|sum| sum.key == key) {
                Some(sum) => sum.add(&total),
                None => sums.push(Group { key, ..total }),
            }
        }
        sums.sort_by_key(|sum| Reverse(sum.peak_bytes));
        if let Some(totals) = self.totals.get_mut(GroupBy::Library.index()) {
            *totals = sums;
        }
    }

    /// Selects sample points for a chart with at most `points` points: every change if there are
    /// few enough, else the lowest, highest and last point of equal time buckets.
    pub fn sample_points(&self, points: usize) -> SamplePoints {
        if usize::try_from(self.changes).is_ok_and(|changes| changes <= points) {
            return SamplePoints::Every;
        }
        let columns = self.buckets.columns((points / POINTS_PER_BUCKET).max(1) as u64);
        let marks = columns.iter().flat_map(|bucket| [bucket.low, bucket.high, bucket.last]);
        let mut numbers: Vec<u64> = marks.map(|mark| mark.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        SamplePoints::Some(numbers)
    }
}
