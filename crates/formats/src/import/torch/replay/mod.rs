//! Replay of a snapshot in the order of time: memory from before the first entry, then the entries
//! of all traces, then what only the state at the end shows.

pub(super) mod device_trace;
pub(super) mod free_blocks;
pub(super) mod live_addresses;
pub(super) mod pairs;
pub(super) mod range_map;

use engine::model::{
    AddressType, AllocationChange, AllocationKey, AllocatorSettings, AllocatorStats, BlockState,
    Bytes, ChangeKind, EndReason, MemoryKind, Pid, SiteId, StreamId, Tid, Timestamp,
};
use hashbrown::HashMap;

use super::replay::device_trace::{DeviceTrace, site};
use super::replay::free_blocks::{FreeBlocks, SMALL_BLOCK_BYTES};
use super::replay::live_addresses::LiveAddresses;
use super::replay::pairs::{AllocFreePairs, PreTraceBlock};
use super::replay::range_map::{RangeMap, cut_bytes};
use super::snapshot::trace_entries::{
    COMPLETED, EXPANDABLE, LIVE, ODD_SIZE, PAIRED, PAIRED_OLDER, REPLACES, StreamTable,
    TraceAction, TraceEntries, TraceEntry,
};
use super::warnings::Warnings;
use crate::import::{FailedAllocation, ImportSink};

/// Data shared by all traces.
pub(super) struct ReplayContext<'a> {
    pub(super) entries: &'a mut TraceEntries,
    pub(super) streams: &'a StreamTable,
    pub(super) settings: &'a AllocatorSettings,
    pub(super) warnings: &'a mut Warnings,
    pub(super) sink: &'a mut dyn ImportSink,
    /// Whether entries have real times.
    pub(super) timed: bool,
    /// Live addresses, if several traces have memory.
    pub(super) live: Option<LiveAddresses>,
}

impl ReplayContext<'_> {
    /// Passes a change of a trace to the sink.
    #[inline]
    fn emit(&mut self, trace: usize, change: &AllocationChange) {
        if let Some(live) = &mut self.live {
            if change.action == ChangeKind::Allocated {
                if let Some(older) = live.add(trace, change) {
                    self.warnings.replaced += 1;
                    self.sink.change(&older);
                }
            } else if !live.remove(trace, change.key) {
                return;
            }
        }
        self.sink.change(change);
    }
}

/// Data of a range that the cache reserved.
#[derive(Clone, Copy, Default)]
struct ReservedRange {
    reserved_at: Timestamp,
    site: Option<SiteId>,
    stream: Option<StreamId>,
}

/// Replays one trace.
pub(super) struct TraceReplayer {
    number: usize,
    trace: DeviceTrace,
    pairs: AllocFreePairs,
    next: u32,
    end: u32,
    start: Timestamp,
    now: Timestamp,
    free_blocks: FreeBlocks,
    grows: bool,
    ranges: RangeMap<ReservedRange>,
    /// Freed blocks that a stream still uses.
    pending: HashMap<u64, u64>,
    odd_sizes: HashMap<u32, u64>,
    stats: AllocatorStats,
}

impl TraceReplayer {
    pub(super) fn new(
        number: usize,
        trace: DeviceTrace,
        pairs: AllocFreePairs,
        context: &mut ReplayContext<'_>,
    ) -> Self {
        let (next, end) =
            (trace.entries.first, trace.entries.first.saturating_add(trace.entries.count));
        let stats = AllocatorStats { device: trace.device, ..AllocatorStats::default() };
        let segments = trace.segments.iter().flatten();
        let mut grows = context.settings.expandable_segments == Some(true);
        grows |= segments.clone().any(|segment| segment.expandable);
        let mut ranges = RangeMap::default();
        if trace.kind == MemoryKind::Torch && !trace.plain_sizes {
            for (segment, site) in segments.zip(&trace.segment_sites) {
                let range = ReservedRange {
                    stream: segment.stream,
                    site: *site,
                    reserved_at: Timestamp(0),
                };
                if !ranges.take(segment.address, segment.bytes).is_empty() {
                    context.warnings.odd_segments += 1;
                }
                ranges.add(segment.address, segment.bytes, range);
            }
            // Backwards from the end to the start.
            for entry in pairs.ranges.iter().rev().filter_map(|&at| context.entries.get(at)) {
                grows |= entry.flags & EXPANDABLE != 0;
                let present = cut_bytes(&ranges.take(entry.address, entry.size));
                let returned = entry.action == TraceAction::Returned;
                if present != if returned { 0 } else { entry.size } && trace.segments.is_some() {
                    context.warnings.odd_segments += 1;
                }
                if returned {
                    ranges.add(entry.address, entry.size, ReservedRange::default());
                }
            }
        }
        Self {
            number,
            trace,
            pairs,
            next,
            end,
            start: Timestamp(0),
            now: Timestamp(0),
            free_blocks: FreeBlocks::default(),
            grows,
            ranges,
            pending: HashMap::new(),
            odd_sizes: HashMap::new(),
            stats,
        }
    }

