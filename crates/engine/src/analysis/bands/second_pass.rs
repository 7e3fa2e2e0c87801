//! Second pass: the size of each band at the selected sample points.

use hashbrown::HashMap;

use super::super::{Amount, Delta, GroupKey, MemoryScope, RunningSum};
use super::{Band, BandScanResult, GroupBy, SamplePoints};
use crate::model::{AllocationChange, SiteId, Timestamp};

/// Bands over time, delta encoded: each row has a time and the bands that changed since the
/// previous row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BandSeries {
    /// What the bands are grouped by.
    pub by: GroupBy,
    /// The bands, highest peak first, [`Band::Rest`] last.
    pub bands: Vec<Band>,
    times: Vec<Timestamp>,
    /// End index in `cells` of each row.
    ends: Vec<usize>,
    cells: Vec<(u32, u64)>,
}

/// One grouping while it is filled in.
#[derive(Clone, Debug)]
struct BandGroup {
    series: BandSeries,
    index: HashMap<Band, u32>,
    /// Library of each site, if bands are libraries.
    library_of_site: HashMap<Band, Band>,
    rest: u32,
    now: Vec<RunningSum>,
    emitted: Vec<u64>,
}

/// Second pass over a file: samples the bands at the selected points.
#[derive(Clone, Debug)]
pub struct BandSampler {
    scope: MemoryScope,
    number: u64,
    changes: u64,
    points: SamplePoints,
    next: usize,
    groupings: Vec<BandGroup>,
    peak_number: u64,
    sites: HashMap<Option<SiteId>, (RunningSum, i64)>,
    at_peak: Vec<(Option<SiteId>, Amount)>,
}

impl BandSampler {
    /// Creates a sampler for each of `groupings`: what to group by, and the number of bands besides
    /// the rest.
    pub fn new(
        scan: &BandScanResult,
        points: SamplePoints,
        groupings: &[(GroupBy, usize)],
    ) -> Self {
        Self {
            scope: scan.scope,
            number: 0,
            changes: scan.changes,
            points,
            next: 0,
            groupings: groupings
                .iter()
                .map(|(by, max_bands)| BandGroup::new(scan, *by, *max_bands))
                .collect(),
            peak_number: scan.peak_number,
            sites: HashMap::new(),
            at_peak: Vec::new(),
        }
    }

    /// Adds a change. Ignores changes beyond those of the first pass: the file may still be
    /// growing.
    pub fn observe(&mut self, change: &AllocationChange) {
        if !self.scope.counts(change.kind) || self.number >= self.changes {
            return;
        }
        self.number += 1;
        for delta in Delta::of(change) {
            for now in self.groupings.iter_mut().filter_map(|grouping| grouping.now(&delta.key)) {
                delta.apply(now);
            }
            if self.number <= self.peak_number {
                let (live, count) = self.sites.entry(delta.key.site).or_default();
                delta.apply(live);
                *count += i64::from(delta.more.is_some()) - i64::from(delta.less.is_some());
            }
        }
        if self.number == self.peak_number {
            self.record_peak();
        }
        if self.is_sample_point() {
            for grouping in &mut self.groupings {
                grouping.emit(change.at);
            }
        }
    }

    /// Stores the live memory by site: the peak is now.
    fn record_peak(&mut self) {
        let sites = std::mem::take(&mut self.sites);
        self.at_peak = sites
            .into_iter()
            .map(|(site, (live, count))| {
                let allocations = u64::try_from(count).unwrap_or(0);
                (site, Amount { bytes: live.value(), allocations })
            })
            .filter(|(_, amount)| amount.bytes > 0)
            .collect();
        self.at_peak.sort_by_key(|(site, amount)| (std::cmp::Reverse(amount.bytes), *site));
    }

    fn is_sample_point(&mut self) -> bool {
        match &self.points {
            SamplePoints::Every => true,
            SamplePoints::Some(numbers) => {
                let chosen = numbers.get(self.next) == Some(&self.number);
                self.next += usize::from(chosen);
                chosen
            }
        }
    }

    /// Whether the second pass saw as many changes as the first.
    pub const fn is_complete(&self) -> bool {
        self.number == self.changes
    }

    /// Returns one series per grouping, in the order of `groupings`, and the live memory at the peak
    /// by site, largest first.
    pub fn finish(self) -> (Vec<BandSeries>, Vec<(Option<SiteId>, Amount)>) {
        (self.groupings.into_iter().map(|grouping| grouping.series).collect(), self.at_peak)
    }
}

impl BandGroup {
    fn new(scan: &BandScanResult, by: GroupBy, max_bands: usize) -> Self {
        let totals = scan.totals(by);
        // A rest of a single band is shown as that band.
        let max_bands =
            if totals.len() == max_bands.saturating_add(1) { totals.len() } else { max_bands };
        let mut bands: Vec<Band> = totals.iter().take(max_bands).map(|total| total.key).collect();
        let index = bands.iter().copied().zip(0_u32..).collect();
        let rest = u32::try_from(bands.len()).unwrap_or(u32::MAX);
        if totals.len() > max_bands {
            bands.push(Band::Rest(totals.len() - max_bands));
        }
        let count = bands.len();
        let series =
            BandSeries { by, bands, times: Vec::new(), ends: Vec::new(), cells: Vec::new() };
        let (now, emitted) = (vec![RunningSum::default(); count], vec![0; count]);
        let library_of_site = match by {
            GroupBy::Library => scan.library_of_site.clone(),
            _ => HashMap::new(),
        };
        Self { series, index, library_of_site, rest, now, emitted }
    }

    /// Running sum of the band that a group belongs to.
    fn now(&mut self, group: &GroupKey) -> Option<&mut RunningSum> {
        let band = self.series.by.band(group);
        let band = self.library_of_site.get(&band).unwrap_or(&band);
        let index = self.index.get(band).copied().unwrap_or(self.rest);
        self.now.get_mut(index as usize)
    }

    fn emit(&mut self, at: Timestamp) {
        let Self { series, now, emitted, .. } = self;
        for ((now, emitted), band) in now.iter().zip(emitted).zip(0_u32..) {
            if *emitted != now.value() {
                *emitted = now.value();
                series.cells.push((band, *emitted));
            }
        }
        series.times.push(at);
        series.ends.push(series.cells.len());
    }
}

impl BandSeries {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.times.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// Iterates over the rows: the time, and the bands that changed, with their index and new size.
    pub fn rows(&self) -> impl Iterator<Item = (Timestamp, &[(u32, u64)])> {
        let mut begin = 0;
        self.times.iter().zip(&self.ends).map(move |(at, end)| {
            let cells = self.cells.get(begin..*end).unwrap_or(&[]);
            begin = *end;
            (*at, cells)
        })
    }
}
