//! Summary of each process of a file on each device: allocations, frees, live memory, peak and
//! largest groups.

use std::cmp::Reverse;

use hashbrown::HashMap;

use super::groups::{Group, GroupSums, GroupTable};
use super::{Amount, Delta, MemoryScope, Table, by_kind};
use crate::model::{AllocationChange, DeviceId, MemoryKind, Pid, Timestamp};

/// A process on one device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceSummary {
    /// Device, if known.
    pub device: Option<DeviceId>,
    /// Number of allocations, of all kinds.
    pub allocations: u64,
    /// Number of allocations that were freed.
    pub frees: u64,
    /// Number that ended with their context or module.
    pub released: u64,
    /// Counted memory that is live at the end of the file.
    pub live: Amount,
    /// Counted memory that was never freed: `live`, and memory that was live when the process
    /// ended.
    pub never_freed: Amount,
    /// Peak of the counted memory.
    pub peak_bytes: u64,
    /// When the peak was first reached.
    pub peak_at: Timestamp,
    /// Memory never freed, by kind, for all kinds.
    pub kinds: Vec<(MemoryKind, Amount)>,
}

/// A process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessSummary {
    /// Process id.
    pub pid: Pid,
    /// Devices on which it had memory; the unknown device last.
    pub devices: Vec<DeviceSummary>,
    /// Its largest groups, by memory never freed, then by peak.
    pub sites: Vec<Group>,
    /// Number of further groups.
    pub more_sites: usize,
}

/// Summary of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SummaryReport {
    /// All processes, those that hold most memory first.
    pub processes: Vec<ProcessSummary>,
    /// Counted memory that was never freed, over all processes.
    pub never_freed: Amount,
    /// Peak of the counted memory over all processes and devices.
    pub peak_bytes: u64,
    /// When the peak was first reached.
    pub peak_at: Timestamp,
}

/// Computes the summary of a file.
#[derive(Clone, Debug, Default)]
pub struct SummaryAnalysis {
    groups: GroupTable,
    /// Counted memory of each process on each device.
    devices: Table<(Pid, Option<DeviceId>), GroupSums>,
}

impl SummaryAnalysis {
    /// Creates an empty analysis; `scope` selects the memory that totals and peaks include.
    pub fn new(scope: MemoryScope) -> Self {
        Self { groups: GroupTable::new(scope), devices: Table::default() }
    }

    /// Adds a change.
    pub fn observe(&mut self, change: &AllocationChange) {
        self.groups.observe(change);
        if !self.groups.scope().counts(change.kind) {
            return;
        }
        for delta in Delta::of(change) {
            let owner = (delta.key.pid, delta.key.device);
            self.devices.get(owner, GroupSums::default).apply(&delta, change);
        }
    }

    /// Totals by group.
    pub const fn groups(&self) -> &GroupTable {
        &self.groups
    }

    /// Returns the summary, with at most `top` groups per process.
    pub fn finish(&self, top: usize) -> SummaryReport {
        let mut by_pid: HashMap<Pid, Vec<Group>> = HashMap::new();
        for group in self.groups.iter() {
            by_pid.entry(group.key.pid).or_default().push(group);
        }
        let all = by_pid.into_iter().map(|(pid, groups)| self.process(pid, groups, top));
        let mut processes: Vec<_> = all.collect();
        let never_freed = |process: &ProcessSummary| {
            let devices = process.devices.iter();
            devices.fold(Amount::default(), |sum, device| sum.plus(device.never_freed))
        };
        processes.sort_by_cached_key(|process| {
            let peak = process.devices.iter().map(|device| device.peak_bytes).max();
            (Reverse(never_freed(process).bytes), Reverse(peak), process.pid)
        });
        let (peak_bytes, peak_at) = self.groups.peak();
        SummaryReport {
            never_freed: processes.iter().map(never_freed).fold(Amount::default(), Amount::plus),
            processes,
            peak_bytes,
            peak_at,
        }
    }

    fn process(&self, pid: Pid, mut groups: Vec<Group>, top: usize) -> ProcessSummary {
        let mut devices: Vec<_> = groups.iter().map(|group| group.key.device).collect();
        devices.sort_by_key(|device| (device.is_none(), *device));
        devices.dedup();
        let devices = devices.into_iter().map(|device| self.device(pid, device, &groups)).collect();
        let scope = self.groups.scope();
        groups.retain(|group| scope.counts(group.key.kind));
        groups.sort_by_key(|group| {
            (Reverse(group.never_freed().bytes), Reverse(group.peak_bytes), group.key)
        });
        let more_sites = groups.len().saturating_sub(top);
        groups.truncate(top);
        ProcessSummary { pid, devices, sites: groups, more_sites }
    }

    fn device(&self, pid: Pid, device: Option<DeviceId>, groups: &[Group]) -> DeviceSummary {
        let here = || groups.iter().filter(|group| group.key.device == device);
        let scope = self.groups.scope();
        let counted = || here().filter(|group| scope.counts(group.key.kind));
        let sums = self.devices.find((pid, device)).copied().unwrap_or_default();
        let (peak_bytes, peak_at) = sums.peak();
        DeviceSummary {
            device,
            allocations: here().map(|group| group.allocated.allocations).sum(),
            frees: here().map(|group| group.freed).sum(),
            released: here().map(|group| group.released).sum(),
            live: counted().map(|group| group.live).fold(Amount::default(), Amount::plus),
            never_freed: counted().map(Group::never_freed).fold(Amount::default(), Amount::plus),
            peak_bytes,
            peak_at,
            kinds: by_kind(here().map(|group| (group.key.kind, group.never_freed()))),
        }
    }
}
