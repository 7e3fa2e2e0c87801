//! Layout of an allocator's blocks in its driver memory.
//!
//! A *segment* is memory that the allocator obtained in one call: an allocation, or a mapping of
//! physical memory. Adjacent mappings form one *run* of addresses, in which a block may span
//! several of them.

use crate::model::{AddressType, FragmentationUnknown, Timestamp};

use super::super::memory::totals::ByteSum;
use super::super::process::Process;
use super::cache::{BlockCache, CachedBlock};

/// Limit of blocks and segments that are scanned: at most a tenth of a second per report.
const MAX_SCANNED_BLOCKS: usize = 1 << 21;

/// Segments of a pool.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SegmentUsage {
    /// Size of segments that contain blocks, or whose first block was seen.
    pub(super) held: ByteSum,
    /// Number of these segments.
    pub(super) segments: u64,
    /// Memory in segments with blocks that no block uses.
    pub(super) free: ByteSum,
    /// Largest gap between blocks, or between a block and an end of its run.
    pub(super) largest_gap: u64,
    /// Whether blocks exist outside of known memory.
    pub(super) unknown: bool,
}

/// Address range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Segment {
    start: u64,
    end: u64,
    /// Whether it can be part of a longer run.
    mapped: bool,
    /// When it was allocated or mapped.
    since: Timestamp,
}

/// Used bytes and pool of a segment.
#[derive(Clone, Copy, Debug, Default)]
struct SegmentFill {
    bytes: u64,
    pool: Option<u16>,
}

/// Segments of the pools of an allocator, by index of the pool.
pub(super) fn usage(
    process: &Process,
    cache: &BlockCache,
) -> Result<Vec<SegmentUsage>, FragmentationUnknown> {
    let allocations = usize::try_from(process.totals.count).unwrap_or(usize::MAX);
    if cache.blocks.len().saturating_add(allocations) > MAX_SCANNED_BLOCKS {
        return Err(FragmentationUnknown::TooMany);
    }
    let mut blocks: Vec<_> = cache.blocks.iter().copied().collect();
    let mut found = vec![SegmentUsage::default(); cache.pools.len()];
    if blocks.is_empty() && cache.segments.is_empty() {
        return Ok(found);
    }
    blocks.sort_unstable_by_key(|block| block.address);
    let segments = segments(process);
    let filled = lay_out(&blocks, &segments, &mut found);
    for (segment, filled) in segments.iter().zip(&filled) {
        let noted = cache.segments.get(&segment.start);
        let noted = noted.filter(|(_, seen)| segment.since <= *seen).map(|(pool, _)| *pool);
        if let Some(own) = filled.pool.or(noted).and_then(|pool| of(&mut found, pool)) {
            own.held.add(segment.end.saturating_sub(segment.start));
            own.segments += 1;
        }
    }
    Ok(found)
}

fn of(found: &mut [SegmentUsage], pool: u16) -> Option<&mut SegmentUsage> {
    found.get_mut(usize::from(pool))
}

fn segments(process: &Process) -> Vec<Segment> {
    let slab = &process.allocations.slab;
    let plain = slab.iter().filter_map(|(_, entry)| {
        let key = entry.key();
        let is_one = key.space == AddressType::Pointer && entry.kind.takes_device_memory();
        let end = key.value.saturating_add(entry.bytes);
        let since = entry.returned_at;
        is_one.then_some(Segment { start: key.value, end, mapped: false, since })
    });
    let mapped = process.physical.mapped();
    let mapped = mapped.map(|(start, end, since)| Segment { start, end, mapped: true, since });
    let mut all: Vec<_> = plain.chain(mapped).filter(|one| one.start < one.end).collect();
    all.sort_unstable();
    all
}

/// Requires both lists sorted by address. Returns the used bytes of each segment.
fn lay_out(
    blocks: &[CachedBlock],
    segments: &[Segment],
    found: &mut [SegmentUsage],
) -> Vec<SegmentFill> {
    let mut filled = vec![SegmentFill::default(); segments.len()];
    let mut first = 0;
    for block in blocks {
        let end = block.address.saturating_add(block.bytes);
        while segments.get(first).is_some_and(|segment| segment.end <= block.address) {
            first += 1;
        }
        let mut at = block.address;
        for (segment, filled) in segments.iter().zip(&mut filled).skip(first) {
            if segment.start > at || at >= end {
                break;
            }
            let to = segment.end.min(end);
            filled.bytes = filled.bytes.saturating_add(to.saturating_sub(at));
            filled.pool = Some(block.pool);
            at = at.max(to);
        }
        if at < end
            && let Some(own) = of(found, block.pool)
        {
            own.unknown = true;
        }
    }
    for (segment, filled) in segments.iter().zip(&filled) {
        if let Some(own) = filled.pool.and_then(|pool| of(found, pool)) {
            let length = segment.end.saturating_sub(segment.start);
            own.free.add(length.saturating_sub(filled.bytes));
        }
    }
    gaps(blocks, &runs(segments), found);
    filled
}

/// Merges adjacent mappings.
fn runs(segments: &[Segment]) -> Vec<Segment> {
    let mut runs: Vec<Segment> = Vec::new();
    for segment in segments {
        match runs.last_mut() {
            Some(last) if last.mapped && segment.mapped && last.end == segment.start => {
                last.end = segment.end;
            }
            _ => runs.push(*segment),
        }
    }
    runs
}

/// Computes the gaps before, between and after the blocks of each run.
fn gaps(blocks: &[CachedBlock], runs: &[Segment], found: &mut [SegmentUsage]) {
    let mut blocks = blocks.iter().peekable();
    for run in runs {
        while blocks.next_if(|block| block.address < run.start).is_some() {}
        let mut at = run.start;
        let mut pool = None;
        while let Some(block) = blocks.next_if(|block| block.address < run.end) {
            if let Some(own) = of(found, block.pool) {
                own.largest_gap = own.largest_gap.max(block.address.saturating_sub(at));
            }
            at = at.max(block.address.saturating_add(block.bytes));
            pool = Some(block.pool);
        }
        if let Some(own) = pool.and_then(|pool| of(found, pool)) {
            own.largest_gap = own.largest_gap.max(run.end.saturating_sub(at));
        }
    }
}
