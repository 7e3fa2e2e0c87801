//! Memory and objects of each site of a process, by kind. Updated with every event, in one lookup.
#![allow(clippy::cast_possible_truncation, reason = "fewer rows than 2^32, and hashes")]

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::anomaly::SiteBaseline;
use crate::leak::{MajorityDevice, Track};
use crate::model::{
    BLOCK_FRACTIONS, DeviceId, EndReason, MemoryKind, MemoryLayer, ObjectKind, Sampling, SiteId,
    Tid, Timestamp,
};

use super::super::memory::allocation::AllocationEntry;
use super::super::memory::totals::ByteSum;

/// Limit of rows (site and kind) per process. Further sites share one row.
const MAX_SITE_ROWS: usize = 65_536;

/// Size of the cache of recently used rows: programs allocate and free in loops.
const RECENT_ROW_CACHE: usize = 256;

/// Origin of allocations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum SiteRef {
    Site(SiteId),
    /// The call stack is unknown.
    Unknown,
    /// Sites beyond the limit.
    Other,
}

/// What a row counts: memory in bytes, or objects.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum ResourceKind {
    Memory(MemoryKind),
    Object(ObjectKind),
}

impl ResourceKind {
    /// Unique number below 256.
    const fn number(self) -> u64 {
        match self {
            Self::Memory(kind) => kind.index() as u64,
            Self::Object(kind) => 128 + kind.index() as u64,
        }
    }

    pub(crate) const fn takes_device_memory(self) -> bool {
        matches!(self, Self::Memory(kind) if kind.takes_device_memory())
    }

    /// Whether these are blocks of an allocator inside the process: an annotation of memory that is counted
    /// elsewhere.
    pub(crate) const fn is_blocks(self) -> bool {
        matches!(self, Self::Memory(kind) if matches!(kind.layer(), MemoryLayer::Cached))
    }

    /// Whether this is driver memory.
    pub(crate) const fn is_memory(self) -> bool {
        matches!(self, Self::Memory(_)) && !self.is_blocks()
    }

    /// Memory kind, if this is memory.
    pub(crate) const fn kind(self) -> Option<MemoryKind> {
        match self {
            Self::Memory(kind) => Some(kind),
            Self::Object(_) => None,
        }
    }

    /// Object kind, if this is an object.
    pub(crate) const fn object(self) -> Option<ObjectKind> {
        match self {
            Self::Memory(_) => None,
            Self::Object(kind) => Some(kind),
        }
    }
}

impl SiteRef {
    /// Unique number of a source and resource kind.
    fn number(self, resource: ResourceKind) -> u64 {
        let source = match self {
            Self::Site(site) => u64::from(site.0),
            Self::Unknown => 1 << 32,
            Self::Other => 2 << 32,
        };
        source << 8 | resource.number()
    }
}

/// Blocks for which sampled ones stand, themselves excluded, in 1/256 of a block.
#[derive(Clone, Copy, Debug, Default)]
struct SampledOthers {
    live: u64,
    allocations: u64,
    freed: u64,
}

/// Values of one site and kind.
#[derive(Clone, Debug)]
pub(crate) struct SiteRow {
    pub(crate) source: SiteRef,
    pub(crate) resource: ResourceKind,
    /// Live allocations over time.
    pub(crate) track: Track,
    /// Total of all allocations.
    pub(crate) total: ByteSum,
    /// Peak, and when it was reached; no time for merged rows, whose peaks may have been at
    /// different times.
    pub(crate) peak: ByteSum,
    pub(crate) peak_at: Option<Timestamp>,
    pub(crate) threads: AllocatingThreads,
    pub(crate) devices: MajorityDevice,
    /// Number of live allocations of unknown size.
    pub(crate) unknown_sizes: u64,
    /// Number of allocations made while a stream was capturing.
    pub(crate) during_capture: u64,
    /// Size of the largest allocation so far.
    largest: u64,
    /// Live bytes at the last snapshot.
    pub(crate) shown: ByteSum,
    others: SampledOthers,
}

impl SiteRow {
    pub(crate) fn new(source: SiteRef, resource: ResourceKind, at: Timestamp) -> Self {
        Self {
            source,
            resource,
            track: Track::new(at),
            total: ByteSum::default(),
            peak: ByteSum::default(),
            peak_at: None,
            threads: AllocatingThreads::Unset,
            devices: MajorityDevice::default(),
            unknown_sizes: 0,
            during_capture: 0,
            largest: 0,
            shown: ByteSum::default(),
            others: SampledOthers::default(),
        }
    }

