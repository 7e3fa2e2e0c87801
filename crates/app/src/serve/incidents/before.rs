//! State before the oldest of the recent events: processes, their GPUs, contexts and pools.
//! Collected from events that left the ring, and bounded.

use std::collections::{BTreeMap, HashMap};

use engine::event::{ContextChange, Event, PoolCall, ProcessFacts, What};
use engine::ids::{ContextId, DeviceId, GpuId, Pid, PoolId, Tid};
use engine::tensor::TensorWatch;
use engine::units::Moment;

/// Maximum number of processes; of others only the recent events are known.
const PROCESSES: usize = 4096;

/// Maximum number of contexts, and of pools, per process.
const EACH: usize = 256;

/// State before the oldest recent event.
#[derive(Default)]
pub(crate) struct Before {
    processes: HashMap<Pid, Known>,
}

#[derive(Default)]
struct Known {
    facts: Option<ProcessFacts>,
    gpus: Option<Box<[Option<GpuId>]>>,
    contexts: BTreeMap<ContextId, DeviceId>,
    pools: BTreeMap<PoolId, PoolCall>,
    torch: Option<TensorWatch>,
}

impl Before {
    /// Observes an event that left the ring.
    pub(crate) fn note(&mut self, event: &Event) {
        match &event.what {
            What::Process(facts) => {
                // A process may be announced again; another start time means that the pid was
                // reused.
                let process = self.entry(event.pid);
                if let Some(process) = process {
                    let old = process.facts.as_ref().map_or(0, |facts| facts.start);
                    if old != 0 && facts.start != 0 && old != facts.start {
                        *process = Known::default();
                    }
                    process.facts = Some(facts.clone());
                }
            }
            What::Exit => drop(self.processes.remove(&event.pid)),
            What::Exec => {
                if let Some(process) = self.processes.get_mut(&event.pid) {
                    *process = Known {
                        facts: process.facts.take(),
                        gpus: process.gpus.take(),
                        ..Known::default()
                    };
                }
            }
            What::Gpus(gpus) => self.with(event.pid, |process| process.gpus = Some(gpus.clone())),
            What::Torch(watch) => self.with(event.pid, |process| process.torch = Some(*watch)),
            What::Context(change) => self.with(event.pid, |process| process.context(*change)),
            What::Pool(call) => self.with(event.pid, |process| process.pool(*call)),
            _ => {}
        }
    }

    fn entry(&mut self, pid: Pid) -> Option<&mut Known> {
        if self.processes.len() >= PROCESSES && !self.processes.contains_key(&pid) {
            return None;
        }
        Some(self.processes.entry(pid).or_default())
    }

    fn with(&mut self, pid: Pid, change: impl FnOnce(&mut Known)) {
        if let Some(process) = self.entry(pid) {
            change(process);
        }
    }

    /// Returns the state as events at that time. Every process predates them: what it held is
    /// unknown.
    pub(crate) fn events(&self, at: Moment) -> Vec<Event> {
        let mut pids: Vec<_> = self.processes.keys().copied().collect();
        pids.sort_unstable();
        let mut events = Vec::new();
        for pid in pids {
            let Some(process) = self.processes.get(&pid) else { continue };
            let mut push = |what| {
                events.push(Event { pid, tid: Tid(pid.0), entered: at, at, what });
            };
            if let Some(facts) = &process.facts {
                push(What::Process(ProcessFacts { before_trace: true, ..facts.clone() }));
            }
            process.gpus.iter().for_each(|gpus| push(What::Gpus(gpus.clone())));
            for (&context, &device) in &process.contexts {
                push(What::Context(ContextChange::Learned { context, device }));
            }
            process.pools.values().for_each(|call| push(What::Pool(*call)));
            process.torch.iter().for_each(|watch| push(What::Torch(*watch)));
        }
        events
    }
}

impl Known {
    fn context(&mut self, change: ContextChange) {
        match change {
            ContextChange::Created { context, device }
            | ContextChange::PrimaryRetained { context, device }
            | ContextChange::Learned { context, device } => {
                if self.contexts.len() < EACH {
                    self.contexts.insert(context, device);
                }
            }
            ContextChange::Destroyed { context } => drop(self.contexts.remove(&context)),
            ContextChange::PrimaryReleased { .. } | ContextChange::PrimaryReset { .. } => {}
        }
    }

    fn pool(&mut self, call: PoolCall) {
        match call {
            PoolCall::Created { pool, .. } | PoolCall::OfDevice { pool, .. } => {
                if self.pools.len() < EACH {
                    self.pools.insert(pool, call);
                }
            }
            PoolCall::Destroyed { pool } => drop(self.pools.remove(&pool)),
            PoolCall::Trimmed { .. } | PoolCall::ToldReserved { .. } => {}
        }
    }
}
