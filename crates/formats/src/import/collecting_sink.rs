//! A sink that passes changes on and keeps everything else.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use engine::analysis::GroupKey;
use engine::analysis::suspects::{SuspectAnalysis, SuspectReport};
use engine::model::caching_allocator::{AllocatorSettings, PoolTotals, Segment};
use engine::model::change::{AllocationChange, ChangeKind, EndReason};
use engine::model::ids::{DeviceId, Pid};
use engine::model::stack::StackTable;
use engine::model::units::Timestamp;
use engine::verdict::SiteVerdict;

use super::{FailedAllocation, ImportSink, Warning};

/// Maximum number of distinct warnings; the last one counts all others.
const MAX_WARNINGS: usize = 100;

/// Maximum number of kept failed requests.
const MAX_FAILED_REQUESTS: usize = 100_000;

/// Content of a file besides its changes.
#[derive(Clone, Debug, Default)]
pub struct FileInfo {
    /// Call stacks.
    pub stacks: StackTable,
    /// Names of processes, not sanitized.
    pub processes: BTreeMap<Pid, String>,
    /// Names of devices, not sanitized, and their memory sizes.
    pub devices: BTreeMap<DeviceId, (String, Option<u64>)>,
    /// A timestamp, and the wall clock at it in nanoseconds since 1970, UTC.
    pub clock: Option<(Timestamp, i64)>,
    /// Segments of caches at the end.
    pub segments: Vec<Segment>,
    /// Settings of those caches.
    pub settings: AllocatorSettings,
    /// Totals of pools at the end.
    pub pools: Vec<PoolTotals>,
    /// Requests that failed with an out-of-memory error, up to `MAX_FAILED_REQUESTS`.
    pub failed_allocations: Vec<FailedAllocation>,
    /// Verdicts on sites of objects or tensors, leaks first.
    pub verdicts: Vec<SiteVerdict>,
    /// Verdicts on memory and anomalies of a recording.
    pub findings: Option<SuspectReport>,
    /// Warnings of the reader.
    pub warnings: Vec<Warning>,
    /// Times of the first and last change.
    pub span: Option<(Timestamp, Timestamp)>,
    /// Processes and devices with changes, if only some changes are selected.
    pub seen: SeenIds,
}

/// Processes and devices with changes, selected or not.
#[derive(Clone, Debug, Default)]
pub struct SeenIds {
    /// Processes.
    pub processes: BTreeSet<Pid>,
    /// Devices.
    pub devices: BTreeSet<DeviceId>,
}

impl FileInfo {
    /// Returns whether every value is exact.
    #[must_use]
    pub fn exact(&self) -> bool {
        !self.warnings.iter().any(|warning| warning.inexact)
    }

    /// Returns verdicts on memory and anomalies: the recording's own, or else those on the changes
    /// of the file.
    #[must_use]
    pub fn findings(&self, changes: SuspectAnalysis) -> SuspectReport {
        self.findings.clone().unwrap_or_else(|| changes.finish())
    }

    /// Returns the time that others are relative to: that of the wall clock, or else of the first
    /// change.
    #[must_use]
    pub fn origin(&self) -> Timestamp {
        let first = self.span.map_or(Timestamp(0), |(first, _)| first);
        self.clock.map_or(first, |(at, _)| at)
    }
}

/// Filter for changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChangeFilter {
    /// Only changes of this process.
    pub pid: Option<Pid>,
    /// Only changes on this device.
    pub device: Option<DeviceId>,
}

impl ChangeFilter {
    /// Applies the filter. Memory that moves to the selected device is allocated there, and memory
    /// that moves away is freed.
    fn apply(&self, change: &AllocationChange) -> Option<AllocationChange> {
        if self.pid.is_some_and(|pid| pid != change.pid) {
            return None;
        }
        let Some(device) = self.device else { return Some(*change) };
        let is_here = change.device == Some(device);
        let ChangeKind::Updated { allocated_at, before } = change.action else {
            return is_here.then_some(*change);
        };
        match (before.device == Some(device), is_here) {
            (true, true) => Some(*change),
            (false, true) => Some(AllocationChange { action: ChangeKind::Allocated, ..*change }),
            (true, false) => Some(AllocationChange {
                action: ChangeKind::Ended { allocated_at, reason: EndReason::Replaced },
                device: before.device,
                pool: before.pool,
                bytes: before.bytes,
                ..*change
            }),
            (false, false) => None,
        }
    }
}

