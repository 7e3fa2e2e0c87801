//! Naive version of every analysis: every live set is kept, searched and summed from scratch.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use engine::analysis::watermark::{Held, HeldAt, Peak};
use engine::analysis::{Amount, Place};
use engine::change::{Change, How, Turn};
use engine::ids::{DeviceId, Key, Pid};
use engine::units::Moment;

use super::courses::Course;

pub(crate) type LiveSet = BTreeMap<(Pid, Key), (Change, Moment)>;

fn apply(live: &mut LiveSet, change: &Change) {
    let name = (change.pid, change.key);
    match change.what {
        Turn::Began => drop(live.insert(name, (*change, change.at))),
        Turn::Ended { .. } => drop(live.remove(&name)),
        Turn::Learned { began, .. } => drop(live.insert(name, (*change, began))),
    }
}

pub(crate) fn counts(change: &Change) -> bool {
    change.kind.takes_device_memory()
}

/// Returns the live set after each change.
pub(crate) fn sets(changes: &[Change]) -> Vec<(Moment, LiveSet)> {
    let mut live = LiveSet::new();
    let mut sets = Vec::new();
    for change in changes {
        apply(&mut live, change);
        sets.push((change.at, live.clone()));
    }
    sets
}

/// Returns the peak of every device and of every process on it.
pub(crate) fn peaks(changes: &[Change]) -> Vec<Peak> {
    let mut scopes = BTreeSet::new();
    for change in changes.iter().filter(|change| counts(change)) {
        let mut devices = vec![change.device];
        if let Turn::Learned { before, .. } = change.what {
            devices.push(before.device);
        }
        for device in devices {
            scopes.insert((device, None));
            scopes.insert((device, Some(change.pid)));
        }
    }
    let sets = sets(changes);
    let mut peaks: Vec<_> =
        scopes.into_iter().map(|(device, pid)| peak(&sets, device, pid)).collect();
    peaks.sort_by_key(|peak| {
        (peak.device.is_none(), peak.device, peak.pid.is_some(), Reverse(peak.bytes), peak.pid)
    });
    peaks
}

fn peak(sets: &[(Moment, LiveSet)], device: Option<DeviceId>, pid: Option<Pid>) -> Peak {
    let mut best = Peak { device, pid, bytes: 0, at: Moment(0), live: Vec::new() };
    for (at, live) in sets {
        let inside = |change: &Change| {
            counts(change) && change.device == device && pid.is_none_or(|pid| change.pid == pid)
        };
        let members: Vec<_> = live.values().filter(|(change, _)| inside(change)).collect();
        let bytes: u64 = members.iter().map(|(change, _)| change.bytes).sum();
        if bytes > best.bytes {
            let mut groups: BTreeMap<Place, Vec<Held>> = BTreeMap::new();
            for (change, began) in members {
                let Change { key, bytes, tid, .. } = *change;
                let held = Held { key, bytes, began: *began, tid };
                groups.entry(Place::of(change)).or_default().push(held);
            }
            best = Peak { bytes, at: *at, live: grouped(groups), ..best };
        }
    }
    best
}

fn grouped(groups: BTreeMap<Place, Vec<Held>>) -> Vec<HeldAt> {
    let group = |(key, mut allocations): (Place, Vec<Held>)| {
        allocations.sort_by_key(|held| (Reverse(held.bytes), held.began, held.key));
        let bytes = allocations.iter().map(|held| held.bytes).sum();
        let amount = Amount { bytes, allocations: allocations.len() as u64 };
        HeldAt { place: key, amount, allocations }
    };
    let mut all: Vec<_> = groups.into_iter().map(group).collect();
    all.sort_by_key(|at| (Reverse(at.amount.bytes), at.place));
    all
}

/// Returns memory that is live at the end, or was when its process exited.
pub(crate) fn never_freed(changes: &[Change]) -> BTreeMap<Place, Amount> {
    let mut live = LiveSet::new();
    let mut left = Vec::new();
    for change in changes {
        if matches!(change.what, Turn::Ended { how: How::Exited, .. }) {
            left.push(*change);
        }
        apply(&mut live, change);
    }
    left.extend(live.values().map(|(change, _)| *change));
    let mut groups: BTreeMap<Place, Amount> = BTreeMap::new();
    for change in left {
        let amount = groups.entry(Place::of(&change)).or_default();
        *amount = amount.plus(Amount { bytes: change.bytes, allocations: 1 });
    }
    groups
}

/// Returns device memory of each device after every change to it.
pub(crate) fn totals(changes: &[Change]) -> Vec<Course> {
    let mut devices: BTreeMap<(bool, Option<DeviceId>), Course> = BTreeMap::new();
    let mut sums: BTreeMap<Option<DeviceId>, u64> = BTreeMap::new();
    for (at, live) in sets(changes) {
        let mut now: BTreeMap<Option<DeviceId>, u64> = BTreeMap::new();
        for (change, _) in live.values().filter(|(change, _)| counts(change)) {
            *now.entry(change.device).or_default() += change.bytes;
        }
        for device in [None, Some(DeviceId(0)), Some(DeviceId(1))] {
            let bytes = now.get(&device).copied().unwrap_or(0);
            if sums.insert(device, bytes).unwrap_or(0) != bytes {
                let course = devices.entry((device.is_none(), device)).or_default();
                course.0 = device;
                course.1.push((at, bytes));
            }
        }
    }
    devices.into_values().collect()
}
