//! Measurements: memory of one process between two points in time, which its program selects.
#![allow(clippy::cast_possible_truncation, reason = "indices of points are small")]

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::leak::is_framework_cache;
use crate::model::{
    BLOCK_FRACTIONS, Bytes, Event, Nanos, Pid, Sampling, SamplingInterval, SiteId, SiteName,
    Timestamp,
};
use crate::snapshot::{KeptSite, Measurement, NotFreed, TensorLevels};
use crate::verdict::Resource;

use super::Ledger;
use super::process::Process;
use super::process_view::uncertainty;
use super::sites;

/// Limit of measurements that have not ended, of all processes.
const MAX_OPEN: usize = 1024;

/// Limit of points of a timeline.
const MAX_POINTS: usize = 512;

/// First width of a point of a timeline, in nanoseconds.
const FIRST_WIDTH: u64 = 1 << 10;

/// Limit of addresses per site.
const MAX_ADDRESSES: usize = 64;

/// Identifies a measurement that has not ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct MeasurementId(pub u64);

/// Measurements that have not ended.
#[derive(Debug, Default)]
pub(super) struct Measurements {
    open: Vec<OpenMeasurement>,
    next: u64,
}

#[derive(Debug)]
struct OpenMeasurement {
    id: MeasurementId,
    pid: Pid,
    begin: Timestamp,
    live_before: Bytes,
    tensors_before: Bytes,
    tensors_peak: Bytes,
    timeline: Timeline,
}

/// A measurement that has ended. Its sites may have no names yet.
#[derive(Debug)]
pub struct EndedMeasurement {
    totals: Measurement,
    has_torch: bool,
    rows: BTreeMap<(Option<SiteId>, Resource), KeptRow>,
}

/// Live memory of a process by site.
#[derive(Debug)]
pub struct LiveSites {
    /// Live device memory.
    pub live_bytes: Bytes,
    /// Bytes that tensors use in PyTorch's cache.
    pub tensor_bytes: Bytes,
    /// Sites, largest first, without memory of caching allocators.
    pub sites: Vec<KeptSite>,
    /// Sites that leak.
    pub suspects: Vec<(SiteName, Resource)>,
}

#[derive(Clone, Debug, Default)]
struct KeptRow {
    bytes: u64,
    count: u64,
    sampling: Option<SamplingInterval>,
    /// Newest first.
    addresses: Vec<(Reverse<Timestamp>, u64)>,
}

impl KeptRow {
    fn add(&mut self, bytes: u64, count: u64, address: Option<(Timestamp, u64)>) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.count = self.count.saturating_add(count);
        self.addresses.extend(address.map(|(at, address)| (Reverse(at), address)));
        if self.addresses.len() >= 2 * MAX_ADDRESSES {
            self.limit_addresses();
        }
    }

    fn limit_addresses(&mut self) {
        self.addresses.sort_unstable();
        self.addresses.truncate(MAX_ADDRESSES);
    }
}

/// Highest value per interval. The width doubles when there are too many points.
#[derive(Debug)]
struct Timeline {
    width: u64,
    /// Highest value in each interval; none where nothing changed.
    peaks: Vec<Option<u64>>,
    /// Value at the end of the last interval.
    last: u64,
}

impl Timeline {
    fn new(first: u64) -> Self {
        Self { width: FIRST_WIDTH, peaks: vec![Some(first)], last: first }
    }

    fn observe(&mut self, since: u64, value: u64) {
        while since / self.width >= MAX_POINTS as u64 {
            let merged = self.peaks.chunks(2).map(|pair| pair.iter().copied().max().flatten());
            self.peaks = merged.collect();
            self.width = self.width.saturating_mul(2);
        }
        let index = (since / self.width) as usize;
        if self.peaks.len() <= index {
            self.peaks.resize(index + 1, None);
        }
        // An interval starts with the value that the one before ended with.
        let peak = &mut self.peaks[index];
        *peak = Some(peak.unwrap_or(self.last).max(value));
        self.last = value;
    }

