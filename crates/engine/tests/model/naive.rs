//! The ledger's rules over plain lists: everything is searched, summed and sorted anew.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use engine::event::{Allocate, ContextChange, Event, Failed, Lost, ProcessFacts, What};
use engine::ids::{ContextId, DeviceId, FunctionId, Key, Pid, ProcessKey, SiteId, Tid};
use engine::kind::Kind;
use engine::snapshot::{
    AllocationView, Certainty, DeviceView, End, FailureCount, KindView, Loss, OutOfMemory,
    ProcessView, Snapshot, Sort, ThreadView, View,
};
use engine::units::{Bytes, Moment};

#[derive(Clone)]
struct Live {
    key: Key,
    kind: Kind,
    bytes: u64,
    at: Moment,
    tid: Tid,
    context: Option<ContextId>,
    device: Option<DeviceId>,
    site: Option<SiteId>,
}

impl Live {
    fn device_bytes(&self) -> u64 {
        if self.kind.takes_device_memory() { self.bytes } else { 0 }
    }
}

#[derive(Clone, Copy, Default)]
struct Context {
    device: Option<DeviceId>,
    created_at: Option<Moment>,
}

#[derive(Clone)]
struct Process {
    key: ProcessKey,
    uid: Option<u32>,
    name: Box<str>,
    before_trace: bool,
    anonymous: bool,
    silent: bool,
    /// Every retain was seen.
    counted: bool,
    ended: Option<(End, Moment)>,
    live: Vec<Live>,
    superseded: Vec<Key>,
    names: BTreeMap<Tid, Box<str>>,
    ended_threads: BTreeSet<Tid>,
    contexts: BTreeMap<ContextId, Context>,
    primaries: BTreeMap<DeviceId, (ContextId, u64)>,
    failures: BTreeMap<(FunctionId, i32), u64>,
    peak: (u64, Moment),
    device_peaks: BTreeMap<Option<DeviceId>, u64>,
    allocations_total: u64,
    frees_total: u64,
    released_total: u64,
    failed_allocations: u64,
    unknown_frees: u64,
    lost: Loss,
    shared_other: u64,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Naive {
    running: BTreeMap<Pid, Process>,
    ended: Vec<Process>,
    out_of_memory: Vec<OutOfMemory>,
    lost: Loss,
}

impl Naive {
    pub(crate) fn apply(&mut self, event: &Event) {
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
                }
            }
            What::Lost(lost) => self.lose(event, lost),
            What::Failed(failed) => {
                self.called(event).fail(failed);
                self.note_out_of_memory(event, failed);
            }
            What::ThreadName(name) => {
                let process = self.called(event);
                process.ended_threads.remove(&event.tid);
                process.names.insert(event.tid, name.clone());
            }
            What::Allocate(allocate) => self.called(event).allocate(event, allocate),
            What::Free(free) => self.called(event).free(event, free.key),
            What::Context(change) => self.called(event).change(event, *change),
        }
        for process in self.running.values_mut() {
            process.after_event(event.at);
        }
    }

    /// The snapshot; bounds are those of a ledger without losses.
    pub(crate) fn snapshot(&mut self, at: Moment, view: &View) -> Snapshot {
        let running: Vec<_> = self.running.values().filter(|p| !p.silent).cloned().collect();
        let total = Bytes(running.iter().map(Process::live_bytes).sum());
        let mut shown = running.clone();
        shown.append(&mut self.ended);
        shown.sort_by_key(|process| {
            (
                process.ended.is_some(),
                rank(&process.live.iter().collect::<Vec<_>>(), view),
                process.key,
            )
        });
        Snapshot {
            at,
            live_bytes: total,
            live_allocations: running.iter().map(|process| process.live.len() as u64).sum(),
            certainty: Certainty {
                lost: self.lost,
                live_at_least: total,
                live_at_most: total,
                unseen_frees: running.iter().map(|p| p.superseded.len() as u64).sum(),
                before_trace: running.iter().any(|process| process.before_trace),
            },
            processes: shown.iter().map(|process| process.view(at, view)).collect(),
            out_of_memory: std::mem::take(&mut self.out_of_memory),
        }
    }

    fn called(&mut self, event: &Event) -> &mut Process {
        let facts = ProcessFacts { start: 0, uid: 0, name: "".into(), before_trace: true };
        let process = self.running.entry(event.pid).or_insert_with(|| Process {
            uid: None,
            anonymous: true,
            ..Process::new(event.pid, &facts, event.at)
        });
        process.silent = false;
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

    fn lose(&mut self, event: &Event, lost: &Lost) {
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

    fn note_out_of_memory(&mut self, event: &Event, failed: &Failed) {
        let process = &self.running[&event.pid];
        if failed.code != 2 || failed.asked.is_none() || self.out_of_memory.len() == 64 {
            return;
        }
        let of_context = failed.context.and_then(|id| process.contexts.get(&id)?.device);
        let device = failed.device.or(of_context);
        let shown = self.running.values().filter(|process| !process.silent);
        let mut holders: Vec<_> = shown
            .map(|process| {
                let held = process.live.iter().filter(|l| device.is_none() || l.device == device);
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
            asked: failed.asked.map(|(kind, bytes)| (kind, Bytes(bytes))),
            holders,
        });
    }
}

impl Process {
    fn new(pid: Pid, facts: &ProcessFacts, at: Moment) -> Self {
        Self {
            key: ProcessKey { pid, start: facts.start },
            uid: Some(facts.uid),
            name: facts.name.clone(),
            before_trace: facts.before_trace,
            anonymous: false,
            silent: false,
            counted: !facts.before_trace,
            ended: None,
            live: Vec::new(),
            superseded: Vec::new(),
            names: BTreeMap::new(),
            ended_threads: BTreeSet::new(),
            contexts: BTreeMap::new(),
            primaries: BTreeMap::new(),
            failures: BTreeMap::new(),
            peak: (0, at),
            device_peaks: BTreeMap::new(),
            allocations_total: 0,
            frees_total: 0,
            released_total: 0,
            failed_allocations: 0,
            unknown_frees: 0,
            lost: Loss::default(),
            shared_other: 0,
        }
    }

    fn after_exec(&self, at: Moment) -> Self {
        let start = self.key.start;
        let facts = ProcessFacts { start, uid: 0, name: self.name.clone(), before_trace: false };
        Self { uid: self.uid, silent: true, ..Self::new(self.key.pid, &facts, at) }
    }

    fn live_bytes(&self) -> u64 {
        self.live.iter().map(Live::device_bytes).sum()
    }

    fn after_event(&mut self, at: Moment) {
        if self.live_bytes() > self.peak.0 {
            self.peak = (self.live_bytes(), at);
        }
        for live in self.live.iter().filter(|live| live.kind.takes_device_memory()) {
            let here = self.live.iter().filter(|other| other.device == live.device);
            let sum: u64 = here.map(Live::device_bytes).sum();
            let peak = self.device_peaks.entry(live.device).or_default();
            *peak = sum.max(*peak);
        }
        let holds = |tid: &Tid| self.live.iter().any(|live| live.tid == *tid);
        self.names.retain(|tid, _| !self.ended_threads.contains(tid) || holds(tid));
    }

    fn allocate(&mut self, event: &Event, allocate: &Allocate) {
        self.allocations_total += 1;
        self.ended_threads.remove(&event.tid);
        if let Some(old) = self.live.iter().position(|live| live.key == allocate.key) {
            self.live.remove(old);
            self.superseded.push(allocate.key);
        }
        let context = allocate.context.filter(|id| id.0 != 0);
        let of_context = context.and_then(|id| self.contexts.entry(id).or_default().device);
        self.live.push(Live {
            key: allocate.key,
            kind: allocate.kind,
            bytes: allocate.bytes,
            at: event.at,
            tid: event.tid,
            context,
            device: allocate.device.or(of_context),
            site: allocate.site,
        });
    }

    fn free(&mut self, event: &Event, key: Key) {
        let own = |live: &Live| live.key == key && live.at <= event.entered;
        if let Some(position) = self.live.iter().position(own) {
            self.live.remove(position);
            self.frees_total += 1;
        } else if let Some(position) = self.superseded.iter().position(|other| *other == key) {
            self.superseded.remove(position);
            self.frees_total += 1;
        } else {
            self.unknown_frees += 1;
        }
    }

    fn fail(&mut self, failed: &Failed) {
        *self.failures.entry((failed.function, failed.code)).or_default() += 1;
        self.failed_allocations += u64::from(failed.asked.is_some());
    }

    fn release(&mut self, context: ContextId, until: Moment) {
        let before = self.live.len();
        self.live.retain(|live| live.context != Some(context) || live.at > until);
        self.released_total += (before - self.live.len()) as u64;
    }

    fn place(&mut self, context: ContextId, device: DeviceId) {
        self.contexts.entry(context).or_default().device = Some(device);
        for live in self.live.iter_mut().filter(|live| live.context == Some(context)) {
            live.device = live.device.or(Some(device));
        }
    }

    fn change(&mut self, event: &Event, change: ContextChange) {
        match change {
            ContextChange::Created { context, device } => {
                self.release(context, event.at);
                self.primaries.retain(|_, (primary, _)| *primary != context);
                self.place(context, device);
                self.contexts.entry(context).or_default().created_at = Some(event.at);
            }
            ContextChange::Destroyed { context } => self.destroy(event, context),
            ContextChange::PrimaryRetained { context, device } => {
                let (primary, users) = self.primaries.get(&device).copied().unwrap_or((context, 0));
                if primary == context {
                    self.primaries.insert(device, (context, users + 1));
                } else {
                    self.primaries.insert(device, (context, 1));
                    self.release(primary, event.at);
                }
                self.place(context, device);
            }
            ContextChange::PrimaryReleased { device } => {
                if let Some((context, users)) = self.primaries.get(&device).copied()
                    && self.counted
                    && users > 0
                {
                    self.primaries.insert(device, (context, users - 1));
                    if users == 1 {
                        self.release(context, event.entered);
                    }
                }
            }
            ContextChange::PrimaryReset { device } => self.reset(event, device),
            ContextChange::Learned { context, device } => self.place(context, device),
        }
    }

    fn destroy(&mut self, event: &Event, context: ContextId) {
        let Some(known) = self.contexts.get(&context).copied() else {
            return;
        };
        if known.created_at.is_some_and(|created| event.entered < created) {
            return;
        }
        self.release(context, event.entered);
        if self.primaries.values().any(|(primary, _)| *primary == context) {
            return;
        }
        // A newer one of the same name may hold something: its device is not known.
        self.contexts.insert(context, Context::default());
    }

    fn reset(&mut self, event: &Event, device: DeviceId) {
        if let Some((context, _)) = self.primaries.get(&device).copied() {
            self.release(context, event.entered);
        } else if self.lost.other == 0 && self.shared_other == 0 {
            let on = |(_, known): &(&ContextId, &Context)| {
                known.device == Some(device) && known.created_at.is_none()
            };
            let candidates: Vec<_> = self.contexts.iter().filter(on).map(|(id, _)| *id).collect();
            if let [only] = candidates[..] {
                self.release(only, event.entered);
            }
        }
    }

    fn view(&self, at: Moment, view: &View) -> ProcessView {
        let at = self.ended.map_or(at, |(_, ended_at)| ended_at);
        let total = Bytes(self.live_bytes());
        let mut failures: Vec<_> = self
            .failures
            .iter()
            .map(|(&(function, code), &count)| FailureCount { function, code, count })
            .collect();
        failures.sort_by_key(|failure| Reverse(failure.count));
        ProcessView {
            key: self.key,
            uid: self.uid,
            name: self.name.clone(),
            ended: self.ended.map(|(end, _)| end),
            before_trace: self.before_trace,
            live_bytes: total,
            live_allocations: self.live.len() as u64,
            peak_bytes: Bytes(self.peak.0),
            peak_at: self.peak.1,
            allocations_total: self.allocations_total,
            frees_total: self.frees_total,
            released_total: self.released_total,
            failed_allocations: self.failed_allocations,
            unknown_frees: self.unknown_frees,
            failures,
            devices: self.devices(),
            kinds: self.kinds(),
            threads: self.threads(at, view),
            certainty: Certainty {
                lost: self.lost,
                live_at_least: total,
                live_at_most: total,
                unseen_frees: self.superseded.len() as u64,
                before_trace: self.before_trace,
            },
        }
    }

    fn devices(&self) -> Vec<DeviceView> {
        let row = |(device, peak): (&Option<DeviceId>, &u64)| {
            let held = self.live.iter().filter(|live| live.device == *device);
            let live_bytes = Bytes(held.map(Live::device_bytes).sum());
            DeviceView { device: *device, live_bytes, peak_bytes: Bytes(*peak) }
        };
        let mut rows: Vec<_> = self.device_peaks.iter().map(row).collect();
        rows.retain(|row| row.device.is_some() || row.live_bytes.0 > 0);
        rows.sort_by_key(|row| row.device.is_none());
        rows
    }

    fn kinds(&self) -> Vec<KindView> {
        let row = |kind: Kind| {
            let held: Vec<_> = self.live.iter().filter(|live| live.kind == kind).collect();
            let live_bytes = Bytes(held.iter().map(|live| live.bytes).sum());
            KindView { kind, live_bytes, live_allocations: held.len() as u64 }
        };
        Kind::ALL.into_iter().map(row).filter(|row| row.live_allocations > 0).collect()
    }

    fn threads(&self, at: Moment, view: &View) -> Vec<ThreadView> {
        let tids: BTreeSet<_> = self.live.iter().map(|live| live.tid).collect();
        let mut threads: Vec<(Tid, Vec<&Live>)> = tids
            .into_iter()
            .map(|tid| (tid, self.live.iter().filter(|live| live.tid == tid).collect()))
            .collect();
        threads.sort_by_key(|(tid, held)| (rank(held, view), *tid));
        let show = |(tid, mut held): (Tid, Vec<&Live>)| {
            let live_bytes = Bytes(held.iter().map(|live| live.device_bytes()).sum());
            let live_allocations = held.len() as u64;
            held.sort_by_key(|live| match view.sort {
                Sort::Age => (Reverse(0), live.at),
                Sort::Size | Sort::Count => (Reverse(live.bytes), live.at),
            });
            held.retain(|live| live.bytes >= view.min_size.0 && at - live.at >= view.older);
            held.truncate(view.top);
            let allocations = held.iter().map(|live| AllocationView {
                key: live.key,
                device: live.device,
                bytes: Bytes(live.bytes),
                kind: live.kind,
                age: at - live.at,
                site: live.site,
            });
            let name = self.names.get(&tid).cloned().unwrap_or_default();
            let allocations = allocations.collect();
            ThreadView { tid, name, live_bytes, live_allocations, allocations }
        };
        threads.into_iter().map(show).collect()
    }
}

fn rank(held: &[&Live], view: &View) -> (Reverse<u64>, u64) {
    match view.sort {
        Sort::Size => (Reverse(held.iter().map(|live| live.device_bytes()).sum()), 0),
        Sort::Count => (Reverse(held.len() as u64), 0),
        Sort::Age => (Reverse(0), held.iter().map(|live| live.at.0).min().unwrap_or(u64::MAX)),
    }
}

fn add(sum: &mut Loss, lost: &Lost, at: Moment) {
    sum.allocations += lost.allocations;
    sum.allocated_bytes += lost.allocated_bytes;
    sum.frees += lost.frees;
    sum.failures += lost.failures;
    sum.other += lost.other;
    sum.since = sum.since.or(Some(at));
}
