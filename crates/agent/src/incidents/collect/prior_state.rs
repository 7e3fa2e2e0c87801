//! State before the oldest of the recent events: processes, their GPUs, contexts and pools.
//! Collected from events that left the ring, and bounded.

use std::collections::{BTreeMap, HashMap};

use engine::model::{
    Allocator, BlockTracking, ContextCall, ContextId, DeviceId, Event, EventKind, GpuId, Pid,
    PoolCall, PoolId, ProcessIdentity, ProcessInfo, Tid, Timestamp,
};

/// Maximum number of processes; of others only the recent events are known.
const MAX_PROCESSES: usize = 4096;

/// Maximum number of contexts, and of pools, per process.
const MAX_CONTEXTS_PER_PROCESS: usize = 256;

/// State before the oldest recent event.
#[derive(Default)]
pub(crate) struct PriorState {
    processes: HashMap<Pid, PriorProcess>,
}

#[derive(Default)]
struct PriorProcess {
    info: Option<ProcessInfo>,
    identity: Option<Box<ProcessIdentity>>,
    gpus: Option<Box<[Option<GpuId>]>>,
    contexts: BTreeMap<ContextId, DeviceId>,
    pools: BTreeMap<PoolId, PoolCall>,
    allocators: BTreeMap<Allocator, BlockTracking>,
}

impl PriorState {
    /// Observes an event that left the ring.
    pub(crate) fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Process(info) => {
                // A process may be announced again; another start time means that the pid was
                // reused.
                let process = self.entry(event.pid);
                if let Some(process) = process {
                    let old = process.info.as_ref().map_or(0, |info| info.start);
                    if old != 0 && info.start != 0 && old != info.start {
                        *process = PriorProcess::default();
                    }
                    process.info = Some(info.clone());
                }
            }
            EventKind::Identity(identity) => {
                self.with(event.pid, |process| process.identity = Some(identity.clone()));
            }
            EventKind::Exit => drop(self.processes.remove(&event.pid)),
            EventKind::Exec => {
                if let Some(process) = self.processes.get_mut(&event.pid) {
                    *process = PriorProcess {
                        info: process.info.take(),
                        gpus: process.gpus.take(),
                        ..PriorProcess::default()
                    };
                }
            }
            EventKind::Gpus(gpus) => {
                self.with(event.pid, |process| process.gpus = Some(gpus.clone()));
            }
            EventKind::Allocator(allocator, tracking) => self.with(event.pid, |process| {
                process.allocators.insert(*allocator, *tracking);
            }),
            EventKind::Context(change) => self.with(event.pid, |process| process.context(*change)),
            EventKind::Pool(call) => self.with(event.pid, |process| process.pool(*call)),
            _ => {}
        }
    }

    fn entry(&mut self, pid: Pid) -> Option<&mut PriorProcess> {
        if self.processes.len() >= MAX_PROCESSES && !self.processes.contains_key(&pid) {
            return None;
        }
        Some(self.processes.entry(pid).or_default())
    }

    fn with(&mut self, pid: Pid, change: impl FnOnce(&mut PriorProcess)) {
        if let Some(process) = self.entry(pid) {
            change(process);
        }
    }

    /// Returns the state as events at that time. Every process predates them: what it held is
    /// unknown.
    pub(crate) fn events(&self, at: Timestamp) -> Vec<Event> {
        let mut pids: Vec<_> = self.processes.keys().copied().collect();
        pids.sort_unstable();
        let mut events = Vec::new();
        for pid in pids {
            let Some(process) = self.processes.get(&pid) else { continue };
            let mut push = |kind| {
                events.push(Event { pid, tid: Tid(pid.0), entry_time: at, time: at, kind });
            };
            if let Some(info) = &process.info {
                push(EventKind::Process(ProcessInfo { before_trace: true, ..info.clone() }));
            }
            let identity = process.identity.iter();
            identity.for_each(|identity| push(EventKind::Identity(identity.clone())));
            process.gpus.iter().for_each(|gpus| push(EventKind::Gpus(gpus.clone())));
            for (&context, &device) in &process.contexts {
                push(EventKind::Context(ContextCall::Learned { context, device }));
            }
            process.pools.values().for_each(|call| push(EventKind::Pool(*call)));
            for (allocator, tracking) in &process.allocators {
                push(EventKind::Allocator(*allocator, *tracking));
            }
        }
        events
    }
}

impl PriorProcess {
    fn context(&mut self, change: ContextCall) {
        match change {
            ContextCall::Created { context, device }
            | ContextCall::PrimaryRetained { context, device }
            | ContextCall::Learned { context, device } => {
                if self.contexts.len() < MAX_CONTEXTS_PER_PROCESS {
                    self.contexts.insert(context, device);
                }
            }
            ContextCall::Destroyed { context } => drop(self.contexts.remove(&context)),
            ContextCall::PrimaryReleased { .. } | ContextCall::PrimaryReset { .. } => {}
        }
    }

    fn pool(&mut self, call: PoolCall) {
        match call {
            PoolCall::Created { pool, .. } | PoolCall::OfDevice { pool, .. } => {
                if self.pools.len() < MAX_CONTEXTS_PER_PROCESS {
                    self.pools.insert(pool, call);
                }
            }
            PoolCall::Destroyed { pool } => drop(self.pools.remove(&pool)),
            PoolCall::Trimmed { .. } | PoolCall::ReservedReported { .. } => {}
        }
    }
}
