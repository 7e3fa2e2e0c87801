//! Naive version of every analysis: every live set is kept, searched and summed from scratch.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use engine::analysis::peak::{GroupAtPeak, LiveAtPeak, Peak};
use engine::analysis::{Amount, GroupKey};
use engine::model::change::{AllocationChange, ChangeKind, EndReason};
use engine::model::ids::{AllocationKey, DeviceId, Pid};
use engine::model::units::Timestamp;

use super::usage::DeviceSeries;

pub(crate) type LiveSet = BTreeMap<(Pid, AllocationKey), (AllocationChange, Timestamp)>;

fn apply(live: &mut LiveSet, change: &AllocationChange) {
    let name = (change.pid, change.key);
    match change.action {
        ChangeKind::Allocated => drop(live.insert(name, (*change, change.at))),
        ChangeKind::Ended { .. } => drop(live.remove(&name)),
        ChangeKind::Updated { allocated_at, .. } => {
            live.insert(name, (*change, allocated_at));
        }
    }
}

pub(crate) fn counts(change: &AllocationChange) -> bool {
    change.kind.takes_device_memory()
}

/// Returns the live set after each change.
pub(crate) fn sets(changes: &[AllocationChange]) -> Vec<(Timestamp, LiveSet)> {
    let mut live = LiveSet::new();
    let mut sets = Vec::new();
    for change in changes {
        apply(&mut live, change);
        sets.push((change.at, live.clone()));
    }
    sets
}

/// Returns the peak of every device and of every process on it.
pub(crate) fn peaks(changes: &[AllocationChange]) -> Vec<Peak> {
    let mut scopes = BTreeSet::new();
    for change in changes.iter().filter(|change| counts(change)) {
        let mut devices = vec![change.device];
        if let ChangeKind::Updated { before, .. } = change.action {
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

fn peak(sets: &[(Timestamp, LiveSet)], device: Option<DeviceId>, pid: Option<Pid>) -> Peak {
    let mut best = Peak { device, pid, bytes: 0, at: Timestamp(0), live: Vec::new() };
    for (at, live) in sets {
        let inside = |change: &AllocationChange| {
            counts(change) && change.device == device && pid.is_none_or(|pid| change.pid == pid)
        };
        let members: Vec<_> = live.values().filter(|(change, _)| inside(change)).collect();
        let bytes: u64 = members.iter().map(|(change, _)| change.bytes).sum();
        if bytes > best.bytes {
            let mut groups: BTreeMap<GroupKey, Vec<LiveAtPeak>> = BTreeMap::new();
            for (change, allocated_at) in members {
                let AllocationChange { key, bytes, tid, .. } = *change;
                let allocation = LiveAtPeak { key, bytes, allocated_at: *allocated_at, tid };
                groups.entry(GroupKey::of(change)).or_default().push(allocation);
            }
            best = Peak { bytes, at: *at, live: grouped(groups), ..best };
        }
    }
    best
}

fn grouped(groups: BTreeMap<GroupKey, Vec<LiveAtPeak>>) -> Vec<GroupAtPeak> {
    let group = |(key, mut allocations): (GroupKey, Vec<LiveAtPeak>)| {
        allocations.sort_by_key(|allocation| {
            (Reverse(allocation.bytes), allocation.allocated_at, allocation.key)
        });
        let bytes = allocations.iter().map(|allocation| allocation.bytes).sum();
        let amount = Amount { bytes, allocations: allocations.len() as u64 };
        GroupAtPeak { key, amount, allocations }
    };
    let mut all: Vec<_> = groups.into_iter().map(group).collect();
    all.sort_by_key(|at| (Reverse(at.amount.bytes), at.key));
    all
}

/// Returns memory that is live at the end, or was when its process exited.
pub(crate) fn never_freed(changes: &[AllocationChange]) -> BTreeMap<GroupKey, Amount> {
    let mut live = LiveSet::new();
    let mut never_freed = Vec::new();
    for change in changes {
        if matches!(change.action, ChangeKind::Ended { reason: EndReason::ProcessExited, .. }) {
            never_freed.push(*change);
        }
        apply(&mut live, change);
    }
    never_freed.extend(live.values().map(|(change, _)| *change));
    let mut groups: BTreeMap<GroupKey, Amount> = BTreeMap::new();
    for change in never_freed {
        let amount = groups.entry(GroupKey::of(&change)).or_default();
        *amount = amount.plus(Amount { bytes: change.bytes, allocations: 1 });
    }
    groups
}

/// Returns device memory of each device after every change to it.
pub(crate) fn totals(changes: &[AllocationChange]) -> Vec<DeviceSeries> {
    let mut devices: BTreeMap<(bool, Option<DeviceId>), DeviceSeries> = BTreeMap::new();
    let mut sums: BTreeMap<Option<DeviceId>, u64> = BTreeMap::new();
    for (at, live) in sets(changes) {
        let mut now: BTreeMap<Option<DeviceId>, u64> = BTreeMap::new();
        for (change, _) in live.values().filter(|(change, _)| counts(change)) {
            *now.entry(change.device).or_default() += change.bytes;
        }
        for device in [None, Some(DeviceId(0)), Some(DeviceId(1))] {
            let bytes = now.get(&device).copied().unwrap_or(0);
            if sums.insert(device, bytes).unwrap_or(0) != bytes {
                let series = devices.entry((device.is_none(), device)).or_default();
                series.0 = device;
                series.1.push((at, bytes));
            }
        }
    }
    devices.into_values().collect()
}
