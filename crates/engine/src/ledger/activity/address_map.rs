//! Classifies addresses as device or host memory, to determine the direction of copies that leave
//! it to the pointers.
//!
//! Regions of 2 MiB are classified as a whole, and kept after their memory is freed: drivers do not
//! mix both types in one region, and copy counters are read shortly after the copies.

use std::collections::BTreeMap;

use crate::model::{CopyDirection, MemoryKind, MemoryLayer};

/// Binary logarithm of the region size.
const REGION_LOG2: u32 = 21;

/// Limit of stored ranges; neighboring ranges of the same type are merged.
const MAX_RANGES: usize = 100_000;

/// Type of memory at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PointerLocation {
    /// Device memory, or managed memory, whose location only the driver knows.
    Device,
    /// Host memory that is known to the driver.
    Host,
}

impl PointerLocation {
    pub(crate) fn lookup(kind: MemoryKind) -> Self {
        if kind.layer() == MemoryLayer::Host { Self::Host } else { Self::Device }
    }
}

/// Ranges of regions: first region → last region and type.
#[derive(Debug, Default)]
pub(crate) struct AddressMap {
    ranges: BTreeMap<u64, (u64, PointerLocation)>,
    /// Whether a range was dropped because the limit was reached.
    full: bool,
}

impl AddressMap {
    /// Records the type of memory at an address.
    pub(crate) fn set(&mut self, address: u64, bytes: u64, location: PointerLocation) {
        let mut first = address >> REGION_LOG2;
        let mut last = address.saturating_add(bytes.saturating_sub(1)) >> REGION_LOG2;
        // Common case: already known.
        if let Some((_, (end, known))) = self.ranges.range(..=first).next_back()
            && *end >= last
            && *known == location
        {
            return;
        }
        let from = first.saturating_sub(1);
        let near: Vec<_> = self
            .ranges
            .range(..=last.saturating_add(1))
            .rev()
            .take_while(|(_, (end, _))| *end >= from)
            .map(|(start, (end, known))| (*start, *end, *known))
            .collect();
        for (start, end, known) in near {
            let overlaps = start <= last && end >= first;
            if known == location {
                self.ranges.remove(&start);
                (first, last) = (first.min(start), last.max(end));
            } else if overlaps {
                self.ranges.remove(&start);
                if start < first {
                    self.ranges.insert(start, (first - 1, known));
                }
                if end > last {
                    self.ranges.insert(last + 1, (end, known));
                }
            }
        }
        if self.ranges.len() < MAX_RANGES {
            self.ranges.insert(first, (last, location));
        } else {
            self.full = true;
        }
    }

    fn at(&self, address: u64) -> Option<PointerLocation> {
        let wanted = address >> REGION_LOG2;
        let (_, (last, location)) = self.ranges.range(..=wanted).next_back()?;
        (*last >= wanted).then_some(*location)
    }

    /// Direction of a copy. If all memory of the driver is known, any other address is pageable
    /// host memory.
    pub(crate) fn direction(&self, to: u64, from: u64, complete: bool) -> CopyDirection {
        let other = (complete && !self.full).then_some(PointerLocation::Host);
        let known = |address| self.at(address).or(other);
        match (known(from), known(to)) {
            (Some(PointerLocation::Host), Some(PointerLocation::Device)) => {
                CopyDirection::HostToDevice
            }
            (Some(PointerLocation::Device), Some(PointerLocation::Host)) => {
                CopyDirection::DeviceToHost
            }
            (Some(PointerLocation::Device), Some(PointerLocation::Device)) => {
                CopyDirection::DeviceToDevice
            }
            (Some(PointerLocation::Host), Some(PointerLocation::Host)) => CopyDirection::HostToHost,
            _ => CopyDirection::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::random::{CASES, config};

    const SIZE: u64 = 1 << REGION_LOG2;

    proptest! {
        #![proptest_config(config(CASES))]

        #[test]
        fn latest_range_wins(
            steps in prop::collection::vec((0..40_u64, 1..9_u64, any::<bool>()), 1..60),
        ) {
            let mut map = AddressMap::default();
            let mut naive = [None; 64];
            for (first, count, device) in steps {
                let location = if device { PointerLocation::Device } else { PointerLocation::Host };
                map.set(first * SIZE, count * SIZE, location);
                naive[first as usize..(first + count) as usize].fill(Some(location));
            }
            for (location, index) in naive.iter().zip(0..) {
                prop_assert_eq!(map.at(index * SIZE + 7), *location);
            }
            let changes = naive.windows(2).filter(|pair| pair[0] != pair[1]).count();
            prop_assert!(map.ranges.len() <= changes + 1);
        }
    }

    #[test]
    fn unknown_addresses_are_host_only_if_complete() {
        let mut map = AddressMap::default();
        map.set(10 * SIZE, 100, PointerLocation::Device);
        let (device, other) = (10 * SIZE + 50, 99 * SIZE);
        assert_eq!(map.direction(device, other, true), CopyDirection::HostToDevice);
        assert_eq!(map.direction(other, device, true), CopyDirection::DeviceToHost);
        assert_eq!(map.direction(other, device, false), CopyDirection::Unknown);
        assert_eq!(map.direction(device, device, false), CopyDirection::DeviceToDevice);
        assert_eq!(map.direction(u64::MAX, 0, true), CopyDirection::HostToHost);
    }
    #[test]
    fn dropped_range_leaves_other_addresses_unknown() {
        let mut map = AddressMap::default();
        (0..=MAX_RANGES as u64)
            .for_each(|index| map.set(2 * index * SIZE, 1, PointerLocation::Device));
        let beyond = 2 * MAX_RANGES as u64 * SIZE;
        assert_eq!(map.ranges.len(), MAX_RANGES);
        assert_eq!(map.direction(0, beyond, true), CopyDirection::Unknown);
        assert_eq!(map.direction(0, 2 * SIZE, true), CopyDirection::DeviceToDevice);
    }
}
