//! Pairs of allocations and frees, and blocks that are older than the trace. Entries store the
//! index of their partner, so that replaying needs no search.

use engine::model::Block;
use hashbrown::HashMap;

use super::super::snapshot::trace_entries::{
    LIVE, NO_SITE, NO_STREAM, NO_TIME, PAIRED, PAIRED_OLDER, REPLACES, TraceAction, TraceEntries,
    TraceEntry,
};
use super::super::warnings::Warnings;
use super::device_trace::DeviceTrace;

/// Results of pairing that do not fit into the entries of a trace.
#[derive(Default)]
pub(crate) struct AllocFreePairs {
    /// Blocks from before the trace.
    pub(crate) older: Vec<PreTraceBlock>,
    /// Block sizes of allocations that are live at the end.
    pub(crate) live: HashMap<u32, u64>,
    /// Allocations at a live address, and the allocations they replaced.
    pub(crate) replaced: HashMap<u32, u32>,
    /// Allocations that are not in the segments although they were not freed.
    pub(crate) vanished: Vec<u32>,
    /// Blocks of the segments that are newer than the trace.
    pub(crate) later: Vec<Block>,
    /// Entries about segments.
    pub(crate) ranges: Vec<u32>,
}

/// A block from before the trace.
#[derive(Clone, Copy)]
pub(crate) struct PreTraceBlock {
    pub(crate) address: u64,
    pub(crate) requested: u64,
    pub(crate) site: u32,
    pub(crate) stream: u16,
    /// Block size, if the segments have it.
    pub(crate) bytes: Option<u64>,
}

/// The block at an address was freed in the trace.
const FREED: u32 = u32::MAX;

/// The block at an address was found in the segments.
const FOUND: u32 = u32::MAX - 1;

/// Pairs the entries of a trace and sorts them by time.
pub(crate) fn pair(
    trace: &DeviceTrace,
    entries: &mut TraceEntries,
    warnings: &mut Warnings,
) -> AllocFreePairs {
    let mut pairs = AllocFreePairs::default();
    let mut at_address: HashMap<u64, u32> = HashMap::new();
    let mut now = None;
    let (first, count) = (trace.entries.first, trace.entries.count);
    for at in first..first.saturating_add(count) {
        let Some(entry) = entries.get_mut(at) else { break };
        keep_order(entry, at - first, &mut now, warnings);
        match entry.action {
            TraceAction::Alloc => match at_address.insert(entry.address, at) {
                None | Some(FREED) => {}
                Some(older) => {
                    entry.flags |= REPLACES;
                    pairs.replaced.insert(at, older);
                    warnings.replaced += 1;
                }
            },
            TraceAction::FreeRequested => match at_address.insert(entry.address, FREED) {
                Some(FREED) => warnings.stray_frees += 1,
                Some(allocation) => {
                    entry.size = u64::from(allocation);
                    entry.flags |= PAIRED;
                }
                None => {
                    let older = PreTraceBlock {
                        address: entry.address,
                        requested: entry.size,
                        site: NO_SITE,
                        stream: entry.stream,
                        bytes: None,
                    };
                    entry.size = pairs.older.len() as u64;
                    entry.flags |= PAIRED_OLDER;
                    pairs.older.push(older);
                }
            },
            TraceAction::Reserved | TraceAction::Returned => pairs.ranges.push(at),
            TraceAction::FreeCompleted | TraceAction::Oom => {}
        }
    }
    if trace.segments.is_some() {
        compare(trace, &mut at_address, entries, &mut pairs, warnings);
    }
    warnings.older += pairs.older.len() as u64;
    pairs
}

/// Makes times non-decreasing; entries without one count up.
#[inline]
fn keep_order(entry: &mut TraceEntry, number: u32, now: &mut Option<u64>, warnings: &mut Warnings) {
    if entry.time == NO_TIME {
        warnings.timeless += 1;
        entry.time = now.map_or_else(|| u64::from(number), |now| now.saturating_add(1));
    }
    if let Some(now) = *now
        && entry.time < now
    {
        warnings.moved += 1;
        entry.time = now;
    }
    *now = Some(entry.time);
}

/// Compares the blocks that are live after the trace with those of the segments.
fn compare(
    trace: &DeviceTrace,
    at_address: &mut HashMap<u64, u32>,
    entries: &mut TraceEntries,
    pairs: &mut AllocFreePairs,
    warnings: &mut Warnings,
) {
    for block in trace.live() {
        match at_address.insert(block.address, FOUND) {
            None => pairs.older.push(PreTraceBlock {
                address: block.address,
                requested: block.requested,
                site: block.site.map_or(NO_SITE, |site| site.0),
                stream: NO_STREAM,
                bytes: Some(block.bytes),
            }),
            Some(FOUND) => warnings.odd_blocks += 1,
            Some(FREED) => pairs.later.push(*block),
            Some(at) => match entries.get_mut(at) {
                Some(entry) if entry.size <= block.bytes => {
                    entry.flags |= LIVE;
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
    warnings.vanished += pairs.vanished.len() as u64;
    warnings.later += pairs.later.len() as u64;
}
