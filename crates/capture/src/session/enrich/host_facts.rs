//! What the host knows of processes: programs, users, containers, and driver-reported usage.

use std::path::Path;

use engine::model::event::{Event, EventKind};
use engine::model::ids::{Pid, Tid};
use engine::model::units::Timestamp;

use super::driver_usage::DriverUsage;
use super::identity::IdentityResolver;
use crate::containers::ContainerResolver;
use crate::session::processes::{Process, ProcessTable};

/// Sources of facts about processes.
pub(crate) struct HostFacts {
    pub(crate) usage: DriverUsage,
    pub(crate) containers: ContainerResolver,
    identities: IdentityResolver,
}

impl HostFacts {
    /// `logs`: the log directory of the node.
    pub(crate) fn open(logs: &Path) -> Self {
        Self {
            usage: DriverUsage::open(),
            containers: ContainerResolver::new(logs),
            identities: IdentityResolver::default(),
        }
    }

    /// Returns the facts about a process that was just announced.
    pub(crate) fn of_process(
        &mut self,
        pid: Pid,
        uid: u32,
        process: &mut Process,
        now: Timestamp,
    ) -> impl Iterator<Item = Event> + use<> {
        // First what is gone when the process exits.
        let container = self.containers.process_started(pid, process, now);
        let identity = self.identities.process_started(pid, uid);
        let gpus = self.usage.visible_gpus(pid, process);
        let event = move |kind| Event { pid, tid: Tid(pid.0), entry_time: now, time: now, kind };
        identity.into_iter().chain(container).chain(gpus).map(event)
    }

    /// Returns what has changed since the last call; see [`DriverUsage::poll`].
    pub(crate) fn poll(
        &mut self,
        (read_from, now): (Timestamp, Timestamp),
        processes: &mut ProcessTable,
        wanted: impl Fn(&ProcessTable, Pid, u64) -> bool,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        for event in self.usage.poll((read_from, now), processes, wanted) {
            let started = match &event.kind {
                EventKind::Process(info) => Some((event.pid, info.uid)),
                _ => None,
            };
            events.push(event);
            if let Some((pid, uid)) = started {
                events.extend(self.of_process(pid, uid, processes.entry(pid), now));
            }
        }
        events.extend(self.containers.poll_names(processes, now));
        events
    }
}
