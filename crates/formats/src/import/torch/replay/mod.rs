//! Replay of a snapshot in the order of time: memory from before the first entry, then the entries
//! of all traces, then what only the state at the end shows.

pub(super) mod device_trace;
pub(super) mod free_blocks;
pub(super) mod pairs;
pub(super) mod range_map;

use engine::model::caching_allocator::{AllocatorSettings, AllocatorStats, BlockState};
use engine::model::change::{AllocationChange, ChangeKind, EndReason};
use engine::model::ids::{AddressType, AllocationKey, Pid, SiteId, StreamId, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::units::{Bytes, Timestamp};
use hashbrown::HashMap;

use super::replay::device_trace::{DeviceTrace, site};
use super::replay::free_blocks::{FreeBlocks, SMALL_BLOCK_BYTES};
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
    pub(super) events: &'a mut TraceEntries,
    pub(super) streams: &'a StreamTable,
    pub(super) settings: &'a AllocatorSettings,
    pub(super) notes: &'a mut Warnings,
    pub(super) sink: &'a mut dyn ImportSink,
    /// Whether entries have real times.
    pub(super) timed: bool,
}

/// Data of a range that the cache reserved.
#[derive(Clone, Copy, Default)]
struct ReservedRange {
    began: Timestamp,
    site: Option<SiteId>,
    stream: Option<StreamId>,
}

/// Replays one trace.
pub(super) struct TraceReplayer {
    lane: DeviceTrace,
    pairs: AllocFreePairs,
    next: u32,
    end: u32,
    start: Timestamp,
    now: Timestamp,
    gaps: FreeBlocks,
    grows: bool,
    pieces: RangeMap<ReservedRange>,
    /// Freed blocks that a stream still uses.
    pending: HashMap<u64, u64>,
    odd_sizes: HashMap<u32, u64>,
    levels: AllocatorStats,
}

impl TraceReplayer {
    pub(super) fn new(
        lane: DeviceTrace,
        pairs: AllocFreePairs,
        stage: &mut ReplayContext<'_>,
    ) -> Self {
        let (next, end) = (lane.trace.first, lane.trace.first.saturating_add(lane.trace.count));
        let levels = AllocatorStats { device: lane.device, ..AllocatorStats::default() };
        let segments = lane.segments.iter().flatten();
        let mut grows = stage.settings.expandable_segments == Some(true);
        grows |= segments.clone().any(|segment| segment.expandable);
        let mut pieces = RangeMap::default();
        if lane.kind == MemoryKind::Torch && !lane.plain_sizes {
            for (segment, site) in segments.zip(&lane.segment_sites) {
                let piece =
                    ReservedRange { stream: segment.stream, site: *site, began: Timestamp(0) };
                if !pieces.take(segment.address, segment.bytes).is_empty() {
                    stage.notes.odd_segments += 1;
                }
                pieces.add(segment.address, segment.bytes, piece);
            }
            // Backwards from the end to the start.
            for event in pairs.ranges.iter().rev().filter_map(|&at| stage.events.get(at)) {
                grows |= event.flags & EXPANDABLE != 0;
                let present = cut_bytes(&pieces.take(event.address, event.size));
                let returned = event.action == TraceAction::Returned;
                if present != if returned { 0 } else { event.size } && lane.segments.is_some() {
                    stage.notes.odd_segments += 1;
                }
                if returned {
                    pieces.add(event.address, event.size, ReservedRange::default());
                }
            }
        }
        Self {
            lane,
            pairs,
            next,
            end,
            start: Timestamp(0),
            now: Timestamp(0),
            gaps: FreeBlocks::default(),
            grows,
            pieces,
            pending: HashMap::new(),
            odd_sizes: HashMap::new(),
            levels,
        }
    }

    /// Returns the time of the next entry, in microseconds.
    #[inline]
    pub(super) fn time(&self, events: &TraceEntries) -> Option<u64> {
        if self.next >= self.end {
            return None;
        }
        events.get(self.next).map(|event| event.time)
    }