    fn points(self, end: u64) -> Vec<(Nanos, Bytes)> {
        let at = |index: usize| Nanos(index as u64 * self.width);
        let peaks = self.peaks.iter().enumerate();
        let mut points: Vec<_> =
            peaks.filter_map(|(index, peak)| Some((at(index), Bytes((*peak)?)))).collect();
        points.push((Nanos(end), Bytes(self.last)));
        points
    }
}

impl Process {
    fn live_bytes(&self) -> Bytes {
        self.totals.live.bytes()
    }

    fn tensor_bytes(&self) -> Bytes {
        self.allocators.allocated_bytes()
    }

    /// Memory and objects that were allocated after a time and are live, by site.
    fn allocated_since(&self, begin: Timestamp) -> BTreeMap<(Option<SiteId>, Resource), KeptRow> {
        let mut rows = BTreeMap::<_, KeptRow>::new();
        for (_, entry) in self.allocations.slab.iter() {
            if entry.returned_at > begin && NotFreed::includes(entry.kind) {
                let row = rows.entry((entry.site(), Resource::Memory(entry.kind))).or_default();
                row.add(entry.bytes, 1, Some((entry.returned_at, entry.key().value)));
            }
        }
        for (allocator, block) in self.allocators.blocks_since(begin) {
            if matches!(block.sampling, Sampling::Skipped(_)) {
                continue;
            }
            let row = rows.entry((block.site(), Resource::Blocks(allocator))).or_default();
            let (bytes, others) =
                (block.sampling.estimate(block.bytes), block.sampling.others(block.bytes));
            let address = Some((block.allocated_at, block.address));
            row.add(bytes, 1 + others / BLOCK_FRACTIONS, address);
            row.sampling = row.sampling.max(block.sampling.interval());
        }
        for (kind, site) in self.objects.created_since(begin) {
            rows.entry((site, Resource::Objects(kind))).or_default().add(0, 1, None);
        }
        rows
    }
}

impl Ledger {
    /// Begins a measurement of a process, which may not have called the driver yet. All events
    /// before that time must have been applied. Returns `None` if too many are open.
    pub fn begin_measurement(&mut self, pid: Pid, at: Timestamp) -> Option<MeasurementId> {
        let measurements = &mut self.measurements;
        if measurements.open.len() >= MAX_OPEN {
            return None;
        }
        let id = MeasurementId(measurements.next);
        measurements.next += 1;
        let process = self.running.get_mut(&pid);
        // Events after that time may have been applied: they are before the begin.
        let begin = process.as_ref().map_or(at, |process| at.max(process.call.1));
        let mut open = OpenMeasurement {
            id,
            pid,
            begin,
            live_before: Bytes(0),
            tensors_before: Bytes(0),
            tensors_peak: Bytes(0),
            timeline: Timeline::new(0),
        };
        if let Some(process) = process {
            process.totals.open_window(id.0, begin);
            open.live_before = process.live_bytes();
            open.tensors_before = process.tensor_bytes();
            open.tensors_peak = open.tensors_before;
            open.timeline = Timeline::new(open.live_before.0);
        }
        measurements.open.push(open);
        Some(id)
    }

    /// Drops a measurement.
    pub fn cancel_measurement(&mut self, id: MeasurementId) {
        let Some(index) = self.measurements.open.iter().position(|open| open.id == id) else {
            return;
        };
        let open = self.measurements.open.swap_remove(index);
        if let Some(process) = self.running.get_mut(&open.pid) {
            process.totals.close_window(id.0);
        }
    }

