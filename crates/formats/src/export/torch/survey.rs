//! Prescan of a file: allocations that are live at its end, their devices and addresses.

use std::collections::{BTreeMap, BTreeSet};

use engine::analysis::Measure;
use engine::analysis::lifetimes::{Lifetime, Lifetimes};
use engine::change::{Change, How, Turn};
use engine::ids::{DeviceId, Key, Pid, Space};
use engine::kind::Kind;
use hashbrown::HashMap;

/// Addresses for allocations without one: above those of devices, and exact in JavaScript numbers.
const MADE_UP: std::ops::Range<u64> = 1 << 52..1 << 53;

/// Alignment of synthetic addresses.
const GRAIN: u64 = 2 << 20;

/// Returns whether a snapshot contains a change.
pub(super) fn is_wanted(measure: Measure, change: &Change) -> bool {
    let kind = change.kind;
    let cache = measure == Measure::Torch && matches!(kind, Kind::Pool | Kind::Pinned);
    (measure.counts(kind) || cache) && change.bytes > 0
}

/// Addresses of allocations. Arrays, physical memory and graph memory have handles or nothing: they
/// get synthetic addresses, the same in every pass over a file.
#[derive(Default)]
pub(super) struct Addresses {
    synthetic: HashMap<(Pid, Key, Kind), u64>,
    next: u64,
}

impl Addresses {
    /// Returns the address of a change's allocation; it stays the same until the allocation ends.
    pub(super) fn of(&mut self, change: &Change) -> u64 {
        let Key { space, value } = change.key;
        // Segments of a cache are also identified by their address.
        let real = space == Space::Address || (space == Space::Pool && change.kind == Kind::Pool);
        if real && value > 0 {
            return value;
        }
        let key = (change.pid, change.key, change.kind);
        if let Turn::Ended { .. } = change.what {
            return self.synthetic.remove(&key).unwrap_or(value);
        }
        let next = &mut self.next;
        *self.synthetic.entry(key).or_insert_with(|| {
            let room = MADE_UP.end - MADE_UP.start;
            let address = MADE_UP.start + *next % room;
            let bytes = change.bytes.min(room).div_ceil(GRAIN) * GRAIN;
            *next = next.wrapping_add(bytes);
            address
        })
    }
}

/// An allocation that is live at the end.
pub(super) struct Live {
    pub(super) one: Lifetime,
    pub(super) address: u64,
}

/// Result of the prescan.
pub(super) struct Found {
    /// Live allocations by process, including those that were live at process exit.
    pub(super) live: BTreeMap<Pid, Vec<Live>>,
    /// Devices with changes.
    pub(super) devices: BTreeSet<Option<DeviceId>>,
    /// Whether the framework has pinned memory.
    pub(super) host: bool,
    /// Processes with changes.
    pub(super) processes: BTreeSet<Pid>,
}

/// Collects the live allocations of a file.
pub struct Survey {
    pub(super) measure: Measure,
    lifetimes: Lifetimes,
    addresses: Addresses,
    /// Addresses of live allocations.
    address_of: HashMap<(Pid, Key, Kind), u64>,
    exited: BTreeMap<Pid, Vec<Live>>,
    devices: BTreeSet<Option<DeviceId>>,
    host: bool,
    processes: BTreeSet<Pid>,
}

impl Survey {
    /// Creates an empty prescan.
    #[must_use]
    pub fn new(measure: Measure) -> Self {
        Self {
            measure,
            lifetimes: Lifetimes::default(),
            addresses: Addresses::default(),
            address_of: HashMap::new(),
            exited: BTreeMap::new(),
            devices: BTreeSet::new(),
            host: false,
            processes: BTreeSet::new(),
        }
    }

    /// Adds a change.
    pub fn change(&mut self, change: &Change) {
        if !is_wanted(self.measure, change) {
            return;
        }
        self.processes.insert(change.pid);
        if change.kind == Kind::Pinned {
            self.host = true;
        } else {
            self.devices.insert(change.device);
            if let Turn::Learned { before, .. } = change.what {
                self.devices.insert(before.device);
            }
        }
        let address = self.addresses.of(change);
        let key = (change.pid, change.key, change.kind);
        match change.what {
            Turn::Ended { .. } => self.address_of.remove(&key),
            Turn::Began | Turn::Learned { .. } => self.address_of.insert(key, address),
        };
        if change.what == Turn::Began {
            // A new program under the same pid: memory of the old one was freed by the kernel.
            self.exited.remove(&change.pid);
        }
        if let Some(one) = self.lifetimes.change(change)
            && matches!(one.ended, Some((_, How::Exited)))
        {
            self.exited.entry(change.pid).or_default().push(Live { one, address });
        }
    }

    pub(super) fn finish(self) -> Found {
        let mut live = self.exited;
        for one in self.lifetimes.finish() {
            let key = (one.what.pid, one.what.key, one.what.kind);
            let address = self.address_of.get(&key).copied().unwrap_or(one.what.key.value);
            live.entry(one.what.pid).or_default().push(Live { one, address });
        }
        let Self { devices, host, processes, .. } = self;
        Found { live, devices, host, processes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::ids::Tid;
    use engine::units::Moment;

    fn change(what: Turn, space: Space, value: u64, kind: Kind) -> Change {
        Change {
            at: Moment(1),
            what,
            pid: Pid(1),
            tid: Tid(1),
            device: None,
            kind,
            key: Key { space, value },
            bytes: 3 << 20,
            pool: None,
            stream: None,
            site: None,
        }
    }

    #[test]
    fn synthetic_addresses_are_unique_until_the_end() {
        let mut addresses = Addresses::default();
        let device = change(Turn::Began, Space::Address, 0x7f00, Kind::Device);
        assert_eq!(addresses.of(&device), 0x7f00);
        let one = change(Turn::Began, Space::Handle, 0x7f00, Kind::Physical);
        let graph = change(Turn::Began, Space::Address, 0, Kind::Graph);
        let (first, second) = (addresses.of(&one), addresses.of(&graph));
        assert_eq!((first, second), (1 << 52, (1 << 52) + (4 << 20)));
        let ended = Turn::Ended { began: Moment(1), how: How::Freed };
        assert_eq!(addresses.of(&Change { what: ended, ..one }), first);
        assert_ne!(addresses.of(&one), first);
        let huge = Change { bytes: u64::MAX, ..change(Turn::Began, Space::Array, 9, Kind::Array) };
        for handle in 0..10 {
            let key = Key { space: Space::Array, value: handle };
            assert!(MADE_UP.contains(&addresses.of(&Change { key, ..huge })));
        }
    }
}
