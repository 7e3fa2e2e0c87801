//! What was known when the oldest of the last events happened: processes, their GPUs, contexts and
//! pools. Kept from events that fell out, and bounded.

use std::collections::{BTreeMap, HashMap};

use engine::event::{ContextChange, Event, PoolCall, ProcessFacts, What};
use engine::ids::{ContextId, DeviceId, GpuId, Pid, PoolId, Tid};
use engine::tensor::TensorWatch;
use engine::units::Moment;

/// Processes that are kept; of others nothing is known but what the events tell.
const PROCESSES: usize = 4096;

/// Contexts and pools of each.
const EACH: usize = 256;

/// See the module.
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
    /// An event fell out.
    pub(crate) fn note(&mut self, event: &Event) {
        match &event.what {
            What::Process(facts) => {
                // The same process may be announced again; another one with its pid is another.
                let known = self.of(event.pid);
                if let Some(known) = known {
                    let old = known.facts.as_ref().map_or(0, |facts| facts.start);
                    if old != 0 && facts.start != 0 && old != facts.start {
                        *known = Known::default();
                    }
                    known.facts = Some(facts.clone());
                }
            }
            What::Exit => drop(self.processes.remove(&event.pid)),
            What::Exec => {
                if let Some(known) = self.processes.get_mut(&event.pid) {
                    *known = Known {
                        facts: known.facts.take(),
                        gpus: known.gpus.take(),
                        ..Known::default()
                    };
                }
            }
            What::Gpus(gpus) => self.with(event.pid, |known| known.gpus = Some(gpus.clone())),
            What::Torch(watch) => self.with(event.pid, |known| known.torch = Some(*watch)),
            What::Context(change) => self.with(event.pid, |known| known.context(*change)),
            What::Pool(call) => self.with(event.pid, |known| known.pool(*call)),
            _ => {}
        }
    }

    fn of(&mut self, pid: Pid) -> Option<&mut Known> {
        if self.processes.len() >= PROCESSES && !self.processes.contains_key(&pid) {
            return None;
        }
        Some(self.processes.entry(pid).or_default())
    }

    fn with(&mut self, pid: Pid, change: impl FnOnce(&mut Known)) {
        if let Some(known) = self.of(pid) {
            change(known);
        }
    }

    /// The same as events at that moment. Every process was there before: what it held is not known.
    pub(crate) fn events(&self, at: Moment) -> Vec<Event> {
        let mut pids: Vec<_> = self.processes.keys().copied().collect();
        pids.sort_unstable();
        let mut events = Vec::new();
        for pid in pids {
            let Some(known) = self.processes.get(&pid) else { continue };
            let mut tell = |what| {
                events.push(Event { pid, tid: Tid(pid.0), entered: at, at, what });
            };
            if let Some(facts) = &known.facts {
                tell(What::Process(ProcessFacts { before_trace: true, ..facts.clone() }));
            }
            known.gpus.iter().for_each(|gpus| tell(What::Gpus(gpus.clone())));
            for (&context, &device) in &known.contexts {
                tell(What::Context(ContextChange::Learned { context, device }));
            }
            known.pools.values().for_each(|call| tell(What::Pool(*call)));
            known.torch.iter().for_each(|watch| tell(What::Torch(*watch)));
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
