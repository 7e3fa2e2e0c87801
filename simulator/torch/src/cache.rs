//! The caching allocator of one device, like PyTorch's: requests are rounded to 512 bytes; up to 1
//! MiB they come from segments of 2 MiB, up to 10 MiB from segments of 20 MiB, larger ones have
//! their own. The smallest free block that is large enough is split; adjacent free blocks are
//! merged.

use std::collections::BTreeMap;

const SMALL_BLOCK_BYTES: u64 = 1 << 20;
const SMALL_SEGMENT_BYTES: u64 = 2 << 20;
const LARGE_BLOCK_BYTES: u64 = 10 << 20;
const LARGE_SEGMENT_BYTES: u64 = 20 << 20;
const BLOCK_ALIGNMENT: u64 = 512;

/// A part of a segment.
#[derive(Clone, Copy)]
struct Block {
    bytes: u64,
    free: bool,
    segment: u64,
    small: bool,
}

/// The allocator with its blocks and statistics.
#[derive(Default)]
pub(crate) struct CachingAllocator {
    /// By address.
    blocks: BTreeMap<u64, Block>,
    /// By first address.
    segments: BTreeMap<u64, u64>,
    pub(crate) allocated: u64,
    pub(crate) reserved: u64,
    pub(crate) peak: u64,
    pub(crate) allocations: u64,
    pub(crate) frees: u64,
    pub(crate) ooms: u64,
    /// Freed blocks that wait for a stream.
    retired: Vec<u64>,
}

/// The layout of free memory.
#[derive(Default)]
pub(crate) struct FreeLayout {
    /// Bytes in completely free segments.
    pub(crate) whole_segments: u64,
    /// Bytes in other segments.
    pub(crate) fragmented: u64,
    /// Largest free block in other segments.
    pub(crate) largest: u64,
}

/// Returns the rounded size of a request.
pub(crate) fn rounded(bytes: u64) -> u64 {
    bytes.max(1).div_ceil(BLOCK_ALIGNMENT) * BLOCK_ALIGNMENT
}

/// Returns the size of the segment to allocate for a request that fits nowhere.
pub(crate) fn segment_for(bytes: u64) -> u64 {
    if bytes <= SMALL_BLOCK_BYTES {
        SMALL_SEGMENT_BYTES
    } else if bytes < LARGE_BLOCK_BYTES {
        LARGE_SEGMENT_BYTES
    } else {
        bytes.div_ceil(SMALL_SEGMENT_BYTES) * SMALL_SEGMENT_BYTES
    }
}

impl CachingAllocator {
    /// Allocates a free block that fits, and returns its address and length.
    pub(crate) fn allocate(&mut self, bytes: u64) -> Option<(u64, u64)> {
        let small = bytes <= SMALL_BLOCK_BYTES;
        let fits = |(_, block): &(&u64, &Block)| {
            block.free && block.small == small && block.bytes >= bytes
        };
        let (&address, &block) =
            self.blocks.iter().filter(fits).min_by_key(|(at, block)| (block.bytes, **at))?;
        let rest = block.bytes - bytes;
        let split = if small { rest >= BLOCK_ALIGNMENT } else { rest > SMALL_BLOCK_BYTES };
        let length = if split { bytes } else { block.bytes };
        self.blocks.insert(address, Block { bytes: length, free: false, ..block });
        if split {
            self.blocks.insert(address + length, Block { bytes: rest, ..block });
        }
        self.allocated += length;
        self.peak = self.peak.max(self.allocated);
        self.allocations += 1;
        Some((address, length))
    }

    /// Adds a segment that was allocated for a request.
    pub(crate) fn add(&mut self, address: u64, bytes: u64, request: u64) {
        self.segments.insert(address, bytes);
        self.reserved += bytes;
        let small = request <= SMALL_BLOCK_BYTES;
        self.blocks.insert(address, Block { bytes, free: true, segment: address, small });
    }

    /// Frees a block and returns its length.
    pub(crate) fn free_block(&mut self, address: u64) -> Option<u64> {
        let block = *self.blocks.get(&address).filter(|block| !block.free)?;
        let mut merged = (address, Block { free: true, ..block });
        let next = self.blocks.get(&(address + block.bytes)).copied();
        if let Some(next) = next.filter(|next| next.free && next.segment == block.segment) {
            self.blocks.remove(&(address + block.bytes));
            merged.1.bytes += next.bytes;
        }
        let before = self.blocks.range(..address).next_back().map(|(at, block)| (*at, *block));
        if let Some((at, before)) =
            before.filter(|(_, before)| before.free && before.segment == block.segment)
        {
            self.blocks.remove(&address);
            merged.0 = at;
            merged.1.bytes += before.bytes;
        }
        self.blocks.insert(merged.0, merged.1);
        self.allocated -= block.bytes;
        self.frees += 1;
        Some(block.bytes)
    }

    /// Frees a block that waits for a stream: its memory is not used again until [`Self::finish`].
    /// Returns its length.
    pub(crate) fn retire_block(&mut self, address: u64) -> Option<u64> {
        let block = self.blocks.get(&address).filter(|block| !block.free)?;
        self.allocated -= block.bytes;
        self.frees += 1;
        self.retired.push(address);
        Some(block.bytes)
    }

    /// The streams have finished: makes the memory of blocks that waited available.
    pub(crate) fn finish(&mut self) {
        for address in std::mem::take(&mut self.retired) {
            // They were counted when they were freed.
            let bytes = self.blocks.get(&address).map_or(0, |block| block.bytes);
            self.allocated += bytes;
            self.frees -= u64::from(self.free_block(address).is_some());
        }
    }

    /// Removes completely free segments and returns their addresses.
    pub(crate) fn empty(&mut self) -> Vec<u64> {
        let is_free = |(segment, bytes): (&u64, &u64)| {
            let block = self.blocks.get(segment)?;
            (block.free && block.bytes == *bytes).then_some(*segment)
        };
        let free: Vec<u64> = self.segments.iter().filter_map(is_free).collect();
        for segment in &free {
            self.blocks.remove(segment);
            self.reserved -= self.segments.remove(segment).unwrap_or(0);
        }
        free
    }

    /// Returns the number of allocated blocks.
    pub(crate) fn live(&self) -> usize {
        self.blocks.values().filter(|block| !block.free).count()
    }

    pub(crate) fn unused(&self) -> FreeLayout {
        let mut unused = FreeLayout::default();
        for block in self.blocks.values().filter(|block| block.free) {
            if self.segments.get(&block.segment) == Some(&block.bytes) {
                unused.whole_segments += block.bytes;
            } else {
                unused.fragmented += block.bytes;
                unused.largest = unused.largest.max(block.bytes);
            }
        }
        unused
    }
}