    /// Returns the time of the next entry, in microseconds.
    #[inline]
    pub(super) fn time(&self, entries: &TraceEntries) -> Option<u64> {
        if self.next >= self.end {
            return None;
        }
        entries.get(self.next).map(|entry| entry.time)
    }

    /// Emits the memory from before the first entry.
    pub(super) fn begin(&mut self, start: Timestamp, context: &mut ReplayContext<'_>) {
        (self.start, self.now) = (start, start);
        let ranges: Vec<_> = self.ranges.iter().collect();
        for (address, bytes, range) in ranges {
            let range = ReservedRange { reserved_at: start, ..range };
            if let Some(value) = self.ranges.get_mut(address) {
                *value = range;
            }
            if !self.grows {
                self.free_blocks.reserve(address, bytes);
            }
            self.stats.reserved.add(bytes);
            self.emit(context, ChangeKind::Allocated, Self::reserve(address, bytes, range));
        }
        for at in 0..self.pairs.older.len() {
            let Some(&older) = self.pairs.older.get(at) else { break };
            let bytes = self.older_bytes(&older, context.settings);
            self.free_blocks.occupy(older.address, bytes);
            self.stats.allocated.add(bytes);
            self.stats.active.add(bytes);
            self.stats.requested.add(older.requested);
            let block = self.older_block(&older, bytes, context.streams);
            self.emit(context, ChangeKind::Allocated, block);
        }
    }

    /// Emits the next entry.
    pub(super) fn step(&mut self, context: &mut ReplayContext<'_>) {
        let at = self.next;
        self.next = self.next.saturating_add(1);
        let Some(&entry) = context.entries.get(at) else { return };
        self.now = timestamp(entry.time);
        match entry.action {
            TraceAction::Alloc => self.alloc(at, &entry, context),
            TraceAction::FreeRequested => self.free(&entry, context),
            TraceAction::FreeCompleted => self.completed(entry.address),
            TraceAction::Reserved if self.changes_ranges(&entry) => self.reserved(&entry, context),
            TraceAction::Returned if self.changes_ranges(&entry) => self.returned(&entry, context),
            TraceAction::Reserved | TraceAction::Returned => {}
            TraceAction::Oom => self.failed(&entry, context),
        }
    }

    /// Returns whether an entry changes reserved memory: only of a device's cache, and not of size
    /// 0.
    fn changes_ranges(&self, entry: &TraceEntry) -> bool {
        self.trace.kind == MemoryKind::Torch && !self.trace.plain_sizes && entry.size > 0
    }

    fn alloc(&mut self, at: u32, entry: &TraceEntry, context: &mut ReplayContext<'_>) {
        if entry.flags & REPLACES != 0
            && let Some(&older) = self.pairs.replaced.get(&at)
        {
            self.end_of(older, EndReason::Replaced, true, context);
        }
        let rounded = self.rounded(entry.size, context.settings);
        let bytes = self.size(at, entry, rounded, context);
        if bytes != rounded {
            self.odd_sizes.insert(at, bytes);
            if let Some(entry) = context.entries.get_mut(at) {
                entry.flags |= ODD_SIZE;
            }
        }
        self.stats.allocated.add(bytes);
        self.stats.active.add(bytes);
        self.stats.requested.add(entry.size);
        let block = self.block(entry, bytes, context.streams);
        self.emit(context, ChangeKind::Allocated, block);
    }

    /// Returns the size of a new block: from the segments, or as the allocator would have chosen
    /// it.
    fn size(
        &mut self,
        at: u32,
        entry: &TraceEntry,
        rounded: u64,
        context: &mut ReplayContext<'_>,
    ) -> u64 {
        let known = if entry.flags & LIVE == 0 { None } else { self.pairs.live.get(&at).copied() };
        if self.trace.plain_sizes || rounded <= SMALL_BLOCK_BYTES {
            if known.is_some_and(|known| known != rounded) && !self.trace.plain_sizes {
                context.warnings.other_rounding += 1;
            }
            return known.unwrap_or(rounded);
        }
        let taken = self.free_blocks.take(entry.address, rounded, context.settings);
        if let (Some(taken), Some(known)) = (taken, known)
            && taken != known
        {
            context.warnings.other_rounding += 1;
            self.free_blocks.free(entry.address, taken);
            self.free_blocks.occupy(entry.address, known);
        }
        if taken.is_none() && known.is_none() && !self.grows {
            context.warnings.guessed_sizes += 1;
        }
        known.or(taken).unwrap_or(rounded)
    }

