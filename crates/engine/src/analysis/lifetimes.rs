//! Lifetime of each allocation: when it was live, and how it ended. Ended allocations are returned
//! at once, the others at the end of the file, so that only live ones are kept.

use hashbrown::HashMap;

use crate::model::{
    AllocationChange, AllocationKey, ChangeKind, DeviceId, EndReason, MemoryKind, Nanos, Pid,
    Timestamp,
};

/// One allocation, as far as the file describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lifetime {
    /// Latest change of the allocation.
    pub change: AllocationChange,
    /// Time of the allocation.
    pub allocated_at: Timestamp,
    /// Time and reason of its end; `None` if it is live at the end of the file.
    pub ended: Option<(Timestamp, EndReason)>,
}

impl Lifetime {
    /// Name of the end reason; `live` if it did not end.
    pub const fn end_reason(&self) -> &'static str {
        match self.ended {
            None => "live",
            Some((_, reason)) => reason.name(),
        }
    }

    /// Time it was live, up to `end` if it did not end.
    pub fn age(&self, end: Timestamp) -> Nanos {
        self.ended.map_or(end, |(at, _)| at) - self.allocated_at
    }
}

/// Identifies a live allocation. Malformed files may use one key for two of them.
type LiveKey = (Pid, AllocationKey, MemoryKind, Option<DeviceId>);

/// Tracks live allocations and returns each lifetime once.
#[derive(Clone, Debug, Default)]
pub struct LifetimeTracker {
    live: HashMap<LiveKey, Lifetime>,
}

impl LifetimeTracker {
    /// Adds a change and returns the lifetime that it ends. If a key is reused without a free, the
    /// older allocation is returned as live, which matches how totals count it.
    pub fn observe(&mut self, change: &AllocationChange) -> Option<Lifetime> {
        let live_key = |device| (change.pid, change.key, change.kind, device);
        match change.action {
            ChangeKind::Allocated => {
                let new = Lifetime { change: *change, allocated_at: change.at, ended: None };
                self.live.insert(live_key(change.device), new)
            }
            ChangeKind::Ended { allocated_at, reason } => {
                let known = self.live.remove(&live_key(change.device));
                let allocated_at = known.map_or(allocated_at, |known| known.allocated_at);
                Some(Lifetime { change: *change, allocated_at, ended: Some((change.at, reason)) })
            }
            ChangeKind::Updated { allocated_at, before } => {
                let known = self.live.remove(&live_key(before.device));
                let allocated_at = known.map_or(allocated_at, |known| known.allocated_at);
                let new = Lifetime { change: *change, allocated_at, ended: None };
                self.live.insert(live_key(change.device), new)
            }
        }
    }

    /// Number of live allocations.
    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// Allocations that are live at the end of the file, oldest first.
    pub fn finish(self) -> Vec<Lifetime> {
        let mut live: Vec<Lifetime> = self.live.into_values().collect();
        live.sort_unstable_by_key(|one| {
            (one.allocated_at, one.change.pid, one.change.key, one.change.kind)
        });
        live
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::change::LateFields;
    use crate::model::ids::Tid;

    fn change(
        at: u64,
        action: ChangeKind,
        address: u64,
        bytes: u64,
        device: Option<u16>,
    ) -> AllocationChange {
        AllocationChange {
            at: Timestamp(at),
            action,
            pid: Pid(1),
            tid: Tid(1),
            device: device.map(DeviceId),
            kind: MemoryKind::Device,
            key: AllocationKey::address(address),
            bytes,
            pool: None,
            stream: None,
            site: None,
        }
    }

    #[test]
    fn each_allocation_is_reported_once() {
        let mut lifetimes = LifetimeTracker::default();
        assert_eq!(lifetimes.observe(&change(1, ChangeKind::Allocated, 10, 8, Some(0))), None);
        assert_eq!(lifetimes.observe(&change(2, ChangeKind::Allocated, 20, 4, None)), None);
        let freed = ChangeKind::Ended { allocated_at: Timestamp(1), reason: EndReason::Freed };
        let ended = lifetimes.observe(&change(5, freed, 10, 8, Some(0))).unwrap();
        assert_eq!(
            (ended.allocated_at, ended.end_reason(), ended.age(Timestamp(9))),
            (Timestamp(1), "freed", Nanos(4))
        );
        // An update does not create a second allocation.
        let before = LateFields { device: None, pool: None, bytes: 4 };
        let updated = ChangeKind::Updated { allocated_at: Timestamp(2), before };
        assert_eq!(lifetimes.observe(&change(6, updated, 20, 6, Some(1))), None);
        // A reused key returns the older allocation, which was never freed.
        let older = lifetimes.observe(&change(7, ChangeKind::Allocated, 20, 2, Some(1))).unwrap();
        assert_eq!(
            (older.change.bytes, older.end_reason(), older.allocated_at),
            (6, "live", Timestamp(2))
        );
        assert_eq!(lifetimes.live(), 1);
        let live = lifetimes.finish();
        assert_eq!((live.len(), live[0].change.bytes, live[0].age(Timestamp(9))), (1, 2, Nanos(2)));
    }
}
