//! Discovers the contexts of threads that are older than the probes.
//!
//! Such a thread never sets its context again, but frameworks query it all the time. Probing these
//! context queries permanently would cost a training step more than everything else together, so
//! they are probed for a short time: at the start, and again when a thread with an unknown context
//! allocates.

use std::time::{Duration, Instant};

use engine::model::ids::Pid;

use super::super::load::bpf_object::LoadedObject;
use super::drivers::probe_points;
use super::probes::{AttachedProbes, attach};
use crate::hooks::HookGroup;
use crate::libraries::DriverLibrary;
use crate::session::processes::Process;

/// How long context queries are probed.
const PROBE_DURATION: Duration = Duration::from_secs(1);

/// Minimum time between two requests for a process.
const REQUEST_INTERVAL: Duration = Duration::from_secs(10);

/// Number of processes above which one link for all is cheaper than one per process.
const PER_PROCESS_LINK_LIMIT: usize = 32;

/// Temporary probes of context queries.
pub(crate) struct ContextDiscovery {
    link_per_process: bool,
    /// Processes whose contexts were requested since the probes were last started.
    requested: Vec<Pid>,
    running: Option<(Instant, Vec<AttachedProbes>)>,
}

impl ContextDiscovery {
    pub(crate) const fn new(link_per_process: bool) -> Self {
        Self { link_per_process, requested: Vec::new(), running: None }
    }

    /// Requests the contexts of the threads of a process.
    pub(crate) fn request(&mut self, pid: Pid, process: &mut Process) {
        let last = process.contexts_requested;
        if last.is_none_or(|requested| requested.elapsed() >= REQUEST_INTERVAL) {
            process.contexts_requested = Some(Instant::now());
            self.requested.push(pid);
        }
    }

    /// Starts and stops the probes.
    pub(crate) fn update<'a>(
        &mut self,
        loaded: &LoadedObject,
        libraries: impl Iterator<Item = &'a DriverLibrary>,
    ) {
        if let Some((since, _)) = &self.running {
            if since.elapsed() < PROBE_DURATION {
                return;
            }
            self.running = None;
        }
        if self.requested.is_empty() {
            return;
        }
        let pids = std::mem::take(&mut self.requested);
        let scopes: Vec<Option<Pid>> =
            if self.link_per_process && pids.len() <= PER_PROCESS_LINK_LIMIT {
                pids.iter().copied().map(Some).collect()
            } else {
                vec![None]
            };
        let now = Instant::now();
        let mut attachments = Vec::new();
        for library in libraries {
            let points = probe_points(library, &[HookGroup::Queries]);
            for scope in &scopes {
                // Attaching to a process that has exited fails, which does not matter. Other
                // failures leave devices unknown, and the report says so.
                let attached = attach(
                    loaded,
                    &library.attach_path(),
                    &library.path,
                    &points,
                    loaded.config.calls(),
                    *scope,
                );
                attachments.extend(attached.ok());
            }
        }
        self.running = Some((now, attachments));
    }
}