/// A sink that passes changes on.
pub struct CollectingSink<'a> {
    /// Everything that is kept.
    pub info: FileInfo,
    /// Indices of pools in `info`.
    pools: HashMap<(Pid, Option<DeviceId>, u64), usize>,
    filter: ChangeFilter,
    each: &'a mut dyn FnMut(&AllocationChange, &FileInfo),
    progress: &'a mut dyn FnMut(u64, u64),
}

impl<'a> CollectingSink<'a> {
    /// Passes selected changes to `each`, with the information so far, and the reader's progress to
    /// `progress`.
    pub fn new(
        filter: ChangeFilter,
        each: &'a mut dyn FnMut(&AllocationChange, &FileInfo),
        progress: &'a mut dyn FnMut(u64, u64),
    ) -> Self {
        Self { info: FileInfo::default(), pools: HashMap::new(), filter, each, progress }
    }
}

impl ImportSink for CollectingSink<'_> {
    fn stacks(&mut self) -> &mut StackTable {
        &mut self.info.stacks
    }

    fn change(&mut self, change: &AllocationChange) {
        let first = self.info.span.map_or(change.at, |(first, _)| first);
        self.info.span = Some((first, change.at));
        if self.filter == ChangeFilter::default() {
            (self.each)(change, &self.info);
            return;
        }
        self.info.seen.processes.insert(change.pid);
        self.info.seen.devices.extend(change.device);
        if let Some(change) = self.filter.apply(change) {
            (self.each)(&change, &self.info);
        }
    }

    fn process(&mut self, pid: Pid, name: &str) {
        self.info.processes.insert(pid, name.to_owned());
    }

    fn device(&mut self, device: DeviceId, name: &str, total_bytes: Option<u64>) {
        self.info.devices.insert(device, (name.to_owned(), total_bytes));
    }

    fn clock(&mut self, at: Timestamp, utc_nanos: i64) {
        self.info.clock.get_or_insert((at, utc_nanos));
    }

    fn segment(&mut self, segment: Segment) {
        if self.filter.device.is_none() || self.filter.device == segment.device {
            self.info.segments.push(segment);
        }
    }

    fn verdict(&mut self, verdict: SiteVerdict) {
        if self.filter.pid.is_none_or(|pid| verdict.pid == Some(pid)) {
            self.info.verdicts.push(verdict);
        }
    }

    fn findings(&mut self, mut findings: SuspectReport) {
        let ChangeFilter { pid, device } = self.filter;
        let is_selected = |group: &GroupKey| {
            pid.is_none_or(|pid| pid == group.pid) && (device.is_none() || device == group.device)
        };
        findings.suspects.retain(|one| is_selected(&one.key));
        findings.others.retain(|one| is_selected(&one.key));
        findings.anomalies.retain(|one| is_selected(&one.key));
        self.info.findings = Some(findings);
    }

    fn pool(&mut self, pool: &PoolTotals) {
        let ChangeFilter { pid, device } = self.filter;
        if pid.is_some_and(|pid| pid != pool.pid) || device.is_some() && device != pool.device {
            return;
        }
        let pools = &mut self.info.pools;
        let index = *self.pools.entry((pool.pid, pool.device, pool.pool)).or_insert(pools.len());
        match pools.get_mut(index) {
            Some(known) => *known = *pool,
            None => pools.push(*pool),
        }
    }

    fn cache_settings(&mut self, settings: &AllocatorSettings) {
        self.info.settings = settings.clone();
    }

    fn failed_allocation(&mut self, failed: &FailedAllocation) {
        let ChangeFilter { pid, device } = self.filter;
        let is_selected = pid.is_none_or(|pid| pid == failed.pid)
            && (device.is_none() || device == failed.device);
        if is_selected && self.info.failed_allocations.len() < MAX_FAILED_REQUESTS {
            self.info.failed_allocations.push(*failed);
        }
    }

    fn warn(&mut self, warning: Warning) {
        let warnings = &mut self.info.warnings;
        let known = warnings.iter_mut().find(|known| known.text == warning.text);
        if let Some(known) = known {
            known.count = known.count.saturating_add(warning.count);
            known.inexact |= warning.inexact;
        } else if warnings.len() < MAX_WARNINGS {
            warnings.push(warning);
        } else if let Some(last) = warnings.last_mut() {
            last.text = "other problems".to_owned();
            last.count = last.count.saturating_add(warning.count);
            last.inexact |= warning.inexact;
        }
    }

    fn progress(&mut self, done: u64, total: u64) {
        (self.progress)(done, total);
    }
}