    /// Emits the memory from before the first entry.
    pub(super) fn begin(&mut self, start: Timestamp, stage: &mut ReplayContext<'_>) {
        (self.start, self.now) = (start, start);
        let pieces: Vec<_> = self.pieces.iter().collect();
        for (address, bytes, piece) in pieces {
            let piece = ReservedRange { began: start, ..piece };
            if let Some(about) = self.pieces.get_mut(address) {
                *about = piece;
            }
            if !self.grows {
                self.gaps.reserve(address, bytes);
            }
            self.levels.reserved.add(bytes);
            self.emit(stage, ChangeKind::Allocated, Self::reserve(address, bytes, piece));
        }
        for at in 0..self.pairs.older.len() {
            let Some(&older) = self.pairs.older.get(at) else { break };
            let bytes = self.older_bytes(&older, stage.settings);
            self.gaps.occupy(older.address, bytes);
            self.levels.allocated.add(bytes);
            self.levels.active.add(bytes);
            self.levels.requested.add(older.requested);
            let block = self.older_block(&older, bytes, stage.streams);
            self.emit(stage, ChangeKind::Allocated, block);
        }
    }

    /// Emits the next entry.
    pub(super) fn step(&mut self, stage: &mut ReplayContext<'_>) {
        let at = self.next;
        self.next = self.next.saturating_add(1);
        let Some(&event) = stage.events.get(at) else { return };
        self.now = moment(event.time);
        match event.action {
            TraceAction::Alloc => self.alloc(at, &event, stage),
            TraceAction::FreeRequested => self.free(&event, stage),
            TraceAction::FreeCompleted => self.completed(event.address),
            TraceAction::Reserved if self.has_pieces(&event) => self.reserved(&event, stage),
            TraceAction::Returned if self.has_pieces(&event) => self.returned(&event, stage),
            TraceAction::Reserved | TraceAction::Returned => {}
            TraceAction::Oom => self.failed(&event, stage),
        }
    }

    /// Returns whether an entry changes reserved memory: only of a device's cache, and not of size
    /// 0.
    fn has_pieces(&self, event: &TraceEntry) -> bool {
        self.lane.kind == MemoryKind::Torch && !self.lane.plain_sizes && event.size > 0
    }

    fn alloc(&mut self, at: u32, event: &TraceEntry, stage: &mut ReplayContext<'_>) {
        if event.flags & REPLACES != 0
            && let Some(&older) = self.pairs.replaced.get(&at)
        {
            self.end_of(older, EndReason::Replaced, true, stage);
        }
        let rounded = self.rounded(event.size, stage.settings);
        let bytes = self.size(at, event, rounded, stage);
        if bytes != rounded {
            self.odd_sizes.insert(at, bytes);
            if let Some(event) = stage.events.get_mut(at) {
                event.flags |= ODD_SIZE;
            }
        }
        self.levels.allocated.add(bytes);
        self.levels.active.add(bytes);
        self.levels.requested.add(event.size);
        let block = self.block(event, bytes, stage.streams);
        self.emit(stage, ChangeKind::Allocated, block);
    }

    /// Returns the size of a new block: from the segments, or as the allocator would have chosen
    /// it.
    fn size(
        &mut self,
        at: u32,
        event: &TraceEntry,
        rounded: u64,
        stage: &mut ReplayContext<'_>,
    ) -> u64 {
        let known = if event.flags & LIVE == 0 { None } else { self.pairs.live.get(&at).copied() };
        if self.lane.plain_sizes || rounded <= SMALL_BLOCK_BYTES {
            if known.is_some_and(|known| known != rounded) && !self.lane.plain_sizes {
                stage.notes.other_rounding += 1;
            }
            return known.unwrap_or(rounded);
        }
        let taken = self.gaps.take(event.address, rounded, stage.settings);
        if let (Some(taken), Some(known)) = (taken, known)
            && taken != known
        {
            stage.notes.other_rounding += 1;
            self.gaps.free(event.address, taken);
            self.gaps.occupy(event.address, known);
        }
        if taken.is_none() && known.is_none() && !self.grows {
            stage.notes.guessed_sizes += 1;
        }
        known.or(taken).unwrap_or(rounded)
    }

