//! Layout of a framework's cache blocks in its driver memory.
//!
//! A *segment* is memory that the cache obtained in one call: an allocation, or a mapping of
//! physical memory. Adjacent mappings form one *run* of addresses, in which a block may span
//! several of them.

use crate::model::{AddressType, DeviceId, FragmentationUnknown};

use super::super::memory::totals::ByteSum;
use super::super::process::Process;
use super::cache::TensorBlock;

/// Limit of blocks and segments that are scanned: at most a tenth of a second per report.
const MAX_SCANNED_BLOCKS: usize = 1 << 21;

/// Segments of a device that contain blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SegmentUsage {
    pub(crate) device: DeviceId,
    /// Memory in them that no block uses.
    pub(crate) free: ByteSum,
    /// Largest gap between blocks, or between a block and an end of its run.
    pub(crate) largest_gap: u64,
    /// Whether blocks exist outside of known memory.
    pub(crate) unknown: bool,
}

/// Address range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Segment {
    start: u64,
    end: u64,
    /// Whether it can be part of a longer run.
    mapped: bool,
}

/// Used bytes and device of a segment.
#[derive(Clone, Copy, Debug, Default)]
struct SegmentFill {
    bytes: u64,
    device: Option<DeviceId>,
}

/// Segments of a process that contain blocks, by device.
pub(crate) fn in_use(
    process: &Process,
    count: usize,
    blocks: impl Iterator<Item = TensorBlock>,
) -> Result<Vec<SegmentUsage>, FragmentationUnknown> {
    let allocations = usize::try_from(process.totals.count).unwrap_or(usize::MAX);
    if count.saturating_add(allocations) > MAX_SCANNED_BLOCKS {
        return Err(FragmentationUnknown::TooMany);
    }
    let mut blocks: Vec<_> = blocks.collect();
    if blocks.is_empty() {
        return Ok(Vec::new());
    }
    blocks.sort_unstable_by_key(|block| block.address);
    Ok(lay_out(&blocks, &segments(process)))
}

fn segments(process: &Process) -> Vec<Segment> {
    let slab = &process.allocations.slab;
    let plain = slab.iter().filter_map(|(_, entry)| {
        let key = entry.key();
        let is_one = key.space == AddressType::Pointer && entry.kind.takes_device_memory();
        let end = key.value.saturating_add(entry.bytes);
        is_one.then_some(Segment { start: key.value, end, mapped: false })
    });
    let mapped = process.physical.mapped();
    let mapped = mapped.map(|(start, end)| Segment { start, end, mapped: true });
    let mut all: Vec<_> = plain.chain(mapped).filter(|one| one.start < one.end).collect();
    all.sort_unstable();
    all
}

/// Requires both lists sorted by address.
fn lay_out(blocks: &[TensorBlock], segments: &[Segment]) -> Vec<SegmentUsage> {
    let mut found: Vec<SegmentUsage> = Vec::new();
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
            filled.device = Some(block.device);
            at = at.max(to);
        }
        if at < end {
            of(&mut found, block.device).unknown = true;
        }
    }
    for (segment, filled) in segments.iter().zip(&filled) {
        if let Some(device) = filled.device {
            let length = segment.end.saturating_sub(segment.start);
            of(&mut found, device).free.add(length.saturating_sub(filled.bytes));
        }
    }
    gaps(blocks, &runs(segments), &mut found);
    found
}

fn of(found: &mut Vec<SegmentUsage>, device: DeviceId) -> &mut SegmentUsage {
    let index = match found.binary_search_by_key(&device, |one| one.device) {
        Ok(index) => index,
        Err(index) => {
            found.insert(index, SegmentUsage { device, ..SegmentUsage::default() });
            index
        }
    };
    &mut found[index]
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
fn gaps(blocks: &[TensorBlock], runs: &[Segment], found: &mut Vec<SegmentUsage>) {
    let mut blocks = blocks.iter().peekable();
    for run in runs {
        while blocks.next_if(|block| block.address < run.start).is_some() {}
        let mut at = run.start;
        let mut device = None;
        while let Some(block) = blocks.next_if(|block| block.address < run.end) {
            let own = of(found, block.device);
            own.largest_gap = own.largest_gap.max(block.address.saturating_sub(at));
            at = at.max(block.address.saturating_add(block.bytes));
            device = Some(block.device);
        }
        if let Some(device) = device {
            let own = of(found, device);
            own.largest_gap = own.largest_gap.max(run.end.saturating_sub(at));
        }
    }
}