    fn free(&mut self, entry: &TraceEntry, context: &mut ReplayContext<'_>) {
        let completed = entry.flags & COMPLETED != 0;
        let partner = u32::try_from(entry.size).unwrap_or(u32::MAX);
        if entry.flags & PAIRED != 0 {
            self.end_of(partner, EndReason::Freed, completed, context);
        } else if entry.flags & PAIRED_OLDER != 0
            && let Some(&older) = self.pairs.older.get(partner as usize)
        {
            let bytes = self.older_bytes(&older, context.settings);
            self.release(older.address, bytes, older.requested, completed);
            let ended = ChangeKind::Ended { allocated_at: self.start, reason: EndReason::Freed };
            let block = self.older_block(&older, bytes, context.streams);
            self.emit(context, ended, block);
        }
    }

    /// Emits the end of the allocation at an index of the trace.
    fn end_of(
        &mut self,
        at: u32,
        reason: EndReason,
        completed: bool,
        context: &mut ReplayContext<'_>,
    ) {
        let Some(&allocation) = context.entries.get(at) else { return };
        let bytes = if allocation.flags & ODD_SIZE == 0 {
            self.rounded(allocation.size, context.settings)
        } else {
            self.odd_sizes.remove(&at).unwrap_or(0)
        };
        self.release(allocation.address, bytes, allocation.size, completed);
        let ended = ChangeKind::Ended { allocated_at: timestamp(allocation.time), reason };
        let block = self.block(&allocation, bytes, context.streams);
        self.emit(context, ended, block);
    }

    fn release(&mut self, address: u64, bytes: u64, requested: u64, completed: bool) {
        self.stats.allocated.sub(bytes);
        self.stats.requested.sub(requested);
        if completed {
            self.unused(address, bytes);
        } else {
            self.pending.insert(address, bytes);
        }
    }

    fn completed(&mut self, address: u64) {
        if let Some(bytes) = self.pending.remove(&address) {
            self.unused(address, bytes);
        }
    }

    fn unused(&mut self, address: u64, bytes: u64) {
        self.stats.active.sub(bytes);
        if bytes > SMALL_BLOCK_BYTES && !self.grows && !self.trace.plain_sizes {
            self.free_blocks.free(address, bytes);
        }
    }

    fn reserved(&mut self, entry: &TraceEntry, context: &mut ReplayContext<'_>) {
        self.remove_ranges(entry, EndReason::Replaced, context);
        let range = ReservedRange {
            reserved_at: self.now,
            site: site(entry.site),
            stream: context.streams.get(entry.stream).map(StreamId),
        };
        if entry.flags & EXPANDABLE == 0 {
            self.free_blocks.reserve(entry.address, entry.size);
        }
        self.ranges.add(entry.address, entry.size, range);
        self.stats.reserved.add(entry.size);
        self.emit(context, ChangeKind::Allocated, Self::reserve(entry.address, entry.size, range));
    }

    fn returned(&mut self, entry: &TraceEntry, context: &mut ReplayContext<'_>) {
        self.free_blocks.release(entry.address);
        self.remove_ranges(entry, EndReason::Freed, context);
    }

    /// Ends the memory in a range of addresses. Ranges that extend beyond it also end, and their
    /// rests start again.
    fn remove_ranges(
        &mut self,
        entry: &TraceEntry,
        reason: EndReason,
        context: &mut ReplayContext<'_>,
    ) {
        for cut in self.ranges.take(entry.address, entry.size) {
            self.stats.reserved.sub(cut.bytes);
            let ended = ChangeKind::Ended { allocated_at: cut.value.reserved_at, reason };
            self.emit(context, ended, Self::reserve(cut.address, cut.bytes, cut.value));
            for (address, bytes) in cut.rests.into_iter().flatten() {
                let range = ReservedRange { reserved_at: self.now, ..cut.value };
                if let Some(value) = self.ranges.get_mut(address) {
                    *value = range;
                }
                self.stats.reserved.add(bytes);
                self.emit(context, ChangeKind::Allocated, Self::reserve(address, bytes, range));
            }
        }
    }

    fn failed(&mut self, entry: &TraceEntry, context: &mut ReplayContext<'_>) {
        let micros = entry.time;
        let time = jiff::Timestamp::from_microsecond(i64::try_from(micros).unwrap_or(0));
        let when = match time {
            Ok(time) if context.timed => time.to_string(),
            _ => format!("entry {micros}"),
        };
        if self.trace.kind == MemoryKind::Torch {
            context.sink.failed_allocation(&FailedAllocation {
                at: self.now,
                pid: Pid(0),
                device: self.trace.device,
                bytes: entry.size,
                free_bytes: Some(entry.address),
                site: site(entry.site),
            });
        }
        let device = self.trace.device.map_or_else(|| "the host".to_owned(), |at| at.to_string());
        context.warnings.failure(|| {
            format!(
                "out of memory on {device} at {when}: {} ({} bytes) wanted, {} ({} bytes) free on \
                 the device",
                Bytes(entry.size),
                entry.size,
                Bytes(entry.address),
                entry.address,
            )
        });
    }

