//! Selection of the allocations that are shown as slices, and their tracks: slices of one track do
//! not overlap.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use engine::analysis::largest::Largest;
use engine::analysis::lifetimes::Lifetime;
use engine::model::{DeviceId, Pid, Timestamp};
use hashbrown::HashMap;

/// Maximum number of tracks per process and device.
const MAX_TRACKS: usize = 128;

/// The largest allocations; of equal ones those with the longest lifetime.
pub(super) struct LargestSlices(Largest<(u64, u64, Reverse<u64>), Lifetime>);

impl LargestSlices {
    pub(super) const fn new(max: usize) -> Self {
        Self(Largest::new(max))
    }

    /// Adds an allocation; `end` is the end of the file, used for live ones.
    pub(super) fn add(&mut self, lifetime: Lifetime, end: Timestamp) {
        let rank = (lifetime.change.bytes, lifetime.age(end).0, Reverse(lifetime.allocated_at.0));
        self.0.add(rank, lifetime);
    }

    /// Returns the allocations with their tracks; the largest are assigned first.
    pub(super) fn into_tracks(self) -> (Vec<(Lifetime, usize)>, u64) {
        let added = self.0.added;
        let mut tracks: HashMap<(Pid, Option<DeviceId>), Vec<SliceTrack>> = HashMap::new();
        let mut slices = Vec::new();
        for lifetime in self.0.into_values() {
            let tracks = tracks.entry((lifetime.change.pid, lifetime.change.device)).or_default();
            let end = lifetime
                .ended
                .map_or(u64::MAX, |(at, _)| at.0.max(lifetime.allocated_at.0.saturating_add(1)));
            let free = tracks.iter().position(|track| track.is_free(lifetime.allocated_at.0, end));
            let row = match free {
                Some(row) => row,
                None if tracks.len() < MAX_TRACKS => {
                    tracks.push(SliceTrack::default());
                    tracks.len() - 1
                }
                None => continue,
            };
            if let Some(track) = tracks.get_mut(row) {
                track.occupied.insert(lifetime.allocated_at.0, end);
            }
            slices.push((lifetime, row));
        }
        // At the same time and on the same track, ends come before starts.
        slices.sort_by_key(|(lifetime, row)| {
            (lifetime.allocated_at, lifetime.ended.map(|(at, _)| at), *row)
        });
        let left_out = added - slices.len() as u64;
        (slices, left_out)
    }
}

/// Time spans that do not overlap.
#[derive(Default)]
struct SliceTrack {
    occupied: BTreeMap<u64, u64>,
}

impl SliceTrack {
    fn is_free(&self, start: u64, end: u64) -> bool {
        let before = self.occupied.range(..=start).next_back();
        let next = self.occupied.range(start..).next();
        before.is_none_or(|(_, &ended)| ended <= start) && next.is_none_or(|(&next, _)| next >= end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::model::change::{AllocationChange, ChangeKind, EndReason};
    use engine::model::ids::{AllocationKey, Tid};
    use engine::model::memory_kind::MemoryKind;

    fn lifetime(start: u64, ended: Option<u64>, bytes: u64) -> Lifetime {
        let change = AllocationChange {
            at: Timestamp(start),
            action: ChangeKind::Allocated,
            pid: Pid(1),
            tid: Tid(1),
            device: None,
            kind: MemoryKind::Device,
            key: AllocationKey::address(start),
            bytes,
            pool: None,
            stream: None,
            site: None,
        };
        let ended = ended.map(|at| (Timestamp(at), EndReason::Freed));
        Lifetime { change, allocated_at: Timestamp(start), ended }
    }

    #[test]
    fn largest_are_kept_and_others_counted() {
        let mut largest = LargestSlices::new(2);
        for (start, bytes) in [(1, 5), (2, 9), (3, 1), (4, 7), (5, 7)] {
            largest.add(lifetime(start, Some(start + 1), bytes), Timestamp(10));
        }
        let (slices, left_out) = largest.into_tracks();
        let bytes: Vec<_> = slices
            .iter()
            .map(|(lifetime, _)| (lifetime.allocated_at.0, lifetime.change.bytes))
            .collect();
        assert_eq!((bytes, left_out), (vec![(2, 9), (4, 7)], 3));
    }

    #[test]
    fn slices_of_a_track_do_not_overlap() {
        let mut largest = LargestSlices::new(1000);
        let spans = [(0, Some(10), 9), (5, Some(15), 8), (10, Some(20), 7), (20, None, 6)];
        for (start, ended, bytes) in spans {
            largest.add(lifetime(start, ended, bytes), Timestamp(100));
        }
        // A slice takes at least one nanosecond of its track.
        largest.add(lifetime(3, Some(3), 2), Timestamp(100));
        largest.add(lifetime(3, Some(3), 1), Timestamp(100));
        let (slices, left_out) = largest.into_tracks();
        let rows: Vec<_> =
            slices.iter().map(|(lifetime, row)| (lifetime.change.bytes, *row)).collect();
        assert_eq!((left_out, rows.len()), (0, 6));
        for (bytes, row) in [(9, 0), (8, 1), (7, 0), (6, 0), (2, 1), (1, 2)] {
            assert!(rows.contains(&(bytes, row)), "{rows:?}");
        }
    }

    #[test]
    fn number_of_tracks_is_limited() {
        let mut largest = LargestSlices::new(1000);
        for bytes in 0..MAX_TRACKS as u64 + 5 {
            largest.add(lifetime(bytes, None, bytes), Timestamp(1000));
        }
        let (slices, left_out) = largest.into_tracks();
        assert_eq!((slices.len(), left_out), (MAX_TRACKS, 5));
        assert!(
            slices.iter().all(|(lifetime, _)| lifetime.change.bytes >= 5),
            "the largest have a track"
        );
    }
}
