//! The first look at a file: what is live at its end, on which devices, and where it lies.

use std::collections::{BTreeMap, BTreeSet};

use engine::analysis::Measure;
use engine::analysis::lifetimes::{Lifetime, Lifetimes};
use engine::change::{Change, How, Turn};
use engine::ids::{DeviceId, Key, Pid, Space};
use engine::kind::Kind;
use hashbrown::HashMap;

/// Addresses for what has none: above all that devices give out, and exact in a browser's numbers.
const MADE_UP: std::ops::Range<u64> = 1 << 52..1 << 53;

/// What made-up addresses are multiples of.
const GRAIN: u64 = 2 << 20;

/// Whether a change is told by a snapshot.
pub(super) fn is_wanted(measure: Measure, change: &Change) -> bool {
    let kind = change.kind;
    let cache = measure == Measure::Torch && matches!(kind, Kind::Pool | Kind::Pinned);
    (measure.counts(kind) || cache) && change.bytes > 0
}

/// Where allocations lie. Arrays, physical memory and memory of graphs have handles or nothing:
/// they get addresses of their own, the same in every pass over a file.
#[derive(Default)]
pub(super) struct Addresses {
    made_up: HashMap<(Pid, Key, Kind), u64>,
    next: u64,
}

impl Addresses {
    /// The address of the allocation that a change is about; it has one until it ends.
    pub(super) fn of(&mut self, change: &Change) -> u64 {
        let Key { space, value } = change.key;
        // Segments of a cache are named by their address too.
        let real = space == Space::Address || (space == Space::Pool && change.kind == Kind::Pool);
        if real && value > 0 {
            return value;
        }
        let name = (change.pid, change.key, change.kind);
        if let Turn::Ended { .. } = change.what {
            return self.made_up.remove(&name).unwrap_or(value);
        }
        let next = &mut self.next;
        *self.made_up.entry(name).or_insert_with(|| {
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

/// What the first look found.
pub(super) struct Found {
    /// By process; what ended with its process is here too.
    pub(super) live: BTreeMap<Pid, Vec<Live>>,
    /// Devices with changes.
    pub(super) devices: BTreeSet<Option<DeviceId>>,
    /// Pinned memory of the framework.
    pub(super) host: bool,
    /// Processes with changes.
    pub(super) processes: BTreeSet<Pid>,
}

/// See the module.
pub struct Survey {
    pub(super) measure: Measure,
    lifetimes: Lifetimes,
    addresses: Addresses,
    /// The address of what is live.
    at: HashMap<(Pid, Key, Kind), u64>,
    exited: BTreeMap<Pid, Vec<Live>>,
    devices: BTreeSet<Option<DeviceId>>,
    host: bool,
    processes: BTreeSet<Pid>,
}

impl Survey {
    /// Nothing yet.
    #[must_use]
    pub fn new(measure: Measure) -> Self {
        Self {
            measure,
            lifetimes: Lifetimes::default(),
            addresses: Addresses::default(),
            at: HashMap::new(),
            exited: BTreeMap::new(),
            devices: BTreeSet::new(),
            host: false,
            processes: BTreeSet::new(),
        }
    }

    /// Takes note of a change.
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
        let name = (change.pid, change.key, change.kind);
        match change.what {
            Turn::Ended { .. } => self.at.remove(&name),
            Turn::Began | Turn::Learned { .. } => self.at.insert(name, address),
        };
        if change.what == Turn::Began {
            // A new program under the same pid: what the old one held is gone.
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
            let name = (one.what.pid, one.what.key, one.what.kind);
            let address = self.at.get(&name).copied().unwrap_or(one.what.key.value);
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
    fn what_has_no_address_gets_one_that_is_its_own_until_it_ends() {
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
