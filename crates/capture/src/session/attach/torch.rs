//! Probes PyTorch's caching allocator: attaches once to each copy of the library that the allocator
//! reports its blocks to, and reports which processes cannot be traced and why. Out-of-memory errors
//! are rare and always probed; blocks are, unless they are requested, only while the memory of a
//! process grows, because a training step can have thousands of them.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use engine::model::event::{Event, EventKind};
use engine::model::ids::{Pid, Tid};
use engine::model::tensor::{TensorTracking, TensorsUnavailable};
use engine::model::units::Timestamp;

use super::super::load::bpf_object::LoadedObject;
use super::super::{SessionOptions, Target, TensorMode};
use super::drivers::{DETACH_DELAY, Notice};
use super::growth::GrowthTracker;
use super::probes::{AttachedProbes, ProbePoint, attach};
use super::retry::AttachAttempts;
use crate::clock;
use crate::error::Error;
use crate::libraries::{
    C10Error, C10Library, DriverMapping, FileIdentity, all_processes, scan_torch,
};
use crate::plan::AttachPlan;
use crate::session::liveness::start_of;
use crate::session::processes::ProcessTable;
use crate::wire;

struct AttachedTorch {
    file: C10Library,
    last_used: Instant,
    attached_at: Timestamp,
    _attachments: Vec<AttachedProbes>,
    /// Probes of blocks while memory grows, by process, or for all if the kernel has no links per
    /// process.
    growing: HashMap<Option<Pid>, (Timestamp, AttachedProbes)>,
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
    /// Processes whose memory grows; `None`: blocks are always probed.
    growth: Option<GrowthTracker>,
    /// Processes that began to grow since the last scan.
    began: Vec<Pid>,
    link_per_process: bool,
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
            growth: (options.tensors == TensorMode::WhileGrowing).then(GrowthTracker::default),
            began: Vec::new(),
            link_per_process: plan.link_per_process,
        }
    }

    /// Observes a call of a process.
    pub(crate) fn observe(&mut self, event: &Event) {
        if self.growth.as_mut().is_some_and(|growth| growth.observe(event)) {
            self.began.push(event.pid);
        }
    }

    /// Scans the processes that mapped a PyTorch library, or all processes.
    pub(crate) fn scan(&mut self, loaded: &LoadedObject, mapped: &[Pid], all: bool) {
        let began = std::mem::take(&mut self.began);
        if !all {
            for pid in mapped.iter().chain(&began) {
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
        if let Some(growth) = &mut self.growth {
            growth.add(pid);
        }
        let mut outcome = Err(TensorsUnavailable::NoLibrary);
        for mapping in &found.c10 {
            let attached = self.try_mapping(loaded, mapping);
            let attached = attached.and_then(|identity| self.probe_blocks(loaded, &identity, pid));
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
    ) -> Result<FileIdentity, TensorsUnavailable> {
        let now = Instant::now();
        match self.attempts.outcome(&mapping.device_inode, now) {
            Some(Ok(identity)) => {
                if let Some(attached) = self.attached.get_mut(identity) {
                    attached.last_used = now;
                    return Ok(identity.clone());
                }
            }
            Some(Err(reason)) => return Err(reason),
            None => {}
        }
        let outcome = self.attach(loaded, mapping);
        self.attempts.insert(&mapping.device_inode, outcome.clone(), now);
        outcome
    }

    /// Attaches to the function for blocks while the memory of a process grows, and detaches from it
    /// later. Returns since when the blocks of the process are seen.
    fn probe_blocks(
        &mut self,
        loaded: &LoadedObject,
        identity: &FileIdentity,
        pid: Pid,
    ) -> Result<Timestamp, TensorsUnavailable> {
        let Some(torch) = self.attached.get_mut(identity) else {
            return Err(TensorsUnavailable::AttachFailed);
        };
        let Some(growth) = &self.growth else { return Ok(torch.attached_at) };
        let now = clock::monotonic();
        let scope = self.link_per_process.then_some(pid);
        let grows = match scope {
            Some(pid) => growth.is_growing(pid, now),
            None => growth.is_any_growing(now),
        };
        if !grows {
            torch.growing.remove(&scope);
            return Err(TensorsUnavailable::NotGrowing);
        }
        if let Some((since, _)) = torch.growing.get(&scope) {
            return Ok(*since);
        }
        let points = points(&torch.file, |call| call == wire::VS_TENSOR_ALLOC_FREE);
        let probes = attach(
            loaded,
            &torch.file.attach_path(),
            &torch.file.path,
            &points,
            loaded.config.tensors(),
            scope,
        );
        let probes = probes.map_err(|_| TensorsUnavailable::AttachFailed)?;
        let since = clock::monotonic();
        torch.growing.insert(scope, (since, probes));
        Ok(since)
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
            growing: HashMap::new(),
        };
        self.attached.insert(identity.clone(), torch);
        Ok(identity)
    }

    fn links(
        &self,
        loaded: &LoadedObject,
        library: &C10Library,
    ) -> Result<Vec<AttachedProbes>, Error> {
        let always = |call| self.growth.is_none() || call == wire::VS_TENSOR_OOM;
        let points = points(library, always);
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
    pub(crate) fn drain_events(&mut self, now: Timestamp, processes: &ProcessTable) -> Vec<Event> {
        let Self { unreported, states, notices, .. } = self;
        let mut events = Vec::new();
        unreported.retain(|pid| {
            let Some(state) = states.get(pid) else { return false };
            if !processes.contains(*pid) {
                return true;
            }
            if let TensorTracking::Unavailable(reason) = state.tracking
                && reason != TensorsUnavailable::NotGrowing
            {
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
        if let Some(growth) = &mut self.growth {
            growth.remove(pid);
            for torch in self.attached.values_mut() {
                torch.growing.remove(&Some(pid));
            }
        }
    }

    pub(crate) fn drain_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }
}

/// Returns the probe points of the functions that are wanted.
fn points(library: &C10Library, wanted: impl Fn(u32) -> bool) -> Vec<ProbePoint> {
    let all = library.points.iter().filter(|(_, call)| wanted(*call));
    all.map(|(offset, call)| ProbePoint { offset: *offset, cookie: u64::from(*call) }).collect()
}