    fn free(&mut self, event: &TraceEntry, stage: &mut ReplayContext<'_>) {
        let completed = event.flags & COMPLETED != 0;
        let partner = u32::try_from(event.size).unwrap_or(u32::MAX);
        if event.flags & PAIRED != 0 {
            self.end_of(partner, EndReason::Freed, completed, stage);
        } else if event.flags & PAIRED_OLDER != 0
            && let Some(&older) = self.pairs.older.get(partner as usize)
        {
            let bytes = self.older_bytes(&older, stage.settings);
            self.release(older.address, bytes, older.requested, completed);
            let ended = ChangeKind::Ended { began: self.start, how: EndReason::Freed };
            let block = self.older_block(&older, bytes, stage.streams);
            self.emit(stage, ended, block);
        }
    }

    /// Emits the end of the allocation at an index of the trace.
    fn end_of(&mut self, at: u32, how: EndReason, completed: bool, stage: &mut ReplayContext<'_>) {
        let Some(&began) = stage.events.get(at) else { return };
        let bytes = if began.flags & ODD_SIZE == 0 {
            self.rounded(began.size, stage.settings)
        } else {
            self.odd_sizes.remove(&at).unwrap_or(0)
        };
        self.release(began.address, bytes, began.size, completed);
        let ended = ChangeKind::Ended { began: moment(began.time), how };
        let block = self.block(&began, bytes, stage.streams);
        self.emit(stage, ended, block);
    }

    fn release(&mut self, address: u64, bytes: u64, requested: u64, completed: bool) {
        self.levels.allocated.sub(bytes);
        self.levels.requested.sub(requested);
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
        self.levels.active.sub(bytes);
        if bytes > SMALL_BLOCK_BYTES && !self.grows && !self.lane.plain_sizes {
            self.gaps.free(address, bytes);
        }
    }

    fn reserved(&mut self, event: &TraceEntry, stage: &mut ReplayContext<'_>) {
        self.remove_pieces(event, EndReason::Replaced, stage);
        let piece = ReservedRange {
            began: self.now,
            site: site(event.site),
            stream: stage.streams.get(event.stream).map(StreamId),
        };
        if event.flags & EXPANDABLE == 0 {
            self.gaps.reserve(event.address, event.size);
        }
        self.pieces.add(event.address, event.size, piece);
        self.levels.reserved.add(event.size);
        self.emit(stage, ChangeKind::Allocated, Self::reserve(event.address, event.size, piece));
    }

    fn returned(&mut self, event: &TraceEntry, stage: &mut ReplayContext<'_>) {
        self.gaps.release(event.address);
        self.remove_pieces(event, EndReason::Freed, stage);
    }

    /// Ends the memory in a range of addresses. Ranges that extend beyond it also end, and their
    /// rests start again.
    fn remove_pieces(&mut self, event: &TraceEntry, how: EndReason, stage: &mut ReplayContext<'_>) {
        for cut in self.pieces.take(event.address, event.size) {
            self.levels.reserved.sub(cut.bytes);
            let ended = ChangeKind::Ended { began: cut.about.began, how };
            self.emit(stage, ended, Self::reserve(cut.address, cut.bytes, cut.about));
            for (address, bytes) in cut.rests.into_iter().flatten() {
                let piece = ReservedRange { began: self.now, ..cut.about };
                if let Some(about) = self.pieces.get_mut(address) {
                    *about = piece;
                }
                self.levels.reserved.add(bytes);
                self.emit(stage, ChangeKind::Allocated, Self::reserve(address, bytes, piece));
            }
        }
    }

