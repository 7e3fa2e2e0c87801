//! Prescan of a file: allocations that are live at its end, their devices and addresses.

use std::collections::{BTreeMap, BTreeSet};

use engine::analysis::MemoryScope;
use engine::analysis::lifetimes::{Lifetime, LifetimeTracker};
use engine::model::{
    AddressType, AllocationChange, AllocationKey, ChangeKind, DeviceId, EndReason, MemoryKind, Pid,
};
use hashbrown::HashMap;

/// Addresses for allocations without one: above those of devices, and exact in JavaScript numbers.
const SYNTHETIC_ADDRESSES: std::ops::Range<u64> = 1 << 52..1 << 53;

/// Alignment of synthetic addresses.
const SYNTHETIC_ALIGNMENT: u64 = 2 << 20;

/// Returns whether a snapshot contains a change.
pub(super) fn is_wanted(scope: MemoryScope, change: &AllocationChange) -> bool {
    let kind = change.kind;
    let cache =
        scope == MemoryScope::Torch && matches!(kind, MemoryKind::Pool | MemoryKind::Pinned);
    (scope.counts(kind) || cache) && change.bytes > 0
}

/// Addresses of allocations. Arrays, physical memory and graph memory have handles or nothing: they
/// get synthetic addresses, the same in every pass over a file.
#[derive(Default)]
pub(super) struct AddressAssigner {
    synthetic: HashMap<(Pid, AllocationKey, MemoryKind), u64>,
    next: u64,
}

impl AddressAssigner {
    /// Returns the address of a change's allocation; it stays the same until the allocation ends.
    pub(super) fn of(&mut self, change: &AllocationChange) -> u64 {
        let AllocationKey { space, value } = change.key;
        // Segments of a cache are also identified by their address.
        let real = space == AddressType::Pointer
            || (space == AddressType::Pool && change.kind == MemoryKind::Pool);
        if real && value > 0 {
            return value;
        }
        let key = (change.pid, change.key, change.kind);
        if let ChangeKind::Ended { .. } = change.action {
            return self.synthetic.remove(&key).unwrap_or(value);
        }
        let next = &mut self.next;
        *self.synthetic.entry(key).or_insert_with(|| {
            let room = SYNTHETIC_ADDRESSES.end - SYNTHETIC_ADDRESSES.start;
            let address = SYNTHETIC_ADDRESSES.start + *next % room;
            let bytes = change.bytes.min(room).div_ceil(SYNTHETIC_ALIGNMENT) * SYNTHETIC_ALIGNMENT;
            *next = next.wrapping_add(bytes);
            address
        })
    }
}

/// An allocation that is live at the end.
pub(super) struct LiveAllocation {
    pub(super) lifetime: Lifetime,
    pub(super) address: u64,
}

/// Result of the prescan.
pub(super) struct PrescanResult {
    /// Live allocations by process, including those that were live at process exit.
    pub(super) live: BTreeMap<Pid, Vec<LiveAllocation>>,
    /// Devices with changes.
    pub(super) devices: BTreeSet<Option<DeviceId>>,
    /// Whether the framework has pinned memory.
    pub(super) host: bool,
    /// Processes with changes.
    pub(super) processes: BTreeSet<Pid>,
}

/// Collects the live allocations of a file.
pub struct Prescan {
    pub(super) scope: MemoryScope,
    lifetimes: LifetimeTracker,
    addresses: AddressAssigner,
    /// Addresses of live allocations.
    address_of: HashMap<(Pid, AllocationKey, MemoryKind), u64>,
    exited: BTreeMap<Pid, Vec<LiveAllocation>>,
    devices: BTreeSet<Option<DeviceId>>,
    host: bool,
    processes: BTreeSet<Pid>,
}

impl Prescan {
    /// Creates an empty prescan.
    pub fn new(scope: MemoryScope) -> Self {
        Self {
            scope,
            lifetimes: LifetimeTracker::default(),
            addresses: AddressAssigner::default(),
            address_of: HashMap::new(),
            exited: BTreeMap::new(),
            devices: BTreeSet::new(),
            host: false,
            processes: BTreeSet::new(),
        }
    }

    /// Adds a change.
    pub fn change(&mut self, change: &AllocationChange) {
        if !is_wanted(self.scope, change) {
            return;
        }
        self.processes.insert(change.pid);
        if change.kind == MemoryKind::Pinned {
            self.host = true;
        } else {
            self.devices.insert(change.device);
            if let ChangeKind::Updated { before, .. } = change.action {
                self.devices.insert(before.device);
            }
        }
        let address = self.addresses.of(change);
        let key = (change.pid, change.key, change.kind);
        match change.action {
            ChangeKind::Ended { .. } => self.address_of.remove(&key),
            ChangeKind::Allocated | ChangeKind::Updated { .. } => {
                self.address_of.insert(key, address)
            }
        };
        if change.action == ChangeKind::Allocated {
            // A new program under the same pid: memory of the old one was freed by the kernel.
            self.exited.remove(&change.pid);
        }
        if let Some(lifetime) = self.lifetimes.observe(change)
            && matches!(lifetime.ended, Some((_, EndReason::ProcessExited)))
        {
            self.exited.entry(change.pid).or_default().push(LiveAllocation { lifetime, address });
        }
    }

    pub(super) fn finish(self) -> PrescanResult {
        let mut live = self.exited;
        for lifetime in self.lifetimes.finish() {
            let key = (lifetime.change.pid, lifetime.change.key, lifetime.change.kind);
            let address = self.address_of.get(&key).copied().unwrap_or(lifetime.change.key.value);
            live.entry(lifetime.change.pid).or_default().push(LiveAllocation { lifetime, address });
        }
        let Self { devices, host, processes, .. } = self;
        PrescanResult { live, devices, host, processes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::model::ids::Tid;
    use engine::model::units::Timestamp;

    fn change(
        action: ChangeKind,
        space: AddressType,
        value: u64,
        kind: MemoryKind,
    ) -> AllocationChange {
        AllocationChange {
            at: Timestamp(1),
            action,
            pid: Pid(1),
            tid: Tid(1),
            device: None,
            kind,
            key: AllocationKey { space, value },
            bytes: 3 << 20,
            pool: None,
            stream: None,
            site: None,
        }
    }

    #[test]
    fn synthetic_addresses_are_unique_until_the_end() {
        let mut addresses = AddressAssigner::default();
        let device =
            change(ChangeKind::Allocated, AddressType::Pointer, 0x7f00, MemoryKind::Device);
        assert_eq!(addresses.of(&device), 0x7f00);
        let physical =
            change(ChangeKind::Allocated, AddressType::Handle, 0x7f00, MemoryKind::Physical);
        let graph = change(ChangeKind::Allocated, AddressType::Pointer, 0, MemoryKind::Graph);
        let (first, second) = (addresses.of(&physical), addresses.of(&graph));
        assert_eq!((first, second), (1 << 52, (1 << 52) + (4 << 20)));
        let ended = ChangeKind::Ended { allocated_at: Timestamp(1), reason: EndReason::Freed };
        assert_eq!(addresses.of(&AllocationChange { action: ended, ..physical }), first);
        assert_ne!(addresses.of(&physical), first);
        let huge = AllocationChange {
            bytes: u64::MAX,
            ..change(ChangeKind::Allocated, AddressType::Array, 9, MemoryKind::Array)
        };
        for handle in 0..10 {
            let key = AllocationKey { space: AddressType::Array, value: handle };
            assert!(SYNTHETIC_ADDRESSES.contains(&addresses.of(&AllocationChange { key, ..huge })));
        }
    }
}
