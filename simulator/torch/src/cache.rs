//! The cache of one device, as PyTorch's: requests are rounded to 512 bytes; up to 1 MiB they come
//! from segments of 2 MiB, up to 10 MiB from segments of 20 MiB, above that each has its own. The
//! smallest free block that is big enough is taken and split; neighbours that are free become one.

use std::collections::BTreeMap;

const SMALL: u64 = 1 << 20;
const SMALL_SEGMENT: u64 = 2 << 20;
const LARGE: u64 = 10 << 20;
const LARGE_SEGMENT: u64 = 20 << 20;
const UNIT: u64 = 512;

/// A piece of a segment.
#[derive(Clone, Copy)]
struct Block {
    bytes: u64,
    free: bool,
    segment: u64,
    small: bool,
}

/// What the cache has done, and holds.
#[derive(Default)]
pub(crate) struct Cache {
    /// By address.
    blocks: BTreeMap<u64, Block>,
    /// By first address.
    segments: BTreeMap<u64, u64>,
    pub(crate) allocated: u64,
    pub(crate) reserved: u64,
    pub(crate) peak: u64,
    pub(crate) given: u64,
    pub(crate) taken: u64,
    pub(crate) refused: u64,
}

/// How free memory lies.
#[derive(Default)]
pub(crate) struct Unused {
    /// In segments that are free as a whole.
    pub(crate) whole: u64,
    /// In the others.
    pub(crate) fragmented: u64,
    /// The biggest free block of the others.
    pub(crate) largest: u64,
}

/// As the allocator rounds a request.
pub(crate) fn rounded(bytes: u64) -> u64 {
    bytes.max(1).div_ceil(UNIT) * UNIT
}

/// What is asked of the driver for a request that nothing fits.
pub(crate) fn segment_for(bytes: u64) -> u64 {
    if bytes <= SMALL {
        SMALL_SEGMENT
    } else if bytes < LARGE {
        LARGE_SEGMENT
    } else {
        bytes.div_ceil(SMALL_SEGMENT) * SMALL_SEGMENT
    }
}

impl Cache {
    /// Gives a free block out, if one fits: its address and length.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<(u64, u64)> {
        let small = bytes <= SMALL;
        let fits = |(_, block): &(&u64, &Block)| {
            block.free && block.small == small && block.bytes >= bytes
        };
        let (&address, &block) =
            self.blocks.iter().filter(fits).min_by_key(|(at, block)| (block.bytes, **at))?;
        let rest = block.bytes - bytes;
        let split = if small { rest >= UNIT } else { rest > SMALL };
        let length = if split { bytes } else { block.bytes };
        self.blocks.insert(address, Block { bytes: length, free: false, ..block });
        if split {
            self.blocks.insert(address + length, Block { bytes: rest, ..block });
        }
        self.allocated += length;
        self.peak = self.peak.max(self.allocated);
        self.given += 1;
        Some((address, length))
    }

    /// The driver gave a segment for a request.
    pub(crate) fn add(&mut self, address: u64, bytes: u64, request: u64) {
        self.segments.insert(address, bytes);
        self.reserved += bytes;
        let small = request <= SMALL;
        self.blocks.insert(address, Block { bytes, free: true, segment: address, small });
    }

    /// Takes a block back: its length.
    pub(crate) fn put(&mut self, address: u64) -> Option<u64> {
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
        self.taken += 1;
        Some(block.bytes)
    }

    /// Segments that are free as a whole leave the cache: their addresses.
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

    /// Blocks that are given out.
    pub(crate) fn live(&self) -> usize {
        self.blocks.values().filter(|block| !block.free).count()
    }

    pub(crate) fn unused(&self) -> Unused {
        let mut unused = Unused::default();
        for block in self.blocks.values().filter(|block| block.free) {
            if self.segments.get(&block.segment) == Some(&block.bytes) {
                unused.whole += block.bytes;
            } else {
                unused.fragmented += block.bytes;
                unused.largest = unused.largest.max(block.bytes);
            }
        }
        unused
    }
}