    /// Emits what only the state at the end shows.
    pub(super) fn finish(&mut self, end: Timestamp, context: &mut ReplayContext<'_>) {
        self.now = end;
        for at in std::mem::take(&mut self.pairs.vanished) {
            self.end_of(at, EndReason::Freed, true, context);
        }
        for block in std::mem::take(&mut self.pairs.later) {
            let mut change = self.change(block.address, block.bytes, block.site);
            change.stream = self.trace.stream_at(block.address);
            self.emit(context, ChangeKind::Allocated, change);
        }
        let is_cache = self.trace.kind == MemoryKind::Torch && !self.trace.plain_sizes;
        if let Some(segments) = self.trace.segments.take() {
            let mut sums = [0_u64; 4];
            for segment in segments {
                sums = add_segment(sums, &segment);
                // Segments of a profile only span its addresses.
                if is_cache || self.trace.kind == MemoryKind::Pinned {
                    context.sink.segment(segment);
                }
            }
            self.correct(sums);
        }
        if is_cache {
            context.sink.cache_stats(&self.stats);
        }
    }

    /// Sets the statistics to the state at the end, which is authoritative.
    fn correct(&mut self, sums: [u64; 4]) {
        let AllocatorStats { allocated, requested, active, reserved, .. } = &mut self.stats;
        for (level, sum) in [allocated, requested, active, reserved].into_iter().zip(sums) {
            level.current = sum;
            level.peak = level.peak.max(sum);
        }
    }

    fn rounded(&self, requested: u64, settings: &AllocatorSettings) -> u64 {
        if self.trace.plain_sizes { requested } else { settings.rounded(requested) }
    }

    fn older_bytes(&self, older: &PreTraceBlock, settings: &AllocatorSettings) -> u64 {
        older.bytes.unwrap_or_else(|| self.rounded(older.requested, settings))
    }

    fn older_block(
        &self,
        older: &PreTraceBlock,
        bytes: u64,
        streams: &StreamTable,
    ) -> AllocationChange {
        let mut change = self.change(older.address, bytes, site(older.site));
        let stream = streams.get(older.stream).map(StreamId);
        change.stream = stream.or_else(|| self.trace.stream_at(older.address));
        change
    }

    fn block(&self, entry: &TraceEntry, bytes: u64, streams: &StreamTable) -> AllocationChange {
        let mut change = self.change(entry.address, bytes, site(entry.site));
        change.stream = streams.get(entry.stream).map(StreamId);
        change
    }

    fn change(&self, address: u64, bytes: u64, site: Option<SiteId>) -> AllocationChange {
        AllocationChange {
            at: self.now,
            action: ChangeKind::Allocated,
            pid: Pid(0),
            tid: Tid(0),
            device: self.trace.device,
            kind: self.trace.kind,
            key: AllocationKey::address(address),
            bytes,
            pool: None,
            stream: None,
            site,
        }
    }

    /// Returns the change of a range that the cache reserved. Its key differs from that of the
    /// block at the same address.
    fn reserve(address: u64, bytes: u64, range: ReservedRange) -> AllocationChange {
        AllocationChange {
            at: range.reserved_at,
            action: ChangeKind::Allocated,
            pid: Pid(0),
            tid: Tid(0),
            device: None,
            kind: MemoryKind::Pool,
            key: AllocationKey { space: AddressType::Pool, value: address },
            bytes,
            pool: None,
            stream: range.stream,
            site: range.site,
        }
    }

    #[inline]
    fn emit(&self, context: &mut ReplayContext<'_>, action: ChangeKind, change: AllocationChange) {
        let change = AllocationChange { at: self.now, action, device: self.trace.device, ..change };
        context.emit(self.number, &change);
    }
}

/// Adds a segment's blocks to the sums: allocated, requested, active, reserved.
fn add_segment(sums: [u64; 4], segment: &engine::model::caching_allocator::Segment) -> [u64; 4] {
    let [mut allocated, mut requested, mut active, reserved] = sums;
    for block in &segment.blocks {
        if block.state == BlockState::Allocated {
            allocated = allocated.saturating_add(block.bytes);
            requested = requested.saturating_add(block.requested);
        }
        if block.state != BlockState::Free {
            active = active.saturating_add(block.bytes);
        }
    }
    [allocated, requested, active, reserved.saturating_add(segment.bytes)]
}

/// Returns a timestamp, in nanoseconds since 1970.
pub(super) fn timestamp(micros: u64) -> Timestamp {
    Timestamp(micros.saturating_mul(1000))
}
