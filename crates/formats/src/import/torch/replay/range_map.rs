//! Memory that the cache reserved over time. Expandable segments are mapped and unmapped in parts,
//! so memory is tracked as ranges of addresses.

use std::collections::BTreeMap;

/// Non-overlapping ranges of addresses, each with a value.
#[derive(Clone, Default)]
pub(crate) struct RangeMap<T> {
    by_start: BTreeMap<u64, (u64, T)>,
}

/// A range that was split: it ended, and its rests started.
pub(crate) struct SplitRange<T> {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) value: T,
    /// Rests before and after the removed part.
    pub(crate) rests: [Option<(u64, u64)>; 2],
}

impl<T: Copy> RangeMap<T> {
    /// Adds a range; it must not overlap others.
    pub(crate) fn add(&mut self, address: u64, bytes: u64, value: T) {
        if bytes > 0 {
            self.by_start.insert(address, (bytes, value));
        }
    }

    /// Removes a range of addresses. Returns the affected ranges, in the order of addresses.
    pub(crate) fn take(&mut self, address: u64, bytes: u64) -> Vec<SplitRange<T>> {
        if bytes == 0 {
            return Vec::new();
        }
        let end = address.saturating_add(bytes);
        let first =
            self.by_start.range(..=address).next_back().map_or(address, |(&start, _)| start);
        let touched: Vec<_> = self
            .by_start
            .range(first..)
            .take_while(|&(&start, _)| start < end)
            .filter(|&(&start, &(bytes, _))| start.saturating_add(bytes) > address)
            .map(|(&start, &(bytes, value))| (start, bytes, value))
            .collect();
        touched
            .into_iter()
            .map(|(start, bytes, value)| {
                self.by_start.remove(&start);
                let its_end = start.saturating_add(bytes);
                let before = (start < address).then(|| (start, address - start));
                let after = (its_end > end).then(|| (end, its_end - end));
                let rests = [before, after];
                for (start, bytes) in rests.iter().flatten() {
                    self.by_start.insert(*start, (*bytes, value));
                }
                SplitRange { address: start, bytes, value, rests }
            })
            .collect()
    }

    /// Returns the value of the range that starts at an address.
    pub(crate) fn get_mut(&mut self, address: u64) -> Option<&mut T> {
        self.by_start.get_mut(&address).map(|(_, value)| value)
    }

    /// Returns all ranges, in the order of addresses.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64, T)> {
        self.by_start.iter().map(|(&start, &(bytes, value))| (start, bytes, value))
    }
}

/// Returns how many bytes of the ranges were removed.
pub(crate) fn cut_bytes<T>(cuts: &[SplitRange<T>]) -> u64 {
    cuts.iter().fold(0, |sum, cut| {
        let rest = cut.rests.iter().flatten().map(|(_, bytes)| bytes).sum();
        sum.saturating_add(cut.bytes.saturating_sub(rest))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_range_leaves_rests_before_and_after() {
        let mut ranges = RangeMap::default();
        ranges.add(0, 100, 'a');
        ranges.add(100, 50, 'b');
        ranges.add(200, 50, 'c');
        let cuts = ranges.take(80, 40);
        assert_eq!(cut_bytes(&cuts), 40);
        let remaining: Vec<_> = ranges.iter().collect();
        assert_eq!(remaining, [(0, 80, 'a'), (120, 30, 'b'), (200, 50, 'c')]);
        assert!(ranges.take(150, 50).is_empty());
        assert_eq!(cut_bytes(&ranges.take(0, 1000)), 160);
        assert_eq!(ranges.iter().count(), 0);
        assert!(ranges.take(u64::MAX, u64::MAX).is_empty());
    }
}
