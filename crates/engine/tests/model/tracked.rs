//! The live set that results from applying changes to an empty map, one after the other.

use std::collections::BTreeMap;

use engine::ledger::Ledger;
use engine::model::change::{AllocationChange, ChangeKind, EndReason, LateFields};
use engine::model::ids::{AllocationKey, Pid, SiteId, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::units::Timestamp;
use engine::snapshot::Snapshot;
use proptest::prelude::*;

/// The fields of a live allocation that changes carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LiveAllocation {
    pub(crate) allocated_at: Timestamp,
    pub(crate) tid: Tid,
    pub(crate) kind: MemoryKind,
    pub(crate) late_fields: LateFields,
    pub(crate) site: Option<SiteId>,
}

/// Live allocations reconstructed from the change log.
#[derive(Default)]
pub(crate) struct LiveSet {
    pub(crate) live: BTreeMap<(Pid, AllocationKey), LiveAllocation>,
    latest: Timestamp,
    /// Frees and context releases by process; an exit clears them.
    freed: BTreeMap<Pid, u64>,
    released: BTreeMap<Pid, u64>,
}

impl LiveSet {
    /// Applies the changes that the ledger logged.
    pub(crate) fn apply(&mut self, ledger: &mut Ledger) -> Result<(), TestCaseError> {
        let mut changes = Vec::new();
        ledger.drain_changes(&mut changes);
        for change in changes {
            prop_assert!(self.latest <= change.at);
            self.latest = change.at;
            self.apply_change(&change)?;
        }
        Ok(())
    }

    fn apply_change(&mut self, change: &AllocationChange) -> Result<(), TestCaseError> {
        let name = (change.pid, change.key);
        let AllocationChange { tid, kind, site, .. } = *change;
        let now = |allocated_at| LiveAllocation {
            allocated_at,
            tid,
            kind,
            late_fields: change.late_fields(),
            site,
        };
        match change.action {
            ChangeKind::Allocated => {
                // Events of the model are in time order.
                prop_assert_eq!(self.live.insert(name, now(change.at)), None);
            }
            ChangeKind::Ended { allocated_at, reason } => {
                prop_assert_eq!(self.live.remove(&name), Some(now(allocated_at)));
                match reason {
                    EndReason::Freed => *self.freed.entry(change.pid).or_default() += 1,
                    EndReason::Released => *self.released.entry(change.pid).or_default() += 1,
                    EndReason::ProcessExited | EndReason::Replaced => {}
                }
            }
            ChangeKind::Updated { allocated_at, before } => {
                prop_assert_ne!(before, change.late_fields());
                let old = self.live.insert(name, now(allocated_at));
                prop_assert_eq!(
                    old,
                    Some(LiveAllocation { late_fields: before, ..now(allocated_at) })
                );
            }
        }
        Ok(())
    }

    /// Checks that the totals and lists of running processes match a snapshot.
    pub(crate) fn check(&mut self, snapshot: &Snapshot) -> Result<(), TestCaseError> {
        let device_bytes = |allocation: &LiveAllocation| {
            if allocation.kind.takes_device_memory() { allocation.late_fields.bytes } else { 0 }
        };
        prop_assert_eq!(snapshot.live_bytes.0, self.live.values().map(device_bytes).sum::<u64>());
        prop_assert_eq!(snapshot.live_allocations, self.live.len() as u64);
        for process in &snapshot.processes {
            let pid = process.key.pid;
            if process.ended.is_some() {
                self.freed.remove(&pid);
                self.released.remove(&pid);
            }
        }
        for process in snapshot.processes.iter().filter(|process| process.ended.is_none()) {
            let pid = process.key.pid;
            let own = || self.live.iter().filter(|((of, _), _)| *of == pid);
            prop_assert_eq!(process.live_allocations, own().count() as u64);
            for kind in &process.kinds {
                let of_kind = own().filter(|(_, allocation)| allocation.kind == kind.kind);
                let bytes: u64 = of_kind.map(|(_, allocation)| allocation.late_fields.bytes).sum();
                prop_assert_eq!(kind.live_bytes.0, bytes);
            }
            for row in process.devices.iter().filter(|row| row.live_bytes.0 > 0) {
                let here =
                    own().filter(|(_, allocation)| allocation.late_fields.device == row.device);
                let bytes: u64 = here.map(|(_, allocation)| device_bytes(allocation)).sum();
                prop_assert_eq!(row.live_bytes.0, bytes);
            }
            let freed = self.freed.get(&pid).copied().unwrap_or(0);
            let released = self.released.get(&pid).copied().unwrap_or(0);
            prop_assert!(freed <= process.frees_total, "{freed} {process:?}");
            // A free that overlaps with the end of its context is logged before it is received.
            let ended = process.frees_total + process.released_total;
            prop_assert!(freed + released <= ended, "{freed} {released} {process:?}");
        }
        Ok(())
    }
}
