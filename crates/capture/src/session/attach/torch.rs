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
use super::growth::Growth;
use super::probes::{AttachedProbes, ProbePoint, attach};
use super::retry::AttachAttempts;
use crate::clock;
use crate::error::Error;
use crate::files::Mapping;
use crate::libraries::{C10Error, C10Library, FileIdentity, all_processes, scan_torch};
use crate::plan::AttachPlan;
use crate::session::processes::{Process, ProcessTable};
use crate::wire;

struct AttachedTorch {
    file: C10Library,
    last_used: Instant,
    attached_at: Timestamp,
    _attachments: Vec<AttachedProbes>,
    /// Probes of blocks while memory of any process grows, if the kernel has no links per process.
    growing: Option<BlockProbes>,
}

/// Probes of blocks, and since when they are attached.
type BlockProbes = (Timestamp, AttachedProbes);

/// A process that uses PyTorch.
pub(crate) struct TorchState {
    /// When it was last scanned.
    pub(crate) found: Timestamp,
    /// Whether its tensors are tracked, and since when.
    tracking: Option<(TensorTracking, Timestamp)>,
    /// That was sent to the ledger.
    is_reported: bool,
    growth: Growth,
    /// Probes of blocks while its memory grows.
    growing: HashMap<FileIdentity, BlockProbes>,
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
    notices: Vec<Notice>,
    /// Blocks are probed only while memory grows.
    while_growing: bool,
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
            notices: Vec::new(),
            while_growing: options.tensors == TensorMode::WhileGrowing,
            began: Vec::new(),
            link_per_process: plan.link_per_process,
        }
    }

    /// Observes a call of a process.
    pub(crate) fn observe(&mut self, event: &Event, process: &mut Process) {
        if self.while_growing
            && let Some(torch) = &mut process.scanned.torch
            && torch.growth.observe(event)
        {
            self.began.push(event.pid);
        }
    }

    /// Scans the processes that mapped a PyTorch library, or all processes.
    pub(crate) fn scan(
        &mut self,
        loaded: &LoadedObject,
        mapped: &[Pid],
        all: bool,
        processes: &mut ProcessTable,
    ) {
        let began = std::mem::take(&mut self.began);
        if !all {
            for pid in mapped.iter().chain(&began) {
                if self.targets.as_ref().is_none_or(|targets| targets.contains(pid)) {
                    self.scan_process(loaded, *pid, false, processes);
                }
            }
            return;
        }
        let pids = self.targets.clone().unwrap_or_else(all_processes);
        let mut mapped = HashSet::new();
        for pid in &pids {
            let found = self.scan_process(loaded, *pid, true, processes);
            mapped.extend(found.iter().map(Mapping::file_id));
        }
        self.attempts.keep(&mapped);
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
        processes: &mut ProcessTable,
    ) -> Vec<Mapping> {
        let found = scan_torch(pid);
        let any_grows = !self.link_per_process && is_any_growing(processes);
        let Some(process) = found.cuda.then(|| processes.running(pid)).flatten() else {
            let known = processes.all_of(pid).iter_mut();
            known.for_each(|process| process.scanned.torch = None);
            return found.c10;
        };
        let torch = process.scanned.torch.get_or_insert_with(|| TorchState {
            found: Timestamp(0),
            tracking: None,
            is_reported: false,
            growth: Growth::default(),
            growing: HashMap::new(),
        });
        torch.found = clock::monotonic();
        let is_growing = any_grows || self.link_per_process && torch.growth.is_growing(torch.found);
        let mut outcome = Err(TensorsUnavailable::NoLibrary);
        for mapping in &found.c10 {
            let attached = self.try_mapping(loaded, mapping);
            let attached = attached
                .and_then(|identity| self.probe_blocks(loaded, &identity, pid, torch, is_growing));
            // One probed copy is enough: the allocator does not use the others.
            outcome = if outcome.is_ok() { outcome } else { attached };
        }
        let tracking = match outcome {
            Err(TensorsUnavailable::NoLibrary) if !settled => return found.c10,
            Ok(since) => (TensorTracking::Active, since),
            Err(reason) => (TensorTracking::Unavailable(reason), Timestamp(0)),
        };
        if torch.tracking.replace(tracking) != Some(tracking) {
            torch.is_reported = false;
        }
        found.c10
    }

    fn try_mapping(
        &mut self,
        loaded: &LoadedObject,
        mapping: &Mapping,
    ) -> Result<FileIdentity, TensorsUnavailable> {
        let now = Instant::now();
        match self.attempts.outcome(&mapping.file_id(), now) {
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
        self.attempts.insert(&mapping.file_id(), outcome.clone(), now);
        outcome
    }

    /// Attaches to the function for blocks while the memory of a process grows, and detaches from it
    /// later. Returns since when the blocks of the process are seen.
    fn probe_blocks(
        &mut self,
        loaded: &LoadedObject,
        identity: &FileIdentity,
        pid: Pid,
        process: &mut TorchState,
        is_growing: bool,
    ) -> Result<Timestamp, TensorsUnavailable> {
        let Some(torch) = self.attached.get_mut(identity) else {
            return Err(TensorsUnavailable::AttachFailed);
        };
        if !self.while_growing {
            return Ok(torch.attached_at);
        }
        let scope = self.link_per_process.then_some(pid);
        let attached = match scope {
            Some(_) => process.growing.remove(identity),
            None => torch.growing.take(),
        };
        if !is_growing {
            return Err(TensorsUnavailable::NotGrowing);
        }
        let probes = match attached {
            Some(attached) => attached,
            None => {
                let points = points(&torch.file, |call| call == wire::VS_TENSOR_ALLOC_FREE);
                let (file, path) = (torch.file.attach_path(), &torch.file.path);
                let probes = attach(loaded, &file, path, &points, loaded.config.tensors(), scope);
                (clock::monotonic(), probes.map_err(|_| TensorsUnavailable::AttachFailed)?)
            }
        };
        let since = probes.0;
        match scope {
            Some(_) => drop(process.growing.insert(identity.clone(), probes)),
            None => torch.growing = Some(probes),
        }
        Ok(since)
    }

    fn attach(
        &mut self,
        loaded: &LoadedObject,
        mapping: &Mapping,
    ) -> Result<FileIdentity, TensorsUnavailable> {
        let file = mapping.open().map_err(C10Error::from);
        let library = file.and_then(|file| C10Library::of(file, &mapping.path));
        let library = library.map_err(|error| match error {
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
            growing: None,
        };
        self.attached.insert(identity.clone(), torch);
        Ok(identity)
    }

    fn links(
        &self,
        loaded: &LoadedObject,
        library: &C10Library,
    ) -> Result<Vec<AttachedProbes>, Error> {
        let always = |call| !self.while_growing || call == wire::VS_TENSOR_OOM;
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
    pub(crate) fn drain_events(
        &mut self,
        now: Timestamp,
        processes: &mut ProcessTable,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        for (pid, process) in processes.iter_mut() {
            let Some(torch) = &mut process.scanned.torch else { continue };
            let Some((tracking, since)) = torch.tracking.filter(|_| !torch.is_reported) else {
                continue;
            };
            torch.is_reported = true;
            if let TensorTracking::Unavailable(reason) = tracking
                && reason != TensorsUnavailable::NotGrowing
            {
                self.notices.push(Notice::TensorsUnavailable { pid, reason });
            }
            let (entry_time, kind) = (since.min(now), EventKind::Torch(tracking));
            events.push(Event { pid, tid: Tid(pid.0), entry_time, time: now, kind });
        }
        events
    }

    pub(crate) fn drain_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }
}

/// Returns whether the memory of any process grows.
fn is_any_growing(processes: &mut ProcessTable) -> bool {
    let now = clock::monotonic();
    let mut all = processes.all_mut().filter_map(|(_, process)| process.scanned.torch.as_ref());
    all.any(|torch| torch.growth.is_growing(now))
}

/// Returns the probe points of the functions that are wanted.
fn points(library: &C10Library, wanted: impl Fn(u32) -> bool) -> Vec<ProbePoint> {
    let all = library.points.iter().filter(|(_, call)| wanted(*call));
    all.map(|(offset, call)| ProbePoint { offset: *offset, cookie: u64::from(*call) }).collect()
}
