//! Peak of each device, and of each process on it: size, time, and every allocation that was live
//! then. One pass.
//!
//! Each scope has a list of allocations that were live at its peak so far and have ended since. A
//! new peak clears the list; the end of an allocation that is older than the peak adds to it. The
//! allocations at the peak are that list, plus all live ones that are old enough. Nothing is ever
//! copied: the cost per change is constant, and memory is proportional to the allocations that are
//! live now or were at a peak.
#![allow(clippy::cast_possible_truncation, reason = "fewer rows than 2^32")]

use std::cmp::Reverse;

use hashbrown::HashMap;

use super::{Amount, GroupKey, MemoryScope, RunningSum};
use crate::model::{
    AllocationChange, AllocationKey, ChangeKind, DeviceId, MemoryKind, Pid, SiteId, Tid, Timestamp,
};

/// An allocation that was live at a peak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveAtPeak {
    /// Key of the allocation.
    pub key: AllocationKey,
    /// Size.
    pub bytes: u64,
    /// Time of the allocation.
    pub allocated_at: Timestamp,
    /// Thread that allocated it, or 0.
    pub tid: Tid,
}

/// Memory of one group that was live at a peak.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupAtPeak {
    /// Process, device, kind and site.
    pub key: GroupKey,
    /// Bytes and number of allocations.
    pub amount: Amount,
    /// The allocations, largest first.
    pub allocations: Vec<LiveAtPeak>,
}

/// Peak of a device, or of one process on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peak {
    /// Device; `None` if it is unknown.
    pub device: Option<DeviceId>,
    /// Process; `None` for the whole device.
    pub pid: Option<Pid>,
    /// Size of the peak.
    pub bytes: u64,
    /// When it was first reached.
    pub at: Timestamp,
    /// Memory live at that time, largest group first.
    pub live: Vec<GroupAtPeak>,
}

/// One live allocation.
#[derive(Clone, Copy, Debug)]
struct LiveAllocation {
    allocation: LiveAtPeak,
    /// Number of the change that allocated or updated it.
    since: u64,
    site: Option<SiteId>,
    pid: Pid,
    kind: MemoryKind,
    /// Indices of the scopes of its device and its process.
    scopes: [u32; 2],
}

#[derive(Clone, Debug)]
struct PeakScope {
    device: Option<DeviceId>,
    pid: Option<Pid>,
    now: RunningSum,
    peak: RunningSum,
    at: Timestamp,
    /// Number of the change that reached the peak.
    number: u64,
    /// Allocations that were live at the peak and have ended since.
    ended: Vec<LiveAllocation>,
}

/// Finds the peaks and the memory that was live at them.
#[derive(Clone, Debug, Default)]
pub struct PeakAnalysis {
    memory_scope: MemoryScope,
    number: u64,
    live: HashMap<(u64, u64), LiveAllocation>,
    scopes: Vec<PeakScope>,
    device_scopes: HashMap<Option<DeviceId>, u32>,
    index: HashMap<u64, [u32; 2]>,
    last: Option<(u64, [u32; 2])>,
}

/// Packs process and key into two words: the table is read with every change.
fn packed_key(pid: Pid, key: AllocationKey) -> (u64, u64) {
    (key.value, u64::from(pid.0) << 8 | key.space.index() as u64)
}

impl PeakAnalysis {
    /// Creates an empty analysis; `memory_scope` selects the memory that counts.
    pub fn new(memory_scope: MemoryScope) -> Self {
        Self { memory_scope, ..Self::default() }
    }

    /// Adds a change.
    pub fn observe(&mut self, change: &AllocationChange) {
        if !self.memory_scope.counts(change.kind) {
            return;
        }
        self.number += 1;
        match change.action {
            ChangeKind::Allocated => self.begin(change, change.at),
            ChangeKind::Ended { .. } => self.end(change),
            ChangeKind::Updated { allocated_at, before } => {
                if (before.device, before.bytes) != (change.device, change.bytes) {
                    self.end(change);
                    self.begin(change, allocated_at);
                }
            }
        }
    }

