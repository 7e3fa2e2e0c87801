//! Pairs of allocations and frees, and blocks that are older than the trace. Entries store the
//! index of their partner, so that replaying needs no search.

use engine::model::caching_allocator::Block;
use hashbrown::HashMap;

use super::super::snapshot::trace_entries::{
    LIVE, NO_SITE, NO_STREAM, NO_TIME, PAIRED, PAIRED_OLDER, REPLACES, TraceAction, TraceEntries,
    TraceEntry,
};
use super::super::warnings::Warnings;
use super::device_trace::DeviceTrace;

/// Results of pairing that do not fit into the entries of a trace.
#[derive(Default)]
pub(in crate::import::torch) struct AllocFreePairs {
    /// Blocks from before the trace.
    pub(in crate::import::torch) older: Vec<PreTraceBlock>,
    /// Block sizes of allocations that are live at the end.
    pub(in crate::import::torch) live: HashMap<u32, u64>,
    /// Allocations at a live address, and the allocations they replaced.
    pub(in crate::import::torch) replaced: HashMap<u32, u32>,
    /// Allocations that are not in the segments although they were not freed.
    pub(in crate::import::torch) vanished: Vec<u32>,
    /// Blocks of the segments that are newer than the trace.
    pub(in crate::import::torch) later: Vec<Block>,
    /// Entries about segments.
    pub(in crate::import::torch) ranges: Vec<u32>,
}

/// A block from before the trace.
#[derive(Clone, Copy)]
pub(in crate::import::torch) struct PreTraceBlock {
    pub(in crate::import::torch) address: u64,
    pub(in crate::import::torch) requested: u64,
    pub(in crate::import::torch) site: u32,
    pub(in crate::import::torch) stream: u16,
    /// Block size, if the segments have it.
    pub(in crate::import::torch) bytes: Option<u64>,
}

/// The block at an address was freed in the trace.
const FREED: u32 = u32::MAX;

/// The block at an address was found in the segments.
const FOUND: u32 = u32::MAX - 1;

/// Pairs the entries of a trace and sorts them by time.
pub(in crate::import::torch) fn pair(
    lane: &DeviceTrace,
    events: &mut TraceEntries,
    notes: &mut Warnings,
) -> AllocFreePairs {
    let mut pairs = AllocFreePairs::default();
    let mut at_address: HashMap<u64, u32> = HashMap::new();
    let mut now = None;
    let (first, count) = (lane.trace.first, lane.trace.count);
    for at in first..first.saturating_add(count) {
        let Some(event) = events.get_mut(at) else { break };
        keep_order(event, at - first, &mut now, notes);
        match event.action {
            TraceAction::Alloc => match at_address.insert(event.address, at) {
                None | Some(FREED) => {}
                Some(older) => {
                    event.flags |= REPLACES;
                    pairs.replaced.insert(at, older);
                    notes.replaced += 1;
                }
            },
            TraceAction::FreeRequested => match at_address.insert(event.address, FREED) {
                Some(FREED) => notes.stray_frees += 1,
                Some(allocation) => {
                    event.size = u64::from(allocation);
                    event.flags |= PAIRED;
                }
                None => {
                    let older = PreTraceBlock {
                        address: event.address,
                        requested: event.size,
                        site: NO_SITE,
                        stream: event.stream,
                        bytes: None,
                    };
                    event.size = pairs.older.len() as u64;
                    event.flags |= PAIRED_OLDER;
                    pairs.older.push(older);
                }
            },
            TraceAction::Reserved | TraceAction::Returned => pairs.ranges.push(at),
            TraceAction::FreeCompleted | TraceAction::Oom => {}
        }
    }
    if lane.segments.is_some() {
        compare(lane, &mut at_address, events, &mut pairs, notes);
    }
    notes.older += pairs.older.len() as u64;
    pairs
}

/// Makes times non-decreasing; entries without one count up.
#[inline]
fn keep_order(event: &mut TraceEntry, number: u32, now: &mut Option<u64>, notes: &mut Warnings) {
    if event.time == NO_TIME {
        notes.timeless += 1;
        event.time = now.map_or_else(|| u64::from(number), |now| now.saturating_add(1));
    }
    if let Some(now) = *now
        && event.time < now
    {
        notes.moved += 1;
        event.time = now;
    }
    *now = Some(event.time);
}

/// Compares the blocks that are live after the trace with those of the segments.
fn compare(
    lane: &DeviceTrace,
    at_address: &mut HashMap<u64, u32>,
    events: &mut TraceEntries,
    pairs: &mut AllocFreePairs,
    notes: &mut Warnings,
) {
    for block in lane.live() {
        match at_address.insert(block.address, FOUND) {
            None => pairs.older.push(PreTraceBlock {
                address: block.address,
                requested: block.requested,
                site: block.site.map_or(NO_SITE, |site| site.0),
                stream: NO_STREAM,
                bytes: Some(block.bytes),
            }),
            Some(FOUND) => notes.odd_blocks += 1,
            Some(FREED) => pairs.later.push(*block),
            Some(at) => match events.get_mut(at) {
                Some(event) if event.size <= block.bytes => {
                    event.flags |= LIVE;
                    pairs.live.insert(at, block.bytes);
                }
                // The current block at this address is newer.
                _ => {
                    pairs.later.push(*block);
                    pairs.vanished.push(at);
                }
            },
        }
    }
    let missing = at_address.values().copied().filter(|&at| at != FREED && at != FOUND);
    pairs.vanished.extend(missing);
    pairs.vanished.sort_unstable();
    notes.vanished += pairs.vanished.len() as u64;
    notes.later += pairs.later.len() as u64;
}