    /// Live allocations: with sampling, an estimate.
    pub(crate) const fn live_count(&self) -> u64 {
        self.track.count.saturating_add(self.others.live / BLOCK_FRACTIONS)
    }

    /// Allocations so far; the same.
    pub(crate) const fn allocations(&self) -> u64 {
        self.track.allocations.saturating_add(self.others.allocations / BLOCK_FRACTIONS)
    }

    /// Of those: freed by calls; the same.
    pub(crate) const fn freed(&self) -> u64 {
        self.track.freed.saturating_add(self.others.freed / BLOCK_FRACTIONS)
    }

    fn grow(&mut self, bytes: u64, at: Timestamp) {
        self.total.add(bytes);
        if self.track.live > self.peak {
            self.peak = self.track.live;
            self.peak_at = Some(at);
        }
    }

    /// Merges another row into this one.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.track.merge(&other.track);
        self.total = self.total.plus(other.total);
        self.peak = self.peak.plus(other.peak);
        self.peak_at = None;
        self.threads = self.threads.and(other.threads);
        self.devices = self.devices.merge(other.devices);
        self.unknown_sizes = self.unknown_sizes.saturating_add(other.unknown_sizes);
        self.during_capture = self.during_capture.saturating_add(other.during_capture);
        self.largest = self.largest.max(other.largest);
        self.shown = self.shown.plus(other.shown);
        let (own, more) = (&mut self.others, other.others);
        own.live = own.live.saturating_add(more.live);
        own.allocations = own.allocations.saturating_add(more.allocations);
        own.freed = own.freed.saturating_add(more.freed);
    }
}

/// Allocating threads: none yet, one, or several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AllocatingThreads {
    Unset,
    One(Tid),
    Several,
}

impl AllocatingThreads {
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unset, threads) | (threads, Self::Unset) => threads,
            (Self::One(one), Self::One(other)) if one == other => self,
            _ => Self::Several,
        }
    }
}

/// Sites of one process.
#[derive(Clone, Debug, Default)]
pub(crate) struct SiteTable {
    rows: Vec<SiteRow>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// Recently used rows, with the numbers of their sources.
    recent: Vec<(u64, u32)>,
    /// Start of the trace.
    start: Timestamp,
    /// Number of site rows, limited by [`MAX_SITE_ROWS`].
    sites: usize,
    /// The same for a framework's blocks, which have a separate limit.
    tensor_sites: usize,
    /// Whether sites are merged.
    merged: bool,
}

impl SiteTable {
    /// Creates a table whose windows begin with the trace.
    pub(crate) fn starting_at(start: Timestamp) -> Self {
        Self { start, ..Self::default() }
    }

    /// The same; `merged`: all sites share one row.
    pub(crate) fn new(start: Timestamp, merged: bool) -> Self {
        Self { start, merged, ..Self::default() }
    }

    /// Records an allocation by a thread, if known; `capturing`: a stream of the process is
    /// capturing. Returns the previous values of the site, if it is known.
    pub(crate) fn add(
        &mut self,
        entry: &AllocationEntry,
        tid: Option<Tid>,
        capturing: bool,
    ) -> Option<SiteBaseline> {
        let resource = ResourceKind::Memory(entry.kind);
        let row = self.record(entry.site(), resource, entry.bytes, entry.returned_at);
        row.threads = row.threads.and(tid.map_or(AllocatingThreads::Unset, AllocatingThreads::One));
        row.devices.add(entry.device());
        row.during_capture += u64::from(capturing);
        let before = SiteBaseline { count: row.track.allocations - 1, largest: row.largest };
        row.largest = row.largest.max(entry.bytes);
        matches!(row.source, SiteRef::Site(_)).then_some(before)
    }

    /// Records an allocation or a created object.
    pub(crate) fn begin(
        &mut self,
        site: Option<SiteId>,
        resource: ResourceKind,
        bytes: u64,
        at: Timestamp,
    ) {
        self.record(site, resource, bytes, at);
    }

