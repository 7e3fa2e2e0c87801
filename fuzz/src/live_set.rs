//! The live set that results from changes, applied one after the other.

use std::collections::BTreeMap;

use engine::model::change::{AllocationChange, ChangeKind, LateFields};
use engine::model::ids::{AllocationKey, Pid};
use engine::model::memory_kind::MemoryKind;
use engine::model::units::Timestamp;
use engine::snapshot::Snapshot;

/// Live allocations, and the checks that every list of changes passes.
#[derive(Default)]
pub(crate) struct LiveSet {
    live: BTreeMap<(Pid, AllocationKey), AllocationChange>,
    latest: Timestamp,
}

impl LiveSet {
    /// Applies a change.
    pub(crate) fn apply(&mut self, change: &AllocationChange) {
        assert!(self.latest <= change.at, "time went backwards: {change:?}");
        self.latest = change.at;
        let name = (change.pid, change.key);
        match change.action {
            ChangeKind::Allocated => {
                let older = self.live.insert(name, *change);
                assert!(older.is_none(), "allocated twice: {change:?} after {older:?}");
            }
            ChangeKind::Ended { .. } => {
                let older = self.live.remove(&name);
                let older = older.unwrap_or_else(|| panic!("ended without a start: {change:?}"));
                assert_same(&older, change, change.late_fields());
            }
            ChangeKind::Updated { before, .. } => {
                assert_ne!(before, change.late_fields());
                let older = self.live.insert(name, *change);
                let older = older.unwrap_or_else(|| panic!("updated without a start: {change:?}"));
                assert_same(&older, change, before);
            }
        }
    }

    /// Sum of the live bytes of some kinds.
    pub(crate) fn bytes(&self, counts: impl Fn(MemoryKind) -> bool) -> u64 {
        let live = self.live.values().filter(|change| counts(change.kind));
        clamp(live.map(|change| change.bytes))
    }

    /// Checks that a snapshot shows the same live memory.
    pub(crate) fn check(&self, snapshot: &Snapshot) {
        let device = MemoryKind::takes_device_memory;
        assert_eq!(snapshot.live_bytes.0, self.bytes(device));
        assert_eq!(snapshot.live_allocations, self.live.len() as u64);
        for process in snapshot.processes.iter().filter(|process| process.ended.is_none()) {
            let own = || self.live.values().filter(|change| change.pid == process.key.pid);
            assert_eq!(process.live_allocations, own().count() as u64);
            for row in &process.kinds {
                let of_kind = own().filter(|change| change.kind == row.kind);
                assert_eq!(row.live_bytes.0, clamp(of_kind.map(|change| change.bytes)));
            }
            for row in process.devices.iter().filter(|row| row.live_bytes.0 > 0) {
                let here = own().filter(|change| change.device == row.device);
                let here = here.filter(|change| device(change.kind));
                assert_eq!(row.live_bytes.0, clamp(here.map(|change| change.bytes)));
            }
            assert!(process.peak_bytes >= process.live_bytes);
            let bounds = &process.uncertainty;
            assert!((bounds.live_min..=bounds.live_max).contains(&process.live_bytes));
        }
        let bounds = &snapshot.uncertainty;
        assert!((bounds.live_min..=bounds.live_max).contains(&snapshot.live_bytes));
    }
}

fn assert_same(older: &AllocationChange, change: &AllocationChange, fields: LateFields) {
    assert_eq!(older.late_fields(), fields, "{older:?}, then {change:?}");
    assert_eq!((older.kind, older.site), (change.kind, change.site));
    assert_eq!((older.tid, older.stream), (change.tid, change.stream));
}

/// Totals of the product are clamped, not wrapped.
fn clamp(bytes: impl Iterator<Item = u64>) -> u64 {
    u64::try_from(bytes.map(u128::from).sum::<u128>()).unwrap_or(u64::MAX)
}