    fn begin(&mut self, change: &AllocationChange, allocated_at: Timestamp) {
        let AllocationChange { pid, tid, key, kind, site, bytes, .. } = *change;
        let scopes = self.scopes_of(change.device, pid);
        let allocation = LiveAtPeak { key, bytes, allocated_at, tid };
        let live = LiveAllocation { allocation, since: self.number, site, pid, kind, scopes };
        if let Some(older) = self.live.insert(packed_key(pid, key), live) {
            // The file has two allocations with the same key and no free between them.
            self.remove(&older);
        }
        for index in scopes {
            if let Some(scope) = self.scopes.get_mut(index as usize) {
                scope.now.add(bytes);
                if scope.now > scope.peak {
                    scope.peak = scope.now;
                    scope.at = change.at;
                    scope.number = self.number;
                    scope.ended.clear();
                }
            }
        }
    }

    fn end(&mut self, change: &AllocationChange) {
        if let Some(live) = self.live.remove(&packed_key(change.pid, change.key)) {
            self.remove(&live);
        }
    }

    fn remove(&mut self, live: &LiveAllocation) {
        for index in live.scopes {
            if let Some(scope) = self.scopes.get_mut(index as usize) {
                scope.now.subtract(live.allocation.bytes);
                if live.since <= scope.number {
                    scope.ended.push(*live);
                }
            }
        }
    }

    fn scopes_of(&mut self, device: Option<DeviceId>, pid: Pid) -> [u32; 2] {
        let packed = u64::from(pid.0) | device.map_or(0, |device| u64::from(device.0) + 1) << 32;
        if let Some((last, scopes)) = self.last
            && last == packed
        {
            return scopes;
        }
        let scopes = self.index.get(&packed).copied().unwrap_or_else(|| {
            let device_scope = self.device_scopes.get(&device).copied();
            let device_scope = device_scope.unwrap_or_else(|| self.open(device, None));
            self.device_scopes.insert(device, device_scope);
            let scopes = [device_scope, self.open(device, Some(pid))];
            self.index.insert(packed, scopes);
            scopes
        });
        self.last = Some((packed, scopes));
        scopes
    }

    fn open(&mut self, device: Option<DeviceId>, pid: Option<Pid>) -> u32 {
        let (now, peak) = (RunningSum::default(), RunningSum::default());
        let at = Timestamp(0);
        self.scopes.push(PeakScope { device, pid, now, peak, at, number: 0, ended: Vec::new() });
        (self.scopes.len() - 1) as u32
    }

    /// Returns the peaks by device, the unknown device last; for each device first the whole
    /// device, then its processes, largest first.
    pub fn finish(self) -> Vec<Peak> {
        let Self { live, mut scopes, .. } = self;
        for live in live.values() {
            for index in live.scopes {
                if let Some(scope) = scopes.get_mut(index as usize)
                    && live.since <= scope.number
                {
                    scope.ended.push(*live);
                }
            }
        }
        let peak = |scope: PeakScope| Peak {
            device: scope.device,
            pid: scope.pid,
            bytes: scope.peak.value(),
            at: scope.at,
            live: group(scope.device, &scope.ended),
        };
        let mut peaks: Vec<_> = scopes.into_iter().map(peak).collect();
        peaks.sort_by_key(|peak| {
            let of_process = peak.pid.is_some();
            (peak.device.is_none(), peak.device, of_process, Reverse(peak.bytes), peak.pid)
        });
        peaks
    }
}

fn group(device: Option<DeviceId>, members: &[LiveAllocation]) -> Vec<GroupAtPeak> {
    let mut groups: HashMap<GroupKey, GroupAtPeak> = HashMap::new();
    for live in members {
        let key = GroupKey { pid: live.pid, device, kind: live.kind, site: live.site };
        let none = || GroupAtPeak { key, amount: Amount::default(), allocations: Vec::new() };
        let at = groups.entry(key).or_insert_with(none);
        at.amount = at.amount.plus(Amount { bytes: live.allocation.bytes, allocations: 1 });
        at.allocations.push(live.allocation);
    }
    let mut all: Vec<_> = groups.into_values().collect();
    for at in &mut all {
        at.allocations.sort_by_key(|allocation| {
            (Reverse(allocation.bytes), allocation.allocated_at, allocation.key)
        });
    }
    all.sort_by_key(|at| (Reverse(at.amount.bytes), at.key));
    all
}
