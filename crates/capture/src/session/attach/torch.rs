//! Probes PyTorch's caching allocator: attaches once to each copy of the library that the allocator
//! reports its blocks to, and reports which processes cannot be traced and why.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use engine::model::event::{Event, EventKind};
use engine::model::ids::{Pid, Tid};
use engine::model::tensor::{TensorTracking, TensorsUnavailable};
use engine::model::units::Timestamp;

use super::super::load::bpf_object::LoadedObject;
use super::super::{SessionOptions, Target};
use super::drivers::{DETACH_DELAY, Notice};
use super::probes::{AttachedProbes, ProbePoint, attach};
use super::retry::AttachAttempts;
use crate::clock;
use crate::error::Error;
use crate::libraries::{
    C10Error, C10Library, DriverMapping, FileIdentity, all_processes, scan_torch,
};
use crate::plan::AttachPlan;
use crate::session::liveness::{LivenessTracker, start_of};

struct AttachedTorch {
    file: C10Library,
    last_used: Instant,
    attached_at: Timestamp,
    _attachments: Vec<AttachedProbes>,
}

/// Whether the tensors of a process are tracked.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ProcessState {
    /// Start time of the process.
    start: u64,
    tracking: TensorTracking,
    /// When the probes of its library were attached.
    since: Timestamp,
}

/// Probes of all PyTorch libraries.
pub(crate) struct TorchAttachments {
    /// Attach only to these processes, if the kernel supports links per process.
    only: Option<Vec<Pid>>,
    /// Processes whose mappings are scanned; `None`: all.
    targets: Option<Vec<Pid>>,
    attached: HashMap<FileIdentity, AttachedTorch>,
    /// Mapped files and the result of attaching to them.
    attempts: AttachAttempts<FileIdentity, TensorsUnavailable>,
    states: HashMap<Pid, ProcessState>,
    /// Processes whose state was not sent to the ledger yet.
    unreported: HashSet<Pid>,
    notices: Vec<Notice>,
}

impl TorchAttachments {
    pub(crate) fn new(options: &SessionOptions, plan: &AttachPlan) -> Self {
        let (only, targets) = match &options.target {
            Target::All | Target::Processes { follow: true, .. } => (None, None),
            Target::Processes { pids, follow: false } => {
                (plan.link_per_process.then(|| pids.clone()), Some(pids.clone()))
            }
        };
        Self {
            only,
            targets,
            attached: HashMap::new(),
            attempts: AttachAttempts::new(),
            states: HashMap::new(),
            unreported: HashSet::new(),
            notices: Vec::new(),
        }
    }

    /// Scans the processes that mapped a PyTorch library, or all processes.
    pub(crate) fn scan(&mut self, loaded: &LoadedObject, mapped: &[Pid], all: bool) {
        if !all {
            for pid in mapped {
                if self.targets.as_ref().is_none_or(|targets| targets.contains(pid)) {
                    self.scan_process(loaded, *pid, false);
                }
            }
            return;
        }
        let pids = self.targets.clone().unwrap_or_else(all_processes);
        let mut mapped = HashSet::new();
        for pid in &pids {
            let found = self.scan_process(loaded, *pid, true);
            mapped.extend(found.into_iter().map(|mapping| mapping.device_inode));
        }
        self.attempts.keep(&mapped);
        let pids: HashSet<_> = pids.into_iter().collect();
        self.states.retain(|pid, _| pids.contains(pid));
        let notices = &mut self.notices;
        self.attached.retain(|_, torch| {
            let keep = torch.last_used.elapsed() < DETACH_DELAY;
            if !keep {
                notices.push(Notice::Detached { path: torch.file.path.clone() });
            }
            keep
        });
    }

    /// Returns the libraries that were found. `settled`: the process is not still mapping its
    /// libraries.
    fn scan_process(
        &mut self,
        loaded: &LoadedObject,
        pid: Pid,
        settled: bool,
    ) -> Vec<DriverMapping> {
        let found = scan_torch(pid);
        let Some(start) = start_of(pid).filter(|_| found.cuda) else {
            self.process_exited(pid);
            return found.c10;
        };
        let mut outcome = Err(TensorsUnavailable::NoLibrary);
        for mapping in &found.c10 {
            let attached = self.try_mapping(loaded, mapping);
            // One probed copy is enough: the allocator does not use the others.
            outcome = if outcome.is_ok() { outcome } else { attached };
        }
        let (tracking, since) = match outcome {
            Err(TensorsUnavailable::NoLibrary) if !settled => return found.c10,
            Ok(since) => (TensorTracking::Active, since),
            Err(reason) => (TensorTracking::Unavailable(reason), Timestamp(0)),
        };
        let state = ProcessState { start, tracking, since };
        if self.states.insert(pid, state) != Some(state) {
            self.unreported.insert(pid);
        }
        found.c10
    }