    fn failed(&mut self, event: &TraceEntry, stage: &mut ReplayContext<'_>) {
        let micros = event.time;
        let time = jiff::Timestamp::from_microsecond(i64::try_from(micros).unwrap_or(0));
        let when = match time {
            Ok(time) if stage.timed => time.to_string(),
            _ => format!("entry {micros}"),
        };
        if self.lane.kind == MemoryKind::Torch {
            stage.sink.refused(&FailedAllocation {
                at: self.now,
                pid: Pid(0),
                device: self.lane.device,
                bytes: event.size,
                free_bytes: Some(event.address),
                site: site(event.site),
            });
        }
        let device = self.lane.device.map_or_else(|| "the host".to_owned(), |at| at.to_string());
        stage.notes.failure(|| {
            format!(
                "out of memory on {device} at {when}: {} ({} bytes) wanted, {} ({} bytes) free on \
                 the device",
                Bytes(event.size),
                event.size,
                Bytes(event.address),
                event.address,
            )
        });
    }

    /// Emits what only the state at the end shows.
    pub(super) fn finish(&mut self, end: Timestamp, stage: &mut ReplayContext<'_>) {
        self.now = end;
        for at in std::mem::take(&mut self.pairs.vanished) {
            self.end_of(at, EndReason::Freed, true, stage);
        }
        for block in std::mem::take(&mut self.pairs.later) {
            let mut change = self.change(block.address, block.bytes, block.site);
            change.stream = self.lane.stream_at(block.address);
            self.emit(stage, ChangeKind::Allocated, change);
        }
        let is_cache = self.lane.kind == MemoryKind::Torch && !self.lane.plain_sizes;
        if let Some(segments) = self.lane.segments.take() {
            let mut sums = [0_u64; 4];
            for segment in segments {
                sums = add_segment(sums, &segment);
                // Segments of a profile only span its addresses.
                if is_cache || self.lane.kind == MemoryKind::Pinned {
                    stage.sink.segment(segment);
                }
            }
            self.correct(sums);
        }
        if is_cache {
            stage.sink.cache_levels(&self.levels);
        }
    }

    /// Sets the levels to the state at the end, which is authoritative.
    fn correct(&mut self, sums: [u64; 4]) {
        let AllocatorStats { allocated, requested, active, reserved, .. } = &mut self.levels;
        for (level, sum) in [allocated, requested, active, reserved].into_iter().zip(sums) {
            level.current = sum;
            level.peak = level.peak.max(sum);
        }
    }

    fn rounded(&self, requested: u64, settings: &AllocatorSettings) -> u64 {
        if self.lane.plain_sizes { requested } else { settings.rounded(requested) }
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
        change.stream = stream.or_else(|| self.lane.stream_at(older.address));
        change
    }

    fn block(&self, event: &TraceEntry, bytes: u64, streams: &StreamTable) -> AllocationChange {
        let mut change = self.change(event.address, bytes, site(event.site));
        change.stream = streams.get(event.stream).map(StreamId);
        change
    }

    fn change(&self, address: u64, bytes: u64, site: Option<SiteId>) -> AllocationChange {
        AllocationChange {
            at: self.now,
            action: ChangeKind::Allocated,
            pid: Pid(0),
            tid: Tid(0),
            device: self.lane.device,
            kind: self.lane.kind,
            key: AllocationKey::address(address),
            bytes,
            pool: None,
            stream: None,
            site,
        }
    }

    /// Returns the change of a range that the cache reserved. Its key differs from that of the
    /// block at the same address.
    fn reserve(address: u64, bytes: u64, piece: ReservedRange) -> AllocationChange {
        AllocationChange {
            at: piece.began,
            action: ChangeKind::Allocated,
            pid: Pid(0),
            tid: Tid(0),
            device: None,
            kind: MemoryKind::Pool,
            key: AllocationKey { space: AddressType::Pool, value: address },
            bytes,
            pool: None,
            stream: piece.stream,
            site: piece.site,
        }
    }

    #[inline]
    fn emit(&self, stage: &mut ReplayContext<'_>, what: ChangeKind, change: AllocationChange) {
        let change =
            AllocationChange { at: self.now, action: what, device: self.lane.device, ..change };
        stage.sink.change(&change);
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
pub(super) fn moment(micros: u64) -> Timestamp {
    Timestamp(micros.saturating_mul(1000))
}