    /// Records a block. One that was not sampled has no site.
    pub(crate) fn begin_sampled(
        &mut self,
        device: Option<DeviceId>,
        (site, resource): (Option<SiteId>, ResourceKind),
        (bytes, sampling): (u64, Sampling),
        at: Timestamp,
    ) {
        if matches!(sampling, Sampling::Skipped(_)) {
            return;
        }
        let row = self.record(site, resource, sampling.estimate(bytes), at);
        row.track.sampled = row.track.sampled.max(sampling.interval());
        let others = sampling.others(bytes);
        row.others.live = row.others.live.saturating_add(others);
        row.others.allocations = row.others.allocations.saturating_add(others);
        if device.is_some() {
            row.devices.add(device);
        }
    }

    /// Records the end of a block that was allocated at `allocated_at`.
    pub(crate) fn finish_sampled(
        &mut self,
        (site, resource): (Option<SiteId>, ResourceKind),
        (bytes, sampling): (u64, Sampling),
        allocated_at: Timestamp,
        reason: EndReason,
        at: Timestamp,
    ) {
        if matches!(sampling, Sampling::Skipped(_)) {
            return;
        }
        self.finish((site, resource), sampling.estimate(bytes), allocated_at, reason, at);
        let others = sampling.others(bytes);
        if others > 0 {
            let row = self.row(site, resource, at);
            row.others.live = row.others.live.saturating_sub(others);
            if matches!(reason, EndReason::Freed | EndReason::Replaced) {
                row.others.freed = row.others.freed.saturating_add(others);
            }
        }
    }

    fn record(
        &mut self,
        site: Option<SiteId>,
        resource: ResourceKind,
        bytes: u64,
        at: Timestamp,
    ) -> &mut SiteRow {
        let start = self.start;
        let row = self.row(site, resource, at);
        row.track.allocated(start, at, bytes);
        row.unknown_sizes += u64::from(bytes == 0);
        row.grow(bytes, at);
        row
    }

    /// Records the end of an allocation or object that was created at `allocated_at`.
    pub(crate) fn finish(
        &mut self,
        (site, resource): (Option<SiteId>, ResourceKind),
        bytes: u64,
        allocated_at: Timestamp,
        reason: EndReason,
        at: Timestamp,
    ) {
        let start = self.start;
        let row = self.row(site, resource, at);
        let freed = matches!(reason, EndReason::Freed | EndReason::Replaced);
        row.track.ended(start, allocated_at, at, bytes, freed);
        row.unknown_sizes = row.unknown_sizes.saturating_sub(u64::from(bytes == 0));
    }

    /// Counts another opening of memory that is already open.
    pub(crate) fn reopen(&mut self, site: Option<SiteId>, kind: MemoryKind, at: Timestamp) {
        let row = self.row(site, ResourceKind::Memory(kind), at);
        row.track.allocations += 1;
        row.track.last = row.track.last.max(at);
    }

    /// Records the end of an allocation that had been opened `openings` times.
    pub(crate) fn remove(
        &mut self,
        entry: &AllocationEntry,
        reason: EndReason,
        at: Timestamp,
        openings: u64,
    ) {
        let resource = ResourceKind::Memory(entry.kind);
        self.finish((entry.site(), resource), entry.bytes, entry.returned_at, reason, at);
        if openings != 1 && matches!(reason, EndReason::Freed | EndReason::Replaced) {
            let row = self.row(entry.site(), resource, at);
            row.track.freed = row.track.freed.saturating_add(openings).saturating_sub(1);
        }
    }

    /// Counts the close of one of several openings.
    pub(crate) fn close_handle(&mut self, entry: &AllocationEntry, at: Timestamp) {
        self.row(entry.site(), ResourceKind::Memory(entry.kind), at).track.freed += 1;
    }

    /// Updates the size of a live allocation when it becomes known.
    pub(crate) fn resize(&mut self, entry: &AllocationEntry, bytes: u64, at: Timestamp) {
        let (start, more) = (self.start, bytes.saturating_sub(entry.bytes));
        let row = self.row(entry.site(), ResourceKind::Memory(entry.kind), at);
        let learned = u64::from(entry.bytes == 0 && bytes > 0);
        row.unknown_sizes = row.unknown_sizes.saturating_sub(learned);
        row.track.resized(start, entry.returned_at, at, more);
        row.grow(more, at);
    }

