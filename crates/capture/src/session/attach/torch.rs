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
use super::retry::Tried;
use crate::error::Error;
use crate::libraries::{
    C10Error, C10Library, DriverMapping, FileIdentity, all_processes, scan_torch,
};
use crate::plan::AttachPlan;
use crate::session::liveness::{LivenessTracker, start_of};

struct AttachedTorch {
    image: C10Library,
    last_used: Instant,
    _attachments: Vec<AttachedProbes>,
}

/// Probes of all PyTorch libraries.
pub(crate) struct TorchAttachments {
    /// Attach only to these processes, if the kernel supports links per process.
    only: Option<Vec<Pid>>,
    /// Processes whose mappings are scanned; `None`: all.
    targets: Option<Vec<Pid>>,
    attached: HashMap<FileIdentity, AttachedTorch>,
    /// Mapped files and the result of attaching to them.
    tried: Tried<FileIdentity, TensorsUnavailable>,
    /// States of processes, with their start times.
    states: HashMap<Pid, (u64, TensorTracking)>,
    /// Processes whose state was not sent to the ledger yet.
    unreported: HashSet<Pid>,
    notices: Vec<Notice>,
}

impl TorchAttachments {
    pub(crate) fn new(options: &SessionOptions, plan: &AttachPlan) -> Self {
        let (only, targets) = match &options.target {
            Target::Everybody | Target::Processes { follow: true, .. } => (None, None),
            Target::Processes { pids, follow: false } => {
                (plan.link_per_process.then(|| pids.clone()), Some(pids.clone()))
            }
        };
        Self {
            only,
            targets,
            attached: HashMap::new(),
            tried: Tried::new(),
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
        self.tried.keep(&mapped);
        let pids: HashSet<_> = pids.into_iter().collect();
        self.states.retain(|pid, _| pids.contains(pid));
        let notices = &mut self.notices;
        self.attached.retain(|_, library| {
            let keep = library.last_used.elapsed() < DETACH_DELAY;
            if !keep {
                notices.push(Notice::Detached { path: library.image.path.clone() });
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
            let one = self.try_mapping(loaded, mapping);
            // One probed copy is enough: the allocator does not use the others.
            outcome = if outcome.is_ok() { outcome } else { one };
        }
        let state = match outcome {
            Err(TensorsUnavailable::NoLibrary) if !settled => return found.c10,
            Ok(()) => TensorTracking::Active,
            Err(reason) => TensorTracking::Unavailable(reason),
        };
        if self.states.insert(pid, (start, state)) != Some((start, state)) {
            self.unreported.insert(pid);
        }
        found.c10
    }

    fn try_mapping(
        &mut self,
        loaded: &LoadedObject,
        mapping: &DriverMapping,
    ) -> Result<(), TensorsUnavailable> {
        let now = Instant::now();
        match self.tried.outcome(&mapping.device_inode, now) {
            Some(Ok(identity)) => {
                if let Some(attached) = self.attached.get_mut(identity) {
                    attached.last_used = now;
                    return Ok(());
                }
            }
            Some(Err(reason)) => return Err(reason),
            None => {}
        }
        let outcome = self.attach(loaded, mapping);
        self.tried.insert(&mapping.device_inode, outcome.clone(), now);
        outcome.map(|_| ())
    }

    fn attach(
        &mut self,
        loaded: &LoadedObject,
        mapping: &DriverMapping,
    ) -> Result<FileIdentity, TensorsUnavailable> {
        let paths = mapping.paths_to_open();
        let path = paths.iter().find(|path| std::fs::File::open(path).is_ok());
        let path = path.ok_or(TensorsUnavailable::Unreadable)?;
        let image = C10Library::open(path, &mapping.path).map_err(|error| match error {
            C10Error::Unreadable => TensorsUnavailable::Unreadable,
            C10Error::NoFunction => TensorsUnavailable::NoSymbol,
        })?;
        let identity = image.identity.clone();
        if let Some(attached) = self.attached.get_mut(&identity) {
            attached.last_used = Instant::now();
            return Ok(identity);
        }
        let attachments =
            self.links(loaded, &image).map_err(|_| TensorsUnavailable::AttachFailed)?;
        self.notices.push(Notice::TorchAttached { path: image.path.clone() });
        let library = AttachedTorch { image, last_used: Instant::now(), _attachments: attachments };
        self.attached.insert(identity.clone(), library);
        Ok(identity)
    }

    fn links(
        &self,
        loaded: &LoadedObject,
        image: &C10Library,
    ) -> Result<Vec<AttachedProbes>, Error> {
        let points = image.points.iter();
        let points: Vec<_> = points
            .map(|(offset, call)| ProbePoint { offset: *offset, cookie: u64::from(*call) })
            .collect();
        let scopes: Vec<Option<Pid>> = match &self.only {
            None => vec![None],
            Some(pids) => pids.iter().copied().map(Some).collect(),
        };
        let file = image.attach_path();
        let link =
            |scope| attach(loaded, &file, &image.path, &points, loaded.config.tensors(), scope);
        scopes.into_iter().map(link).collect()
    }

    /// Returns the unreported states of processes that the ledger knows.
    pub(crate) fn drain_events(&mut self, now: Timestamp, living: &LivenessTracker) -> Vec<Event> {
        let Self { unreported, states, notices, .. } = self;
        let mut events = Vec::new();
        unreported.retain(|pid| {
            let Some((_, state)) = states.get(pid) else { return false };
            if !living.contains(*pid) {
                return true;
            }
            if let TensorTracking::Unavailable(reason) = *state {
                notices.push(Notice::TensorsUnavailable { pid: *pid, reason });
            }
            let what = EventKind::Torch(*state);
            events.push(Event {
                pid: *pid,
                tid: Tid(pid.0),
                entry_time: now,
                time: now,
                kind: what,
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
