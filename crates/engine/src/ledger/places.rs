//! What an address is: device memory, or the host's. Copies that leave their direction to the
//! pointers are classified by it.
//!
//! Kept for whole neighbourhoods of 2 MiB, and not forgotten when memory is freed: drivers do not
//! mix the two in one neighbourhood, and the sums of copies are read a moment after the copies.

use std::collections::BTreeMap;

use crate::kind::{Kind, Layer};
use crate::work::Direction;

/// log2 of a neighbourhood's size.
const NEIGHBOURHOOD: u32 = 21;

/// Ranges that are kept; neighbouring ones of the same sort are one.
const MOST: usize = 100_000;

/// What lies at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// Device memory, managed memory included: only the driver knows where that lies.
    Device,
    /// Host memory that the driver knows of.
    Host,
}

impl Place {
    pub(super) fn of(kind: Kind) -> Self {
        if kind.layer() == Layer::Host { Self::Host } else { Self::Device }
    }
}

/// Ranges of neighbourhoods: the first one → the last one and what they are.
#[derive(Debug, Default)]
pub(super) struct Places {
    ranges: BTreeMap<u64, (u64, Place)>,
    /// Some range was not kept for lack of room.
    full: bool,
}

impl Places {
    /// Memory is at an address now.
    pub(super) fn set(&mut self, address: u64, bytes: u64, place: Place) {
        let mut first = address >> NEIGHBOURHOOD;
        let mut last = address.saturating_add(bytes.saturating_sub(1)) >> NEIGHBOURHOOD;
        // Usual: it is known already.
        if let Some((_, (end, known))) = self.ranges.range(..=first).next_back()
            && *end >= last
            && *known == place
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
            if known == place {
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
        if self.ranges.len() < MOST {
            self.ranges.insert(first, (last, place));
        } else {
            self.full = true;
        }
    }

    fn at(&self, address: u64) -> Option<Place> {
        let wanted = address >> NEIGHBOURHOOD;
        let (_, (last, place)) = self.ranges.range(..=wanted).next_back()?;
        (*last >= wanted).then_some(*place)
    }

    /// Which way a copy goes. Where all of the driver's memory is known, what is not the driver's
    /// is the program's own host memory.
    pub(super) fn direction(&self, to: u64, from: u64, complete: bool) -> Direction {
        let other = (complete && !self.full).then_some(Place::Host);
        let known = |address| self.at(address).or(other);
        match (known(from), known(to)) {
            (Some(Place::Host), Some(Place::Device)) => Direction::HostToDevice,
            (Some(Place::Device), Some(Place::Host)) => Direction::DeviceToHost,
            (Some(Place::Device), Some(Place::Device)) => Direction::DeviceToDevice,
            (Some(Place::Host), Some(Place::Host)) => Direction::HostToHost,
            _ => Direction::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::random::{CASES, config};

    const SIZE: u64 = 1 << NEIGHBOURHOOD;

    proptest! {
        #![proptest_config(config(CASES))]

        #[test]
        fn the_last_word_on_a_neighbourhood_counts(
            steps in prop::collection::vec((0..40_u64, 1..9_u64, any::<bool>()), 1..60),
        ) {
            let mut places = Places::default();
            let mut naive = [None; 64];
            for (first, count, device) in steps {
                let place = if device { Place::Device } else { Place::Host };
                places.set(first * SIZE, count * SIZE, place);
                naive[first as usize..(first + count) as usize].fill(Some(place));
            }
            for (place, index) in naive.iter().zip(0..) {
                prop_assert_eq!(places.at(index * SIZE + 7), *place);
            }
            let changes = naive.windows(2).filter(|pair| pair[0] != pair[1]).count();
            prop_assert!(places.ranges.len() <= changes + 1);
        }
    }

    #[test]
    fn what_is_not_the_drivers_is_the_hosts_only_where_all_is_known() {
        let mut places = Places::default();
        places.set(10 * SIZE, 100, Place::Device);
        let (device, other) = (10 * SIZE + 50, 99 * SIZE);
        assert_eq!(places.direction(device, other, true), Direction::HostToDevice);
        assert_eq!(places.direction(other, device, true), Direction::DeviceToHost);
        assert_eq!(places.direction(other, device, false), Direction::Unknown);
        assert_eq!(places.direction(device, device, false), Direction::DeviceToDevice);
        assert_eq!(places.direction(u64::MAX, 0, true), Direction::HostToHost);
    }
    #[test]
    fn what_is_not_known_is_not_the_hosts_once_a_range_was_not_kept() {
        let mut places = Places::default();
        (0..=MOST as u64).for_each(|index| places.set(2 * index * SIZE, 1, Place::Device));
        let beyond = 2 * MOST as u64 * SIZE;
        assert_eq!(places.ranges.len(), MOST);
        assert_eq!(places.direction(0, beyond, true), Direction::Unknown);
        assert_eq!(places.direction(0, 2 * SIZE, true), Direction::DeviceToDevice);
    }
}
