//! What the driver itself reports, without probes: needs no privileges.

use std::path::Path;

use engine::model::event::{Event, EventKind};

use crate::clock;
use crate::gpus::GpuInfo;

use super::SessionOptions;
use super::enrich::host_facts::HostFacts;
use super::processes::ProcessTable;

/// Driver-reported usage of all processes and GPUs, as events.
pub struct DriverReports {
    host: HostFacts,
    processes: ProcessTable,
}

impl DriverReports {
    /// Starts to ask the driver once a second, in the background.
    #[must_use]
    pub fn open() -> Self {
        let host = HostFacts::open(Path::new(SessionOptions::DEFAULT_LOG_DIR));
        Self { host, processes: ProcessTable::default() }
    }

    /// The GPUs of this host; empty until the driver has answered.
    #[must_use]
    pub fn gpus(&self) -> &[GpuInfo] {
        self.host.usage.gpus()
    }

    /// Returns what has changed since the last call.
    pub fn poll(&mut self) -> Vec<Event> {
        let now = clock::monotonic();
        self.processes.sweep(now);
        let mut events = Vec::new();
        for dead in self.processes.drain_dead() {
            events.push(dead.exit(now).event(EventKind::Exit));
            self.processes.end(dead.pid, dead.start, None, now);
        }
        events.extend(self.host.poll((now, now), &mut self.processes, |_, _, _| true));
        events
    }

    /// Returns once why usage has become unknown.
    pub fn take_failure(&mut self) -> Option<String> {
        self.host.usage.take_failure()
    }
}
