//! Sizes of blocks. An entry has the requested size; the allocator's statistics count the block
//! size. Up to 1 MiB that is the rounded request. A larger block also keeps the rest of the free
//! block that it was split from, if that is at most 1 MiB: so the free blocks of large segments are
//! tracked.

use std::collections::{BTreeMap, BTreeSet};

use engine::model::AllocatorSettings;

/// Requests up to this size have separate segments.
pub(crate) const SMALL_BLOCK_BYTES: u64 = 1 << 20;

/// Size of those segments.
const SMALL_SEGMENT_BYTES: u64 = 2 << 20;

/// Free blocks of segments for large blocks.
#[derive(Default)]
pub(crate) struct FreeBlocks {
    blocks: BTreeMap<u64, u64>,
    starts: BTreeSet<u64>,
}

impl FreeBlocks {
    /// Adds a segment, which is completely free.
    pub(crate) fn reserve(&mut self, address: u64, bytes: u64) {
        if bytes > SMALL_SEGMENT_BYTES {
            self.blocks.insert(address, bytes);
            self.starts.insert(address);
        }
    }

    /// Removes a segment.
    pub(crate) fn release(&mut self, address: u64) {
        if self.starts.remove(&address) {
            self.blocks.remove(&address);
        }
    }

    /// Allocates `bytes` at the start of a free block. Returns the block size; `None` if no free
    /// block is known there.
    pub(crate) fn take(
        &mut self,
        address: u64,
        bytes: u64,
        settings: &AllocatorSettings,
    ) -> Option<u64> {
        let gap = self.blocks.remove(&address)?;
        let rest = gap.checked_sub(bytes)?;
        let splits = settings.max_split_bytes.is_none_or(|limit| bytes < limit);
        if !splits || rest <= SMALL_BLOCK_BYTES {
            return Some(gap);
        }
        self.blocks.insert(address.saturating_add(bytes), rest);
        Some(bytes)
    }

    /// Marks the memory of a block with a known size as used.
    pub(crate) fn occupy(&mut self, address: u64, bytes: u64) {
        let Some((&start, &gap)) = self.blocks.range(..=address).next_back() else { return };
        let (end, block_end) = (start.saturating_add(gap), address.saturating_add(bytes));
        if address >= end {
            return;
        }
        self.blocks.remove(&start);
        if address > start {
            self.blocks.insert(start, address - start);
        }
        if end > block_end {
            self.blocks.insert(block_end, end - block_end);
        }
    }

    /// Frees a block and merges it with adjacent free blocks of its segment.
    pub(crate) fn free(&mut self, mut address: u64, mut bytes: u64) {
        let end = address.saturating_add(bytes);
        if !self.starts.contains(&end)
            && let Some(next) = self.blocks.remove(&end)
        {
            bytes = bytes.saturating_add(next);
        }
        if !self.starts.contains(&address)
            && let Some((&before, &gap)) = self.blocks.range(..address).next_back()
            && before.saturating_add(gap) == address
        {
            address = before;
            bytes = bytes.saturating_add(gap);
        }
        self.blocks.insert(address, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn large_block_keeps_a_rest_of_up_to_one_mib() {
        let settings = AllocatorSettings::default();
        let mut free_blocks = FreeBlocks::default();
        free_blocks.reserve(0, 20 * MIB);
        assert_eq!(free_blocks.take(0, 5 * MIB, &settings), Some(5 * MIB));
        assert_eq!(free_blocks.take(5 * MIB, 14 * MIB, &settings), Some(15 * MIB));
        free_blocks.free(0, 5 * MIB);
        assert_eq!(free_blocks.take(0, 4 * MIB, &settings), Some(5 * MIB));
        assert_eq!(free_blocks.take(1, MIB, &settings), None);
    }

    #[test]
    fn free_blocks_merge_only_inside_their_segment() {
        let settings = AllocatorSettings::default();
        let mut free_blocks = FreeBlocks::default();
        free_blocks.reserve(0, 20 * MIB);
        free_blocks.reserve(20 * MIB, 20 * MIB);
        assert_eq!(free_blocks.take(0, 20 * MIB, &settings), Some(20 * MIB));
        assert_eq!(free_blocks.take(20 * MIB, 10 * MIB, &settings), Some(10 * MIB));
        free_blocks.free(0, 20 * MIB);
        free_blocks.free(20 * MIB, 10 * MIB);
        assert_eq!(free_blocks.blocks, [(0, 20 * MIB), (20 * MIB, 20 * MIB)].into());
        free_blocks.release(0);
        assert_eq!(free_blocks.blocks, [(20 * MIB, 20 * MIB)].into());
    }

    #[test]
    fn blocks_above_the_limit_are_not_split() {
        let settings =
            AllocatorSettings { max_split_bytes: Some(10 * MIB), ..AllocatorSettings::default() };
        let mut free_blocks = FreeBlocks::default();
        free_blocks.reserve(0, 30 * MIB);
        assert_eq!(free_blocks.take(0, 12 * MIB, &settings), Some(30 * MIB));
    }

    #[test]
    fn occupied_memory_is_not_free() {
        let mut free_blocks = FreeBlocks::default();
        free_blocks.reserve(0, 20 * MIB);
        free_blocks.occupy(4 * MIB, 2 * MIB);
        free_blocks.occupy(0, MIB);
        assert_eq!(free_blocks.blocks, [(MIB, 3 * MIB), (6 * MIB, 14 * MIB)].into());
    }
}
