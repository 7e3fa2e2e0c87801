//! How large blocks are. An entry tells what was asked for; the allocator's statistics count what
//! the block takes. Up to 1 MiB that is the rounded request. A larger block also keeps the rest
//! of the free block that it was cut from, if that is no more than 1 MiB: to know it, what is free
//! of large segments is followed.

use std::collections::{BTreeMap, BTreeSet};

use engine::cache::CacheSettings;

/// Requests up to this size have segments of their own.
pub(super) const SMALL: u64 = 1 << 20;

/// The size of those segments.
const SMALL_SEGMENT: u64 = 2 << 20;

/// Free memory of segments for large blocks.
#[derive(Default)]
pub(super) struct Gaps {
    gaps: BTreeMap<u64, u64>,
    starts: BTreeSet<u64>,
}

impl Gaps {
    /// A segment came: it is free as a whole.
    pub(super) fn reserve(&mut self, address: u64, bytes: u64) {
        if bytes > SMALL_SEGMENT {
            self.gaps.insert(address, bytes);
            self.starts.insert(address);
        }
    }

    /// A segment went.
    pub(super) fn give_back(&mut self, address: u64) {
        if self.starts.remove(&address) {
            self.gaps.remove(&address);
        }
    }

    /// A block of `bytes` was cut from the beginning of a gap. Tells how large it is; `None` if
    /// nothing is known to be free there.
    pub(super) fn take(
        &mut self,
        address: u64,
        bytes: u64,
        settings: &CacheSettings,
    ) -> Option<u64> {
        let gap = self.gaps.remove(&address)?;
        let rest = gap.checked_sub(bytes)?;
        let splits = settings.max_split_bytes.is_none_or(|limit| bytes < limit);
        if !splits || rest <= SMALL {
            return Some(gap);
        }
        self.gaps.insert(address.saturating_add(bytes), rest);
        Some(bytes)
    }

    /// A block whose size is known lies here, and was free before.
    pub(super) fn occupy(&mut self, address: u64, bytes: u64) {
        let Some((&start, &gap)) = self.gaps.range(..=address).next_back() else { return };
        let (end, block_end) = (start.saturating_add(gap), address.saturating_add(bytes));
        if address >= end {
            return;
        }
        self.gaps.remove(&start);
        if address > start {
            self.gaps.insert(start, address - start);
        }
        if end > block_end {
            self.gaps.insert(block_end, end - block_end);
        }
    }

    /// A block is free: it joins the gaps beside it, inside its segment.
    pub(super) fn free(&mut self, mut address: u64, mut bytes: u64) {
        let end = address.saturating_add(bytes);
        if !self.starts.contains(&end)
            && let Some(next) = self.gaps.remove(&end)
        {
            bytes = bytes.saturating_add(next);
        }
        if !self.starts.contains(&address)
            && let Some((&before, &gap)) = self.gaps.range(..address).next_back()
            && before.saturating_add(gap) == address
        {
            address = before;
            bytes = bytes.saturating_add(gap);
        }
        self.gaps.insert(address, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_large_block_keeps_a_rest_of_up_to_one_mib() {
        let settings = CacheSettings::default();
        let mut gaps = Gaps::default();
        gaps.reserve(0, 20 * MIB);
        assert_eq!(gaps.take(0, 5 * MIB, &settings), Some(5 * MIB));
        assert_eq!(gaps.take(5 * MIB, 14 * MIB, &settings), Some(15 * MIB));
        gaps.free(0, 5 * MIB);
        assert_eq!(gaps.take(0, 4 * MIB, &settings), Some(5 * MIB));
        assert_eq!(gaps.take(1, MIB, &settings), None);
    }

    #[test]
    fn free_blocks_join_inside_their_segment_only() {
        let settings = CacheSettings::default();
        let mut gaps = Gaps::default();
        gaps.reserve(0, 20 * MIB);
        gaps.reserve(20 * MIB, 20 * MIB);
        assert_eq!(gaps.take(0, 20 * MIB, &settings), Some(20 * MIB));
        assert_eq!(gaps.take(20 * MIB, 10 * MIB, &settings), Some(10 * MIB));
        gaps.free(0, 20 * MIB);
        gaps.free(20 * MIB, 10 * MIB);
        assert_eq!(gaps.gaps, [(0, 20 * MIB), (20 * MIB, 20 * MIB)].into());
        gaps.give_back(0);
        assert_eq!(gaps.gaps, [(20 * MIB, 20 * MIB)].into());
    }

    #[test]
    fn blocks_beyond_the_limit_are_not_split() {
        let settings =
            CacheSettings { max_split_bytes: Some(10 * MIB), ..CacheSettings::default() };
        let mut gaps = Gaps::default();
        gaps.reserve(0, 30 * MIB);
        assert_eq!(gaps.take(0, 12 * MIB, &settings), Some(30 * MIB));
    }

    #[test]
    fn what_was_there_before_is_no_gap() {
        let mut gaps = Gaps::default();
        gaps.reserve(0, 20 * MIB);
        gaps.occupy(4 * MIB, 2 * MIB);
        gaps.occupy(0, MIB);
        assert_eq!(gaps.gaps, [(MIB, 3 * MIB), (6 * MIB, 14 * MIB)].into());
    }
}