#[cfg(test)]
mod tests {
    use engine::model::change::LateFields;
    use engine::model::ids::{AllocationKey, Tid};
    use engine::model::memory_kind::MemoryKind;

    use super::*;

    fn change(action: ChangeKind, pid: u32, device: Option<u16>) -> AllocationChange {
        AllocationChange {
            at: Timestamp(5),
            action,
            pid: Pid(pid),
            tid: Tid(1),
            device: device.map(DeviceId),
            kind: MemoryKind::Device,
            key: AllocationKey::address(1),
            bytes: 8,
            pool: None,
            stream: None,
            site: None,
        }
    }

    #[test]
    fn device_filter_turns_moves_into_starts_and_ends() {
        let filter = ChangeFilter { pid: Some(Pid(1)), device: Some(DeviceId(0)) };
        let moved = |from: Option<u16>, to| {
            let before = LateFields { device: from.map(DeviceId), pool: None, bytes: 8 };
            let change = change(ChangeKind::Updated { allocated_at: Timestamp(1), before }, 1, to);
            filter.apply(&change).map(|change| (change.action, change.device))
        };
        let gpu = Some(DeviceId(0));
        assert_eq!(moved(None, Some(0)), Some((ChangeKind::Allocated, gpu)));
        let ended = ChangeKind::Ended { allocated_at: Timestamp(1), reason: EndReason::Replaced };
        assert_eq!(moved(Some(0), Some(1)), Some((ended, gpu)));
        assert_eq!(moved(None, Some(1)), None);
        assert!(filter.apply(&change(ChangeKind::Allocated, 1, Some(0))).is_some());
        assert!(filter.apply(&change(ChangeKind::Allocated, 1, None)).is_none());
        assert!(filter.apply(&change(ChangeKind::Allocated, 2, Some(0))).is_none());
    }

    #[test]
    fn warnings_are_counted_and_limited() {
        let (mut each, mut progress) = (|_: &AllocationChange, _: &FileInfo| {}, |_, _| {});
        let mut sink = CollectingSink::new(ChangeFilter::default(), &mut each, &mut progress);
        for number in 0..2 * MAX_WARNINGS {
            let text = format!("kind {number} is not known");
            sink.warn(Warning { text, count: 1, inexact: false });
            sink.warn(Warning { text: "rows were moved".into(), count: 2, inexact: true });
        }
        let warnings = &sink.info.warnings;
        assert_eq!(warnings.len(), MAX_WARNINGS);
        assert_eq!((warnings[1].count, sink.info.exact()), (4 * MAX_WARNINGS as u64, false));
        assert_eq!(warnings.iter().map(|warning| warning.count).sum::<u64>(), 600);
    }

    #[test]
    fn last_totals_of_each_selected_pool_are_kept() {
        let totals = |filter: ChangeFilter| {
            let (mut each, mut progress) = (|_: &AllocationChange, _: &FileInfo| {}, |_, _| {});
            let mut sink = CollectingSink::new(filter, &mut each, &mut progress);
            let (device, at) = (None, Timestamp(1));
            let pool = PoolTotals { pid: Pid(1), device, pool: 7, reserved: None, used: 1, at };
            sink.pool(&pool);
            sink.pool(&PoolTotals { pid: Pid(2), used: 5, ..pool });
            sink.pool(&PoolTotals { used: 2, ..pool });
            sink.info.pools.iter().map(|pool| (pool.pid.0, pool.used)).collect::<Vec<_>>()
        };
        assert_eq!(totals(ChangeFilter::default()), [(1, 2), (2, 5)]);
        assert_eq!(totals(ChangeFilter { pid: Some(Pid(2)), device: None }), [(2, 5)]);
    }
}
