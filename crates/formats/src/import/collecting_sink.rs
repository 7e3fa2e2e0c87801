//! A sink that passes changes on and keeps everything else.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use engine::ledger::FileLedger;
use engine::model::{
    AllocationChange, AllocatorSettings, ChangeKind, DeviceId, EndReason, GpuId, Mark, Phase, Pid,
    PoolTotals, Segment, StackTable, Timestamp,
};
use engine::snapshot::ProcessView;

use super::{FailedAllocation, FileState, ImportSink, Warning};

/// Maximum number of distinct warnings; the last one counts all others.
const MAX_WARNINGS: usize = 100;

/// Maximum number of kept failed requests.
const MAX_FAILED_REQUESTS: usize = 100_000;

/// Maximum number of kept marks.
const MAX_MARKS: usize = 1000;

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
    /// Time zone of the host, if the file has it: its name, and the offset from UTC in seconds.
    pub time_zone: Option<(Option<String>, i32)>,
    /// Users of processes, not sanitized.
    pub users: BTreeMap<Pid, String>,
    /// Segments of caches at the end.
    pub segments: Vec<Segment>,
    /// Settings of those caches.
    pub settings: AllocatorSettings,
    /// Totals of pools at the end.
    pub pools: Vec<PoolTotals>,
    /// Requests that failed with an out-of-memory error, up to `MAX_FAILED_REQUESTS`.
    pub failed_allocations: Vec<FailedAllocation>,
    /// The first marks of users and programs, up to `MAX_MARKS`.
    pub marks: Vec<Mark>,
    /// State at the end of a recording.
    pub state: Option<FileState>,
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
    pub fn exact(&self) -> bool {
        !self.warnings.iter().any(|warning| warning.inexact)
    }

    /// Returns the state at the end: the recording's own, or else that of the changes of the file.
    pub fn end_state(&self, changes: FileLedger) -> Cow<'_, FileState> {
        let classify = || {
            let snapshot = changes.finish(&self.stacks, &self.processes);
            Cow::Owned(FileState { snapshot, gpus: Vec::new() })
        };
        self.state.as_ref().map_or_else(classify, Cow::Borrowed)
    }

    /// Returns the time between marks.
    pub fn phases(&self) -> Vec<Phase> {
        Phase::of(&self.marks)
    }

    /// Returns the time that others are relative to: that of the wall clock, or else of the first
    /// change.
    pub fn origin(&self) -> Timestamp {
        let first = self.span.map_or(Timestamp(0), |(first, _)| first);
        self.clock.map_or(first, |(at, _)| at)
    }
}

/// Filter for changes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChangeFilter {
    /// Only changes of this process.
    pub pid: Option<Pid>,
    /// Only changes on this device.
    pub device: Option<DeviceId>,
    /// Only changes on this GPU.
    pub gpu: Option<GpuId>,
    /// Only changes of processes of this user.
    pub user: Option<String>,
    /// Only changes of processes whose name contains this text.
    pub name: Option<String>,
}

