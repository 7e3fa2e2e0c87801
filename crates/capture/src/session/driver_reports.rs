//! What the driver itself reports, without probes: needs no privileges.

use std::path::Path;

use engine::model::event::Event;
use engine::model::ids::Pid;

use crate::clock;
use crate::containers::ContainerResolver;
use crate::gpus::GpuInfo;

use super::SessionOptions;
use super::enrich::driver_usage::DriverUsage;
use super::enrich::identity::IdentityResolver;
use super::liveness::LivenessTracker;

/// Driver-reported usage of all processes and GPUs, as events.
pub struct DriverReports {
    usage: DriverUsage,
    liveness: LivenessTracker,
    identities: IdentityResolver,
    containers: ContainerResolver,
}

impl DriverReports {
    /// Starts to ask the driver once a second, in the background.
    #[must_use]
    pub fn open() -> Self {
        Self {
            usage: DriverUsage::open(),
            liveness: LivenessTracker::default(),
            identities: IdentityResolver::default(),
            containers: ContainerResolver::new(Path::new(SessionOptions::DEFAULT_LOG_DIR)),
        }
    }

    /// The GPUs of this host; empty until the driver has answered.
    #[must_use]
    pub fn gpus(&self) -> &[GpuInfo] {
        self.usage.gpus()
    }

    /// Returns what has changed since the last call.
    pub fn poll(&mut self) -> Vec<Event> {
        let now = clock::monotonic();
        self.liveness.sweep(now);
        let mut events = self.liveness.drain_dead(now);
        let exited: Vec<Pid> = events.iter().map(|event| event.pid).collect();
        for pid in exited {
            self.liveness.remove(pid);
            self.usage.process_exited(pid);
            self.containers.process_exited(pid);
        }
        let reported = self.usage.poll((now, now), &mut self.liveness, |_, _| true);
        let reported = self.identities.with_identities(reported, now);
        events.extend(self.containers.with_containers(reported, now));
        events.extend(self.containers.poll_names(now));
        events
    }

    /// Returns once why usage has become unknown.
    pub fn take_failure(&mut self) -> Option<String> {
        self.usage.take_failure()
    }
}