    fn try_mapping(
        &mut self,
        loaded: &LoadedObject,
        mapping: &DriverMapping,
    ) -> Result<Timestamp, TensorsUnavailable> {
        let now = Instant::now();
        match self.attempts.outcome(&mapping.device_inode, now) {
            Some(Ok(identity)) => {
                if let Some(attached) = self.attached.get_mut(identity) {
                    attached.last_used = now;
                    return Ok(attached.attached_at);
                }
            }
            Some(Err(reason)) => return Err(reason),
            None => {}
        }
        let outcome = self.attach(loaded, mapping);
        self.attempts.insert(&mapping.device_inode, outcome.clone(), now);
        let identity = outcome?;
        Ok(self.attached.get(&identity).map_or(Timestamp(0), |torch| torch.attached_at))
    }

    fn attach(
        &mut self,
        loaded: &LoadedObject,
        mapping: &DriverMapping,
    ) -> Result<FileIdentity, TensorsUnavailable> {
        let paths = mapping.paths_to_open();
        let path = paths.iter().find(|path| std::fs::File::open(path).is_ok());
        let path = path.ok_or(TensorsUnavailable::Unreadable)?;
        let library = C10Library::open(path, &mapping.path).map_err(|error| match error {
            C10Error::Unreadable => TensorsUnavailable::Unreadable,
            C10Error::NoFunction => TensorsUnavailable::NoSymbol,
        })?;
        let identity = library.identity.clone();
        if let Some(attached) = self.attached.get_mut(&identity) {
            attached.last_used = Instant::now();
            return Ok(identity);
        }
        let attachments =
            self.links(loaded, &library).map_err(|_| TensorsUnavailable::AttachFailed)?;
        self.notices.push(Notice::TorchAttached { path: library.path.clone() });
        let torch = AttachedTorch {
            file: library,
            last_used: Instant::now(),
            attached_at: clock::monotonic(),
            _attachments: attachments,
        };
        self.attached.insert(identity.clone(), torch);
        Ok(identity)
    }

    fn links(
        &self,
        loaded: &LoadedObject,
        library: &C10Library,
    ) -> Result<Vec<AttachedProbes>, Error> {
        let points = library.points.iter();
        let points: Vec<_> = points
            .map(|(offset, call)| ProbePoint { offset: *offset, cookie: u64::from(*call) })
            .collect();
        let scopes: Vec<Option<Pid>> = match &self.only {
            None => vec![None],
            Some(pids) => pids.iter().copied().map(Some).collect(),
        };
        let file = library.attach_path();
        let link =
            |scope| attach(loaded, &file, &library.path, &points, loaded.config.tensors(), scope);
        scopes.into_iter().map(link).collect()
    }

    /// Returns the unreported states of processes that the ledger knows.
    pub(crate) fn drain_events(
        &mut self,
        now: Timestamp,
        liveness: &LivenessTracker,
    ) -> Vec<Event> {
        let Self { unreported, states, notices, .. } = self;
        let mut events = Vec::new();
        unreported.retain(|pid| {
            let Some(state) = states.get(pid) else { return false };
            if !liveness.contains(*pid) {
                return true;
            }
            if let TensorTracking::Unavailable(reason) = state.tracking {
                notices.push(Notice::TensorsUnavailable { pid: *pid, reason });
            }
            events.push(Event {
                pid: *pid,
                tid: Tid(pid.0),
                entry_time: state.since.min(now),
                time: now,
                kind: EventKind::Torch(state.tracking),
            });
            false
        });
        events
    }

    /// Drops the state of a process that exited or called exec.
    pub(crate) fn process_exited(&mut self, pid: Pid) {
        self.states.remove(&pid);
        self.unreported.remove(&pid);
    }

    pub(crate) fn drain_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }
}