    /// Updates the device of a live allocation when it becomes known.
    pub(crate) fn learn_device(&mut self, entry: &AllocationEntry, device: DeviceId) {
        let row = self.row(entry.site(), ResourceKind::Memory(entry.kind), entry.returned_at);
        row.devices.replace(entry.device(), Some(device));
    }

    /// Row of a site. A site that was first seen beyond the limit never gets its own row, so that
    /// its frees are counted in the same row as its allocations.
    fn row(&mut self, site: Option<SiteId>, resource: ResourceKind, at: Timestamp) -> &mut SiteRow {
        let source = match site {
            Some(_) if self.merged => SiteRef::Other,
            Some(site) => SiteRef::Site(site),
            None => SiteRef::Unknown,
        };
        let number = source.number(resource);
        let hint = (number >> 8 ^ number) as usize % RECENT_ROW_CACHE;
        let slot = match self.recent.get(hint) {
            Some(&(known, slot)) if known == number => slot,
            _ => self.look_up(source, resource, at, hint),
        };
        &mut self.rows[slot as usize]
    }

    fn look_up(
        &mut self,
        source: SiteRef,
        resource: ResourceKind,
        at: Timestamp,
        hint: usize,
    ) -> u32 {
        let slot = self.find(source, resource).unwrap_or_else(|| self.open(source, resource, at));
        if self.recent.is_empty() {
            self.recent = vec![(u64::MAX, 0); RECENT_ROW_CACHE];
        }
        if let Some(recent) = self.recent.get_mut(hint) {
            *recent = (source.number(resource), slot);
        }
        slot
    }

    fn find(&self, source: SiteRef, resource: ResourceKind) -> Option<u32> {
        let number = source.number(resource);
        let is = |slot: &u32| {
            let row = &self.rows[*slot as usize];
            row.source.number(row.resource) == number
        };
        self.index.find(self.hasher.hash_one(number), is).copied()
    }

    #[cold]
    fn open(&mut self, source: SiteRef, resource: ResourceKind, at: Timestamp) -> u32 {
        let is_site = matches!(source, SiteRef::Site(_));
        let sites = if resource.is_blocks() { &mut self.tensor_sites } else { &mut self.sites };
        if is_site && *sites >= MAX_SITE_ROWS {
            let other = self.find(SiteRef::Other, resource);
            return other
                .unwrap_or_else(|| self.insert(SiteRow::new(SiteRef::Other, resource, at)));
        }
        *sites += usize::from(is_site);
        self.insert(SiteRow::new(source, resource, at))
    }

    fn insert(&mut self, row: SiteRow) -> u32 {
        let slot = self.rows.len() as u32;
        let number = row.source.number(row.resource);
        self.rows.push(row);
        let Self { rows, index, hasher, .. } = self;
        index.insert_unique(hasher.hash_one(number), slot, |slot| {
            let row = &rows[*slot as usize];
            hasher.hash_one(row.source.number(row.resource))
        });
        slot
    }

    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn rows(&self) -> &[SiteRow] {
        &self.rows
    }

    pub(crate) fn start(&self) -> Timestamp {
        self.start
    }

    /// Called after a snapshot: deltas are counted from here on.
    pub(crate) fn reset_delta(&mut self) {
        self.rows.iter_mut().for_each(|row| row.shown = row.track.live);
    }

    /// Merges all sites of a kind into one row; totals are unaffected.
    pub(crate) fn merge_all(&mut self) {
        if std::mem::replace(&mut self.merged, true) {
            return;
        }
        let rows = std::mem::take(&mut self.rows);
        self.index = HashTable::new();
        self.recent = Vec::new();
        (self.sites, self.tensor_sites) = (0, 0);
        for mut row in rows {
            if matches!(row.source, SiteRef::Site(_)) {
                row.source = SiteRef::Other;
            }
            match self.find(row.source, row.resource) {
                Some(slot) => self.rows[slot as usize].merge(&row),
                None => drop(self.insert(row)),
            }
        }
    }

    /// Frees memory that is only needed while rows change.
    pub(crate) fn freeze(&mut self) {
        self.recent = Vec::new();
        self.rows.iter_mut().for_each(|row| row.track.history.shrink_to_fit());
        self.rows.shrink_to_fit();
    }