/// Keeps what a change does on one device. Memory that moves to the device is allocated there, and
/// memory that moves away is freed.
fn on_device(change: &AllocationChange, device: DeviceId) -> Option<AllocationChange> {
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

/// A sink that passes changes on.
pub struct CollectingSink<'a> {
    /// Everything that is kept.
    pub info: FileInfo,
    /// Indices of pools in `info`.
    pools: HashMap<(Pid, Option<DeviceId>, u64), usize>,
    filter: ChangeFilter,
    /// Whether the filter selects a process, as far as that was determined.
    selected: HashMap<Pid, bool>,
    /// Devices of processes on the selected GPU.
    on_gpu: HashMap<Pid, DeviceId>,
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
        Self {
            info: FileInfo::default(),
            pools: HashMap::new(),
            filter,
            selected: HashMap::new(),
            on_gpu: HashMap::new(),
            each,
            progress,
        }
    }

    /// Whether the filter selects a process.
    fn selects(&mut self, pid: Pid) -> bool {
        let Self { filter, info, selected, .. } = self;
        *selected.entry(pid).or_insert_with(|| {
            let has = |names: &BTreeMap<Pid, String>, is: &dyn Fn(&String) -> bool| {
                names.get(&pid).is_some_and(is)
            };
            filter.pid.is_none_or(|wanted| wanted == pid)
                && filter.user.as_ref().is_none_or(|user| has(&info.users, &|own| own == user))
                && filter
                    .name
                    .as_ref()
                    .is_none_or(|name| has(&info.processes, &|own| own.contains(name.as_str())))
        })
    }

    /// Returns the device of a process that the filter selects, if it selects one.
    fn device_of(&self, pid: Pid) -> Option<DeviceId> {
        let gpu = self.filter.gpu;
        // Processes without a map of their own see all GPUs.
        let on_gpu = gpu.map(|gpu| self.on_gpu.get(&pid).copied().unwrap_or(DeviceId(gpu.0)));
        self.filter.device.or(on_gpu)
    }

    /// Whether the filter selects something of a process on a device.
    fn selects_on(&mut self, pid: Pid, device: Option<DeviceId>) -> bool {
        let wanted = self.device_of(pid);
        self.selects(pid) && (wanted.is_none() || wanted == device)
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
        if !self.selects(change.pid) {
            return;
        }
        let selected = match self.device_of(change.pid) {
            Some(device) => on_device(change, device),
            None => Some(*change),
        };
        if let Some(change) = selected {
            (self.each)(&change, &self.info);
        }
    }

    fn process(&mut self, pid: Pid, name: &str) {
        self.info.processes.insert(pid, name.to_owned());
        self.selected.remove(&pid);
    }

    fn user(&mut self, pid: Pid, user: &str) {
        self.info.users.insert(pid, user.to_owned());
        self.selected.remove(&pid);
    }

    fn device_map(&mut self, pid: Pid, gpus: &[Option<GpuId>]) {
        let Some(wanted) = self.filter.gpu else { return };
        let ordinal = gpus.iter().position(|gpu| *gpu == Some(wanted));
        // A process that cannot see the GPU has no device there.
        let ordinal = ordinal.and_then(|ordinal| u16::try_from(ordinal).ok());
        self.on_gpu.insert(pid, DeviceId(ordinal.unwrap_or(u16::MAX)));
    }

    fn time_zone(&mut self, name: Option<&str>, offset: i32) {
        self.info.time_zone = Some((name.map(ToOwned::to_owned), offset));
    }

    fn device(&mut self, device: DeviceId, name: &str, total_bytes: Option<u64>) {
        self.info.devices.insert(device, (name.to_owned(), total_bytes));
    }

    fn clock(&mut self, at: Timestamp, utc_nanos: i64) {
        self.info.clock.get_or_insert((at, utc_nanos));
    }

    fn segment(&mut self, segment: Segment) {
        let wanted = self.filter.device.or(self.filter.gpu.map(|gpu| DeviceId(gpu.0)));
        if wanted.is_none() || wanted == segment.device {
            self.info.segments.push(segment);
        }
    }

    fn state(&mut self, mut state: FileState) {
        let snapshot = &mut state.snapshot;
        let all = std::mem::take(&mut snapshot.processes);
        snapshot.processes = all.into_iter().filter(|one| self.selects(one.key.pid)).collect();
        if let Some(gpu) = self.filter.gpu.filter(|_| state.gpus.len() > 1) {
            let uses = |one: &ProcessView| one.devices.iter().any(|on| on.gpu == Some(gpu));
            snapshot.processes.retain(uses);
        }
        let all = std::mem::take(&mut snapshot.not_freed);
        snapshot.not_freed = all.into_iter().filter(|one| self.selects(one.key.pid)).collect();
        for list in [&mut snapshot.suspects, &mut snapshot.other_verdicts] {
            let is_all = self.filter == ChangeFilter::default();
            list.retain(|one| match one.pid {
                Some(pid) => self.selects_on(pid, one.device),
                None => is_all,
            });
        }
        snapshot.suspects_total = snapshot.suspects.len() as u64;
        snapshot.anomalies.retain(|one| self.selects_on(one.pid, one.device));
        snapshot.out_of_memory.retain(|one| self.selects_on(one.pid, one.device));
        // Headlines take all stacks of the file and the declared wrappers into account.
        let stacks = &mut self.info.stacks;
        let of_verdicts = snapshot.suspects.iter_mut().chain(&mut snapshot.other_verdicts);
        let not_freed = snapshot.not_freed.iter_mut().flat_map(|one| &mut one.sites);
        of_verdicts
            .map(|one| &mut one.frames)
            .chain(snapshot.anomalies.iter_mut().map(|one| &mut one.frames))
            .chain(snapshot.out_of_memory.iter_mut().map(|one| &mut one.frames))
            .chain(not_freed.map(|one| &mut one.frames))
            .for_each(|frames| *frames = stacks.call_stack_of(frames));
        self.info.state = Some(state);
    }

    fn pool(&mut self, pool: &PoolTotals) {
        if !self.selects_on(pool.pid, pool.device) {
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
        let is_selected = self.selects_on(failed.pid, failed.device);
        if is_selected && self.info.failed_allocations.len() < MAX_FAILED_REQUESTS {
            self.info.failed_allocations.push(*failed);
        }
    }

    fn mark(&mut self, mark: Mark) {
        if !mark.pid.is_none_or(|pid| self.selects(pid)) {
            return;
        }
        if self.info.marks.len() < MAX_MARKS {
            self.info.marks.push(mark);
        } else {
            let text = format!("marks after the first {MAX_MARKS} are not shown");
            self.warn(Warning { text, count: 1, inexact: false });
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
            "other problems".clone_into(&mut last.text);
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
        let moved = |from: Option<u16>, to| {
            let before = LateFields { device: from.map(DeviceId), pool: None, bytes: 8 };
            let change = change(ChangeKind::Updated { allocated_at: Timestamp(1), before }, 1, to);
            on_device(&change, DeviceId(0)).map(|change| (change.action, change.device))
        };
        let gpu = Some(DeviceId(0));
        assert_eq!(moved(None, Some(0)), Some((ChangeKind::Allocated, gpu)));
        let ended = ChangeKind::Ended { allocated_at: Timestamp(1), reason: EndReason::Replaced };
        assert_eq!(moved(Some(0), Some(1)), Some((ended, gpu)));
        assert_eq!(moved(None, Some(1)), None);
        let here = |device| on_device(&change(ChangeKind::Allocated, 1, device), DeviceId(0));
        assert!(here(Some(0)).is_some() && here(None).is_none());
    }

    #[test]
    fn changes_are_selected_by_process_user_name_and_gpu() {
        let passed = |filter: ChangeFilter| {
            let mut pids = Vec::new();
            let mut each = |change: &AllocationChange, _: &FileInfo| pids.push(change.pid.0);
            let mut progress = |_, _| {};
            let mut sink = CollectingSink::new(filter, &mut each, &mut progress);
            sink.process(Pid(1), "train.py");
            sink.user(Pid(1), "ann");
            sink.process(Pid(2), "serve.py");
            sink.user(Pid(2), "bob");
            // Its only device is the second GPU.
            sink.device_map(Pid(2), &[Some(GpuId(1))]);
            for pid in 1..=3 {
                sink.change(&change(ChangeKind::Allocated, pid, Some(0)));
            }
            pids
        };
        let all = ChangeFilter::default;
        assert_eq!(passed(all()), [1, 2, 3]);
        assert_eq!(passed(ChangeFilter { pid: Some(Pid(3)), ..all() }), [3]);
        assert_eq!(passed(ChangeFilter { user: Some("bob".into()), ..all() }), [2]);
        assert_eq!(passed(ChangeFilter { name: Some("train".into()), ..all() }), [1]);
        assert_eq!(passed(ChangeFilter { gpu: Some(GpuId(0)), ..all() }), [1, 3]);
        assert_eq!(passed(ChangeFilter { gpu: Some(GpuId(1)), ..all() }), [2]);
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
        assert_eq!(totals(ChangeFilter { pid: Some(Pid(2)), ..ChangeFilter::default() }), [(2, 5)]);
    }
}
