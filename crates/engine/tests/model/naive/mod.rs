//! The ledger's rules over plain lists: everything is searched, summed and sorted from scratch.

mod contexts;
mod gpus;
mod graphs;
mod objects;
mod physical;
mod pools;
mod process;
mod sites;
mod view;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use engine::model::change::LateFields;
use engine::model::event::{Event, EventKind, FailedCall, LostDelta, ProcessInfo, VmmCall};
use engine::model::ids::{AllocationKey, ContextId, DeviceId, GpuId, Pid, SiteId, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::stack::{Frame, SiteName, StackTable};
use engine::model::units::{Bytes, Timestamp};
use engine::snapshot::{
    GpuView, LostTotals, OutOfMemory, ProcessEnd, Snapshot, SnapshotOptions, Uncertainty,
};

use super::tracked::LiveAllocation;
use process::Process;
use sites::SiteOp;
use view::rank;

#[derive(Clone)]
struct Live {
    key: AllocationKey,
    kind: MemoryKind,
    bytes: u64,
    at: Timestamp,
    tid: Tid,
    /// Context of the allocation. Stream-ordered memory outlives it and only takes its device from
    /// it.
    context: Option<ContextId>,
    device: Option<DeviceId>,
    site: Option<SiteId>,
    /// Index of its pool, if known.
    pool: Option<usize>,
    /// The context of the allocation has been destroyed.
    orphan: bool,
    /// Number of times it is open.
    openings: u64,
}

impl Live {
    fn new(key: AllocationKey, kind: MemoryKind, bytes: u64, device: Option<DeviceId>) -> Self {
        Self {
            key,
            kind,
            bytes,
            at: Timestamp(0),
            tid: Tid(0),
            context: None,
            device,
            site: None,
            pool: None,
            orphan: false,
            openings: 1,
        }
    }

    /// Whether it was allocated by a launch; host memory without a pool can be nothing else.
    fn of_graph(&self) -> bool {
        self.kind == MemoryKind::Graph
            || (self.kind == MemoryKind::HostAsync && self.pool.is_none())
    }

    fn device_bytes(&self) -> u64 {
        if self.kind.takes_device_memory() { self.bytes } else { 0 }
    }
}

/// The naive ledger.
#[derive(Default)]
pub(crate) struct Naive {
    free: BTreeMap<GpuId, Bytes>,
    running: BTreeMap<Pid, Process>,
    ended: Vec<Process>,
    out_of_memory: Vec<OutOfMemory>,
    ooms: Vec<Option<GpuId>>,
    lost: LostTotals,
    /// Losses of processes that are not announced yet.
    early: BTreeMap<Pid, Vec<LostDelta>>,
    frames: BTreeMap<SiteId, Vec<Frame>>,
    stacks: StackTable,
    /// Processes that were in a snapshot as ended.
    past: Vec<Process>,
    start: Option<Timestamp>,
}

impl Naive {
    pub(crate) fn apply(&mut self, event: &Event) {
        if !matches!(event.kind, EventKind::Site(_)) {
            self.start = self.start.or(Some(event.time));
        }
        match &event.kind {
            EventKind::Process(info) => self.announce(event, info),
            EventKind::Exec => {
                if let Some(old) = self.running.remove(&event.pid) {
                    self.running.insert(event.pid, old.after_exec(event.time));
                    self.end(old, ProcessEnd::Exec, event.time);
                }
            }
            EventKind::Exit => self.exit(event),
            EventKind::ThreadExit => {
                if let Some(process) = self.running.get_mut(&event.pid) {
                    process.ended_threads.insert(event.tid);
                    process.end_captures_of(event.tid);
                }
            }
            EventKind::Lost(lost) => self.record_loss(event, lost),
            EventKind::Activity(_)
            | EventKind::UnknownCalls { .. }
            | EventKind::DeviceHolders(_)
            | EventKind::Mark { .. }
            | EventKind::Share(_)
            | EventKind::Limit { .. }
            | EventKind::MigInstance(_)
            | EventKind::Block(_)
            | EventKind::Allocator(..)
            | EventKind::Identity(_)
            | EventKind::KeptBy(..) => {}
            EventKind::Container(container) => {
                if let Some(process) = self.running.get_mut(&event.pid) {
                    process.container = Some((**container).clone());
                }
            }
            EventKind::GpuFree { gpu, bytes } => drop(self.free.insert(*gpu, Bytes(*bytes))),
            EventKind::DriverUsageLost => {
                self.free.clear();
                self.running.values_mut().for_each(|process| process.driver_usage.clear());
            }
            EventKind::Object(call) => self.called(event).object(event, *call),
            EventKind::Site(site) => {
                let frames = self.frames.entry(site.site).or_insert_with(|| site.frames.to_vec());
                self.stacks.call_stack_of(frames);
            }
            EventKind::Failed(failed) => {
                self.called(event).fail(failed);
                self.record_oom(event, failed);
            }
            EventKind::ThreadName(name) => {
                let is_first = event.tid.0 == event.pid.0;
                self.called(event).name_thread(event.tid, name, is_first);
            }
            EventKind::Allocate(allocate) => self.called(event).allocate(event, allocate),
            EventKind::Free(free) => self.called(event).free(event, free),
            EventKind::Vmm(call) => self.called(event).vmm(event, *call),
            EventKind::Pool(call) => self.called(event).pool(event, *call),
            EventKind::Graph(call) => self.called(event).graph(event, *call),
            EventKind::Context(call) => {
                let objects = self.called(event).apply_context(event, *call);
                if objects > 0 {
                    self.record_loss(event, &LostDelta { objects, ..LostDelta::default() });
                }
            }
            EventKind::Gpus(gpus) => {
                if let Some(process) = self.running.get_mut(&event.pid) {
                    process.set_gpus(gpus);
                }
            }
            EventKind::DriverUsage { gpu, bytes, only } => {
                if let Some(process) = self.running.get_mut(&event.pid) {
                    process.set_driver_usage(event.entry_time, *gpu, Bytes(*bytes), *only);
                }
            }
        }
        for process in self.running.values_mut() {
            process.after_event(event.time);
        }
    }

    fn exit(&mut self, event: &Event) {
        self.early.remove(&event.pid);
        if let Some(old) = self.running.remove(&event.pid) {
            self.end(old, ProcessEnd::Exited, event.time);
        }
    }

    /// Returns the snapshot; bounds are those of a ledger without losses.
    pub(crate) fn snapshot(&mut self, at: Timestamp, options: &SnapshotOptions) -> Snapshot {
        let running: Vec<_> =
            self.running.values().filter(|p| !p.no_calls_since_exec).cloned().collect();
        let total = Bytes(running.iter().map(Process::live_bytes).sum());
        let mut shown = running.clone();
        let ended = std::mem::take(&mut self.ended);
        shown.extend(ended.iter().cloned());
        shown.sort_by_key(|process| {
            (
                process.ended.is_some(),
                rank(&process.live.iter().collect::<Vec<_>>(), options),
                process.key.pid,
                Reverse(process.key.start),
            )
        });
        let mut of_sites: Vec<_> = running.iter().map(|process| (process, false)).collect();
        if options.ended_sites {
            of_sites.extend(ended.iter().map(|process| (process, false)));
            of_sites.extend(self.past.iter().map(|process| (process, true)));
        }
        let (sites, sites_total) = self.sites(&of_sites, at, options, true);
        let calls = || of_sites.iter().map(|(process, _)| process.allocations_total);
        let without = |process: &Process| {
            let is_allocation =
                |line: &&sites::Line| matches!(line.op, SiteOp::Begin(_) | SiteOp::OpenAgain);
            process.log.iter().filter(is_allocation).filter(|line| line.site.is_none()).count()
                as u64
        };
        let mut snapshot = Snapshot {
            at,
            observed: at - self.start.unwrap_or(at),
            is_live: true,
            live_bytes: total,
            live_allocations: running.iter().map(|process| process.live.len() as u64).sum(),
            uncertainty: Uncertainty {
                lost: self.lost,
                live_min: total,
                live_max: total,
                implied_frees: running.iter().map(|p| p.pending_frees.len() as u64).sum(),
                before_trace: running.iter().any(|process| process.before_trace),
                capture_ended: None,
                unknown_context: running.iter().map(Process::in_doubt).sum(),
                ambiguous_calls: running.iter().map(Process::ambiguous_calls).sum(),
                unknown_calls: 0,
            },
            processes: shown.iter().map(|process| process.view(at, options, self)).collect(),
            out_of_memory: Vec::new(),
            sites,
            sites_total,
            allocations_total: calls().sum(),
            without_stack: of_sites.iter().map(|(process, _)| without(process)).sum(),
            gpus: self
                .free
                .iter()
                .map(|(&gpu, &free_bytes)| GpuView { gpu, free_bytes, growth_per_hour: None })
                .collect(),
            ..Snapshot::default()
        };
        self.past.extend(ended);
        for process in self.running.values_mut() {
            process.shown = process.log.len();
        }
        let mut ooms = BTreeMap::new();
        std::mem::take(&mut self.ooms)
            .into_iter()
            .for_each(|gpu| *ooms.entry(gpu).or_insert(0) += 1);
        snapshot.ooms_by_gpu = ooms.into_iter().collect();
        snapshot.out_of_memory = std::mem::take(&mut self.out_of_memory);
        for one in &mut snapshot.out_of_memory {
            one.site_name = self.site_name(one.site);
            one.frames = self.frames_of(one.site_name);
        }
        snapshot
    }

    /// Returns all live memory, as changes describe it.
    pub(crate) fn live(&self) -> BTreeMap<(Pid, AllocationKey), LiveAllocation> {
        let of = |process: &Process| {
            let pid = process.key.pid;
            let pool = |live: &Live| process.pools[live.pool?].id;
            let allocation = |live: &Live| LiveAllocation {
                allocated_at: live.at,
                tid: live.tid,
                kind: live.kind,
                late_fields: LateFields {
                    device: live.device,
                    pool: pool(live),
                    bytes: live.bytes,
                },
                site: live.site,
            };
            process.live.iter().map(|live| ((pid, live.key), allocation(live))).collect::<Vec<_>>()
        };
        self.running.values().flat_map(of).collect()
    }

    fn called(&mut self, event: &Event) -> &mut Process {
        let info = ProcessInfo { start: 0, uid: 0, name: "".into(), before_trace: true };
        if !self.running.contains_key(&event.pid) {
            let new = Process::new(event.pid, &info, event.time);
            let mut new = Process { uid: None, unannounced: true, ..new };
            self.take_early_losses(&mut new, event.time);
            self.running.insert(event.pid, new);
        }
        let process = self.running.get_mut(&event.pid).unwrap();
        process.no_calls_since_exec = false;
        process.now = event.time;
        let (allocates, frees, fails) = match &event.kind {
            EventKind::Allocate(_) => (1, 0, 0),
            EventKind::Free(_) => (0, 1, 0),
            EventKind::Failed(_) => (0, 0, 1),
            EventKind::Vmm(VmmCall::Create { .. } | VmmCall::Import { .. }) => (1, 0, 0),
            EventKind::Vmm(VmmCall::Release { .. } | VmmCall::Unmap { .. }) => (0, 1, 0),
            _ => (0, 0, 0),
        };
        process.received.allocations += allocates;
        process.received.frees += frees;
        process.received.failures += fails;
        process
    }

    fn announce(&mut self, event: &Event, info: &ProcessInfo) {
        let mut new = Process::new(event.pid, info, event.time);
        if !self.running.contains_key(&event.pid) {
            self.take_early_losses(&mut new, event.time);
        }
        let Some(mut old) = self.running.remove(&event.pid) else {
            self.running.insert(event.pid, new);
            return;
        };
        if old.key.start != 0 && info.start != 0 && old.key.start != info.start {
            self.running.insert(event.pid, new);
            self.end(old, ProcessEnd::Exited, event.time);
            return;
        }
        old.no_calls_since_exec = false;
        old.uid = Some(info.uid);
        old.name = info.name.clone();
        old.key.start = old.key.start.max(info.start);
        if std::mem::take(&mut old.unannounced) {
            old.before_trace = info.before_trace;
        }
        self.running.insert(event.pid, old);
    }

    fn end(&mut self, mut process: Process, end: ProcessEnd, at: Timestamp) {
        process.ended = Some((end, at));
        if !process.no_calls_since_exec {
            self.ended.push(process);
        }
    }

    /// Attributes the losses from before the first record of a process to it.
    fn take_early_losses(&mut self, process: &mut Process, at: Timestamp) {
        for lost in self.early.remove(&process.key.pid).unwrap_or_default() {
            add(&mut process.lost, &lost, at);
            process.counted &= lost.other == 0;
        }
    }

    fn record_loss(&mut self, event: &Event, lost: &LostDelta) {
        add(&mut self.lost, lost, event.time);
        let ended = self.ended.iter_mut().rev().find(|process| process.key.pid == event.pid);
        let owner = self.running.get_mut(&event.pid).or(ended);
        if let Some(process) = owner.filter(|_| event.pid != Pid(0)) {
            add(&mut process.lost, lost, event.time);
            process.counted &= lost.other == 0;
        } else {
            if event.pid != Pid(0) && lost.processes == 0 && *lost != LostDelta::default() {
                self.early.entry(event.pid).or_default().push(*lost);
            }
            for process in self.running.values_mut() {
                process.shared_other += lost.other;
                process.counted &= lost.other == 0;
            }
        }
    }

    fn record_oom(&mut self, event: &Event, failed: &FailedCall) {
        let process = &self.running[&event.pid];
        if failed.code != 2 {
            return;
        }
        let of_context = failed.context.and_then(|id| process.contexts.get(&id)?.device);
        let device = failed.device.or(of_context).or(process.only());
        let gpu = device.and_then(|device| process.gpu(device));
        let of_gpu = failed.requested.is_some_and(|(kind, _)| OF_GPU.contains(&kind));
        self.ooms.push(gpu.filter(|_| of_gpu));
        if failed.requested.is_none() || self.out_of_memory.len() == 64 {
            return;
        }
        let shown = self.running.values().filter(|process| !process.no_calls_since_exec);
        let mut holders: Vec<_> = shown
            .map(|process| {
                let here = |live: &&Live| {
                    let other = process.gpu_of(live.device);
                    let known = gpu.is_some() && other.is_some();
                    device.is_none() || if known { gpu == other } else { live.device == device }
                };
                let held = process.live.iter().filter(here);
                (process.key.pid, process.name.clone(), Bytes(held.map(Live::device_bytes).sum()))
            })
            .filter(|(_, _, bytes)| bytes.0 > 0)
            .collect();
        holders.sort_by_key(|(pid, _, bytes)| (Reverse(*bytes), *pid));
        self.out_of_memory.push(OutOfMemory {
            at: event.time,
            pid: event.pid,
            tid: event.tid,
            name: process.name.clone(),
            device,
            gpu,
            requested: failed.requested.map(|(kind, bytes)| (kind, Bytes(bytes))),
            site: failed.site,
            site_name: SiteName::Unknown,
            frames: [].into(),
            framework: None,
            recovered: None,
            holders,
        });
    }
}

/// Kinds of GPU memory.
const OF_GPU: [MemoryKind; 6] = [
    MemoryKind::Device,
    MemoryKind::Array,
    MemoryKind::Physical,
    MemoryKind::Graph,
    MemoryKind::Static,
    MemoryKind::Async,
];

fn add(sum: &mut LostTotals, lost: &LostDelta, at: Timestamp) {
    sum.counts.allocations += lost.allocations;
    sum.counts.allocated_bytes += lost.allocated_bytes;
    sum.counts.frees += lost.frees;
    sum.counts.failures += lost.failures;
    sum.counts.other += lost.other;
    sum.counts.stacks += lost.stacks;
    sum.counts.objects += lost.objects;
    sum.counts.tensors += lost.tensors;
    sum.counts.processes += lost.processes;
    sum.since = sum.since.or(Some(at));
}