    /// Merges the rows of a frozen table.
    pub(crate) fn absorb(&mut self, other: Self) {
        for row in other.rows {
            let (source, resource, first) = (row.source, row.resource, row.track.first);
            let slot =
                self.find(source, resource).unwrap_or_else(|| self.open(source, resource, first));
            let own = &mut self.rows[slot as usize];
            if own.track.allocations == 0 {
                *own = SiteRow { source: own.source, ..row };
            } else {
                own.merge(&row);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::memory::allocation::NewAllocation;
    use crate::model::ids::AllocationKey;
    use crate::model::units::Nanos;

    fn entry(site: u32, bytes: u64) -> AllocationEntry {
        let new = NewAllocation::plain(AllocationKey::address(1), MemoryKind::Device, bytes);
        AllocationEntry::new(&NewAllocation { site: Some(SiteId(site)), ..new }, Timestamp(10), 0)
    }

    #[test]
    fn sites_beyond_the_limit_share_a_row() {
        let mut table = SiteTable::starting_at(Timestamp(0));
        let count = MAX_SITE_ROWS as u32 + 100;
        for site in 0..count {
            table.add(&entry(site, 8), Some(Tid(1)), false);
        }
        assert_eq!(table.len(), MAX_SITE_ROWS + 1);
        let other = table.rows().iter().find(|row| row.source == SiteRef::Other).unwrap();
        assert_eq!((other.track.count, other.track.live.bytes().0), (100, 800));
        for site in 0..count {
            table.remove(&entry(site, 8), EndReason::Freed, Timestamp(20), 1);
        }
        assert!(
            table
                .rows()
                .iter()
                .all(|row| row.track.count == 0 && row.track.live == ByteSum::default())
        );
    }

    #[test]
    fn merged_sites_keep_their_totals() {
        let mut table = SiteTable::starting_at(Timestamp(0));
        for site in 0..3 {
            table.add(&entry(site, 8), Some(Tid(1)), false);
        }
        table.merge_all();
        table.add(&entry(7, 100), Some(Tid(2)), false);
        assert_eq!(table.len(), 1);
        assert_eq!((table.rows()[0].track.live.bytes().0, table.rows()[0].track.count), (124, 4));
        for site in 0..3 {
            table.remove(&entry(site, 8), EndReason::Freed, Timestamp(20), 1);
        }
        table.merge_all();
        let row = &table.rows()[0];
        assert_eq!(
            (row.source, row.track.live.bytes().0, row.track.count),
            (SiteRef::Other, 100, 1)
        );
        assert_eq!((row.track.allocations, row.track.freed), (4, 3));
    }

    #[test]
    fn lifetimes_are_counted_by_power_of_two() {
        let mut table = SiteTable::starting_at(Timestamp(0));
        for (lifetime, reason) in
            [(0, EndReason::Freed), (3, EndReason::Freed), (1024, EndReason::Replaced)]
        {
            table.add(&entry(1, 8), Some(Tid(1)), false);
            table.remove(&entry(1, 8), reason, Timestamp(10 + lifetime), 1);
        }
        table.add(&entry(1, 8), Some(Tid(1)), false);
        table.remove(&entry(1, 8), EndReason::Released, Timestamp(1 << 30), 1);
        let row = &table.rows()[0];
        assert_eq!(row.track.lifetimes.iter().collect::<Vec<_>>(), [(0, 1), (1, 1), (10, 1)]);
        assert_eq!((row.track.freed, row.track.lifetimes.max()), (3, Some(Nanos(1024))));
    }

    #[test]
    fn site_row_tracks_majority_device_and_thread() {
        let row = |entries: &[(u32, Option<u16>)]| {
            let mut table = SiteTable::starting_at(Timestamp(0));
            for &(thread, device) in entries {
                let mut entry = entry(1, 8);
                device.into_iter().for_each(|device| entry.set_device(DeviceId(device)));
                table.add(&entry, Some(Tid(thread)), false);
            }
            let row = &table.rows()[0];
            (row.threads, row.devices.device())
        };
        let most = row(&[(5, Some(1)), (5, Some(2)), (5, None), (5, Some(2)), (5, Some(2))]);
        assert_eq!(most, (AllocatingThreads::One(Tid(5)), Some(DeviceId(2))));
        assert_eq!(row(&[(5, None), (6, None)]), (AllocatingThreads::Several, None));
    }
}
