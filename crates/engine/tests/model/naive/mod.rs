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

use engine::change::Known;
use engine::event::{Event, Failed, GraphCall, Lost, ProcessFacts, VmmCall, What};
use engine::ids::{ContextId, DeviceId, GpuId, Key, Pid, SiteId, Tid};
use engine::kind::Kind;
use engine::snapshot::{Certainty, End, GpuView, Loss, OutOfMemory, Snapshot, View};
use engine::stack::{Frame, SiteName};
use engine::units::{Bytes, Moment};

use super::followed::Held;
use process::Process;
use sites::Did;
use view::rank;

#[derive(Clone)]
struct Live {
    key: Key,
    kind: Kind,
    bytes: u64,
    at: Moment,
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
    fn new(key: Key, kind: Kind, bytes: u64, device: Option<DeviceId>) -> Self {
        Self {
            key,
            kind,
            bytes,
            at: Moment(0),
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
        self.kind == Kind::Graph || (self.kind == Kind::HostAsync && self.pool.is_none())
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
    ran_out: Vec<Option<GpuId>>,
    lost: Loss,
    frames: BTreeMap<SiteId, Vec<Frame>>,
    /// Processes that were in a snapshot as ended.
    past: Vec<Process>,
    began: Option<Moment>,
}

impl Naive {
    pub(crate) fn apply(&mut self, event: &Event) {
        if !matches!(event.what, What::Site(_)) {
            self.began = self.began.or(Some(event.at));
        }
        match &event.what {
            What::Process(facts) => self.announce(event, facts),
            What::Exec => {
                if let Some(old) = self.running.remove(&event.pid) {
                    self.running.insert(event.pid, old.after_exec(event.at));
                    self.end(old, End::Replaced, event.at);
                }
            }
            What::Exit => {
                if let Some(old) = self.running.remove(&event.pid) {
                    self.end(old, End::Exited, event.at);
                }
            }
            What::ThreadExit => {
                if let Some(process) = self.running.get_mut(&event.pid) {
                    process.ended_threads.insert(event.tid);
                    process.end_captures_of(event.tid);
                }
            }
            What::Lost(lost) => self.record_loss(event, lost),
            What::Work(_) | What::Tensor(_) | What::Torch(_) => {}
            What::Container(container) => {
                if let Some(process) = self.running.get_mut(&event.pid) {
                    process.container = Some((**container).clone());
                }
            }
            What::GpuFree { gpu, bytes } => drop(self.free.insert(*gpu, Bytes(*bytes))),
            What::DriverAccountLost => {
                self.free.clear();
                self.running.values_mut().for_each(|process| process.driver_usage.clear());
            }
            What::Object(call) => self.called(event).object(event, *call),
            What::Site(facts) => {
                self.frames.entry(facts.site).or_insert_with(|| facts.frames.to_vec());
            }
            What::Failed(failed) => {
                self.called(event).fail(failed);
                self.record_oom(event, failed);
            }
            What::ThreadName(name) => {
                let process = self.called(event);
                process.ended_threads.remove(&event.tid);
                process.names.insert(event.tid, name.clone());
                let is_first = event.tid.0 == event.pid.0;
                if is_first && process.name != *name && process.renamed < 8 {
                    process.name = name.clone();
                    process.renamed += 1;
                }
            }
            What::Allocate(allocate) => self.called(event).allocate(event, allocate),
            What::Free(free) => self.called(event).free(event, free),
            What::Vmm(call) => self.called(event).vmm(event, *call),
            What::Pool(call) => self.called(event).pool(event, *call),
            What::Graph(call) => self.called(event).graph(event, *call),
            What::Context(change) => {
                let objects = self.called(event).change(event, *change);
                if objects > 0 {
                    self.record_loss(event, &Lost { objects, ..Lost::default() });
                }
            }
            What::Gpus(gpus) => {
                if let Some(process) = self.running.get_mut(&event.pid) {
                    process.set_gpus(gpus);
                }
            }
            What::DriverAccount { gpu, bytes, only } => {
                if let Some(process) = self.running.get_mut(&event.pid) {
                    process.set_driver_usage(event.entered, *gpu, Bytes(*bytes), *only);
                }
            }
        }
        for process in self.running.values_mut() {
            process.after_event(event.at);
        }
    }

    /// Returns the snapshot; bounds are those of a ledger without losses.
    pub(crate) fn snapshot(&mut self, at: Moment, view: &View) -> Snapshot {
        let running: Vec<_> = self.running.values().filter(|p| !p.silent).cloned().collect();
        let total = Bytes(running.iter().map(Process::live_bytes).sum());
        let mut shown = running.clone();
        let ended = std::mem::take(&mut self.ended);
        shown.extend(ended.iter().cloned());
        shown.sort_by_key(|process| {
            (
                process.ended.is_some(),
                rank(&process.live.iter().collect::<Vec<_>>(), view),
                process.key,
            )
        });
        let mut of_sites: Vec<_> = running.iter().map(|process| (process, false)).collect();
        if view.ended_sites {
            of_sites.extend(ended.iter().map(|process| (process, false)));
            of_sites.extend(self.past.iter().map(|process| (process, true)));
        }
        let (sites, sites_total) = self.sites(&of_sites, at, view, true);
        let calls = || of_sites.iter().map(|(process, _)| process.allocations_total);
        let without = |process: &Process| {
            let begun = |line: &&sites::Line| matches!(line.what, Did::Begin(_) | Did::OpenAgain);
            process.log.iter().filter(begun).filter(|line| line.site.is_none()).count() as u64
        };
        let mut snapshot = Snapshot {
            at,
            live_bytes: total,
            live_allocations: running.iter().map(|process| process.live.len() as u64).sum(),
            certainty: Certainty {
                lost: self.lost,
                live_at_least: total,
                live_at_most: total,
                unseen_frees: running.iter().map(|p| p.superseded.len() as u64).sum(),
                before_trace: running.iter().any(|process| process.before_trace),
                capture_ended: None,
                unknown_context: running.iter().map(Process::in_doubt).sum(),
                ambiguous_calls: running.iter().map(|process| process.ambiguous).sum(),
            },
            processes: shown.iter().map(|process| process.view(at, view, self)).collect(),
            out_of_memory: Vec::new(),
            sites,
            sites_total,
            allocations_total: calls().sum(),
            without_stack: of_sites.iter().map(|(process, _)| without(process)).sum(),
            gpus: self.free.iter().map(|(&gpu, &free_bytes)| GpuView { gpu, free_bytes }).collect(),
            ..Snapshot::default()
        };
        self.past.extend(ended);
        for process in self.running.values_mut() {
            process.shown = process.log.len();
        }
        let mut ran_out = BTreeMap::new();
        std::mem::take(&mut self.ran_out)
            .into_iter()
            .for_each(|gpu| *ran_out.entry(gpu).or_insert(0) += 1);
        snapshot.ran_out = ran_out.into_iter().collect();
        snapshot.out_of_memory = std::mem::take(&mut self.out_of_memory);
        for one in &mut snapshot.out_of_memory {
            one.site_name = self.site_name(one.site);
            one.frames = self.frames_of(one.site_name).into();
        }
        snapshot
    }

    /// Returns all live memory, as changes describe it.
    pub(crate) fn live(&self) -> BTreeMap<(Pid, Key), Held> {
        let of = |process: &Process| {
            let pid = process.key.pid;
            let pool = |live: &Live| process.pools[live.pool?].id;
            let held = |live: &Live| Held {
                began: live.at,
                tid: live.tid,
                kind: live.kind,
                known: Known { device: live.device, pool: pool(live), bytes: live.bytes },
                site: live.site,
            };
            process.live.iter().map(|live| ((pid, live.key), held(live))).collect::<Vec<_>>()
        };
        self.running.values().flat_map(of).collect()
    }

    fn called(&mut self, event: &Event) -> &mut Process {
        let facts = ProcessFacts { start: 0, uid: 0, name: "".into(), before_trace: true };
        let process = self.running.entry(event.pid).or_insert_with(|| Process {
            uid: None,
            anonymous: true,
            ..Process::new(event.pid, &facts, event.at)
        });
        process.silent = false;
        process.now = event.at;
        let (allocates, frees, fails) = match &event.what {
            What::Allocate(_) => (1, 0, 0),
            What::Free(_) => (0, 1, 0),
            What::Failed(_) => (0, 0, 1),
            What::Vmm(VmmCall::Create { .. } | VmmCall::Import { .. }) => (1, 0, 0),
            What::Vmm(VmmCall::Release { .. } | VmmCall::Unmap { .. }) => (0, 1, 0),
            What::Graph(GraphCall::CaptureEnded { graph: None, .. }) => (0, 0, 1),
            _ => (0, 0, 0),
        };
        process.received.allocations += allocates;
        process.received.frees += frees;
        process.received.failures += fails;
        process
    }

    fn announce(&mut self, event: &Event, facts: &ProcessFacts) {
        let new = Process::new(event.pid, facts, event.at);
        let Some(mut old) = self.running.remove(&event.pid) else {
            self.running.insert(event.pid, new);
            return;
        };
        if old.key.start != 0 && facts.start != 0 && old.key.start != facts.start {
            self.running.insert(event.pid, new);
            self.end(old, End::Exited, event.at);
            return;
        }
        old.silent = false;
        old.uid = Some(facts.uid);
        old.name = facts.name.clone();
        old.key.start = old.key.start.max(facts.start);
        if std::mem::take(&mut old.anonymous) {
            old.before_trace = facts.before_trace;
        }
        self.running.insert(event.pid, old);
    }

    fn end(&mut self, mut process: Process, end: End, at: Moment) {
        process.ended = Some((end, at));
        if !process.silent {
            self.ended.push(process);
        }
    }

    fn record_loss(&mut self, event: &Event, lost: &Lost) {
        add(&mut self.lost, lost, event.at);
        let ended = self.ended.iter_mut().rev().find(|process| process.key.pid == event.pid);
        let owner = self.running.get_mut(&event.pid).or(ended);
        if let Some(process) = owner.filter(|_| event.pid != Pid(0)) {
            add(&mut process.lost, lost, event.at);
            process.counted &= lost.other == 0;
        } else {
            for process in self.running.values_mut() {
                process.shared_other += lost.other;
                process.counted &= lost.other == 0;
            }
        }
    }

    fn record_oom(&mut self, event: &Event, failed: &Failed) {
        let process = &self.running[&event.pid];
        if failed.code != 2 {
            return;
        }
        let of_context = failed.context.and_then(|id| process.contexts.get(&id)?.device);
        let device = failed.device.or(of_context).or(process.only());
        let gpu = device.and_then(|device| process.gpu(device));
        let of_gpu = failed.asked.is_some_and(|(kind, _)| OF_GPU.contains(&kind));
        self.ran_out.push(gpu.filter(|_| of_gpu));
        if failed.asked.is_none() || self.out_of_memory.len() == 64 {
            return;
        }
        let shown = self.running.values().filter(|process| !process.silent);
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
            at: event.at,
            pid: event.pid,
            tid: event.tid,
            name: process.name.clone(),
            device,
            gpu,
            asked: failed.asked.map(|(kind, bytes)| (kind, Bytes(bytes))),
            site: failed.site,
            site_name: SiteName::Unknown,
            frames: [].into(),
            holders,
        });
    }
}

/// Kinds of GPU memory.
const OF_GPU: [Kind; 6] =
    [Kind::Device, Kind::Array, Kind::Physical, Kind::Graph, Kind::Static, Kind::Async];

fn add(sum: &mut Loss, lost: &Lost, at: Moment) {
    sum.allocations += lost.allocations;
    sum.allocated_bytes += lost.allocated_bytes;
    sum.frees += lost.frees;
    sum.failures += lost.failures;
    sum.other += lost.other;
    sum.stacks += lost.stacks;
    sum.objects += lost.objects;
    sum.tensors += lost.tensors;
    sum.processes += lost.processes;
    sum.since = sum.since.or(Some(at));
}