    /// Ends a measurement. All events before that time must have been applied. Returns `None` if it
    /// is not open. Costs a pass over the live allocations of the process.
    pub fn end_measurement(
        &mut self,
        id: MeasurementId,
        at: Timestamp,
    ) -> Option<EndedMeasurement> {
        let index = self.measurements.open.iter().position(|open| open.id == id)?;
        let open = self.measurements.open.swap_remove(index);
        let duration = at - open.begin;
        let mut totals = Measurement {
            duration,
            exact: true,
            live_before: open.live_before,
            timeline: open.timeline.points(duration.0),
            ..Measurement::default()
        };
        let Some(process) = self.running.get_mut(&open.pid) else {
            return Some(EndedMeasurement { totals, has_torch: false, rows: BTreeMap::new() });
        };
        // A process without a window has made its first call since the begin.
        let window = process.totals.close_window(id.0);
        (totals.peak, totals.peak_bounds) =
            window.unwrap_or_else(|| (process.totals.peak.bytes(), process.totals.peak_bounds()));
        totals.live_after = process.live_bytes();
        totals.exact = uncertainty(process, &self.unattributed).exact();
        totals.tensors = (!process.allocators.is_empty()).then(|| TensorLevels {
            before: open.tensors_before,
            after: process.tensor_bytes(),
            peak: open.tensors_peak,
        });
        let has_torch = process.allocators.torch().is_some();
        Some(EndedMeasurement { totals, has_torch, rows: process.allocated_since(open.begin) })
    }

    /// Whether all sites of a measurement have names.
    pub fn has_names(&self, ended: &EndedMeasurement) -> bool {
        let mut sites = ended.rows.keys().filter_map(|(site, _)| *site);
        sites.all(|site| !matches!(self.sites.name(Some(site)), SiteName::Pending(_)))
    }

    /// Returns a measurement with the names of its sites, as far as they are known.
    pub fn name_measurement(&self, ended: EndedMeasurement) -> Measurement {
        let mut named = BTreeMap::<(SiteName, Resource), KeptRow>::new();
        for ((site, resource), row) in ended.rows {
            let sum = named.entry((self.sites.name(site), resource)).or_default();
            sum.add(row.bytes, row.count, None);
            sum.sampling = sum.sampling.max(row.sampling);
            sum.addresses.extend(row.addresses);
            sum.limit_addresses();
        }
        let mut measurement = ended.totals;
        for ((site, resource), row) in named {
            let frames = self.sites.frames_of(site);
            let is_cache =
                is_framework_cache(&frames) || (ended.has_torch && site == SiteName::Unknown);
            if matches!(resource, Resource::Memory(_)) && is_cache {
                measurement.cached = Bytes(measurement.cached.0.saturating_add(row.bytes));
                continue;
            }
            let (bytes, count, sampling) = (Bytes(row.bytes), row.count, row.sampling);
            let addresses = row.addresses.into_iter().map(|(_, address)| address).collect();
            let kept = KeptSite { site, frames, resource, bytes, count, sampling, addresses };
            measurement.kept.push(kept);
        }
        measurement.kept.sort_by_key(|row| (Reverse(row.bytes), Reverse(row.count), row.site));
        measurement
    }

    /// Returns the live memory of a running process by site, and the sites that leak. Costs a pass
    /// over its live allocations.
    pub fn live_by_site(&self, pid: Pid, at: Timestamp) -> Option<LiveSites> {
        let process = self.running.get(&pid)?;
        let totals = Measurement { live_after: process.live_bytes(), ..Measurement::default() };
        let has_torch = process.allocators.torch().is_some();
        let rows = process.allocated_since(Timestamp(0));
        let measurement = self.name_measurement(EndedMeasurement { totals, has_torch, rows });
        let verdicts = sites::verdicts::of(process, at, 0, &self.sites);
        let suspects = verdicts.suspects.iter().map(|verdict| (verdict.site, verdict.resource));
        Some(LiveSites {
            live_bytes: measurement.live_after,
            tensor_bytes: process.tensor_bytes(),
            suspects: suspects.collect(),
            sites: measurement.kept,
        })
    }

    /// Updates the measurements of a process after an event.
    pub(super) fn observe_measurements(&mut self, event: &Event) {
        if self.measurements.open.is_empty() {
            return;
        }
        let Some(process) = self.running.get(&event.pid) else { return };
        let (live, tensors) = (process.live_bytes(), process.tensor_bytes());
        for open in self.measurements.open.iter_mut().filter(|open| open.pid == event.pid) {
            open.tensors_peak = open.tensors_peak.max(tensors);
            if open.timeline.last != live.0 {
                open.timeline.observe((event.time - open.begin).0, live.0);
            }
        }
    }
}
