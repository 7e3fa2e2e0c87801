//! Probes PyTorch's caching allocator: attaches once to each copy of the library that the allocator
//! reports its blocks to, and reports which processes cannot be traced and why.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use engine::event::{Event, What};
use engine::ids::{Pid, Tid};
use engine::tensor::{NoTensors, TensorWatch};
use engine::units::Moment;

use super::attach::{Attachment, Place, attach};
use super::drivers::{LINGER, Notice};
use super::object::Loaded;
use super::tried::Tried;
use super::{Options, Target};
use crate::error::Error;
use crate::libraries::{C10, C10Error, Identity, Mapping, all_processes, scan_torch};
use crate::life::{Living, start_of};
use crate::plan::Plan;

struct Attached {
    image: C10,
    last_used: Instant,
    _attachments: Vec<Attachment>,
}

/// Probes of all PyTorch libraries.
pub(crate) struct Torch {
    /// Attach only to these processes, if the kernel supports links per process.
    only: Option<Vec<Pid>>,
    /// Processes whose mappings are scanned; `None`: all.
    targets: Option<Vec<Pid>>,
    attached: HashMap<Identity, Attached>,
    /// Mapped files and the result of attaching to them.
    tried: Tried<Identity, NoTensors>,
    /// States of processes, with their start times.
    states: HashMap<Pid, (u64, TensorWatch)>,
    /// Processes whose state was not sent to the ledger yet.
    unreported: HashSet<Pid>,
    notices: Vec<Notice>,
}

impl Torch {
    pub(crate) fn new(options: &Options, plan: &Plan) -> Self {
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
    pub(crate) fn look(&mut self, loaded: &Loaded, mapped: &[Pid], all: bool) {
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
            let keep = library.last_used.elapsed() < LINGER;
            if !keep {
                notices.push(Notice::Released { path: library.image.path.clone() });
            }
            keep
        });
    }

    /// Returns the libraries that were found. `settled`: the process is not still mapping its
    /// libraries.
    fn scan_process(&mut self, loaded: &Loaded, pid: Pid, settled: bool) -> Vec<Mapping> {
        let found = scan_torch(pid);
        let Some(start) = start_of(pid).filter(|_| found.cuda) else {
            self.forget(pid);
            return found.c10;
        };
        let mut outcome = Err(NoTensors::NoLibrary);
        for mapping in &found.c10 {
            let one = self.try_mapping(loaded, mapping);
            // One probed copy is enough: the allocator does not use the others.
            outcome = if outcome.is_ok() { outcome } else { one };
        }
        let state = match outcome {
            Err(NoTensors::NoLibrary) if !settled => return found.c10,
            Ok(()) => TensorWatch::Begun,
            Err(reason) => TensorWatch::Impossible(reason),
        };
        if self.states.insert(pid, (start, state)) != Some((start, state)) {
            self.unreported.insert(pid);
        }
        found.c10
    }

    fn try_mapping(&mut self, loaded: &Loaded, mapping: &Mapping) -> Result<(), NoTensors> {
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

    fn attach(&mut self, loaded: &Loaded, mapping: &Mapping) -> Result<Identity, NoTensors> {
        let paths = mapping.openable();
        let path = paths.iter().find(|path| std::fs::File::open(path).is_ok());
        let path = path.ok_or(NoTensors::Unreadable)?;
        let image = C10::open(path, &mapping.path).map_err(|error| match error {
            C10Error::Unreadable => NoTensors::Unreadable,
            C10Error::NoFunction => NoTensors::NoFunction,
        })?;
        let identity = image.identity.clone();
        if let Some(attached) = self.attached.get_mut(&identity) {
            attached.last_used = Instant::now();
            return Ok(identity);
        }
        let attachments = self.links(loaded, &image).map_err(|_| NoTensors::Refused)?;
        self.notices.push(Notice::Tensors { path: image.path.clone() });
        let library = Attached { image, last_used: Instant::now(), _attachments: attachments };
        self.attached.insert(identity.clone(), library);
        Ok(identity)
    }

    fn links(&self, loaded: &Loaded, image: &C10) -> Result<Vec<Attachment>, Error> {
        let points = image.points.iter();
        let points: Vec<_> = points
            .map(|(offset, call)| Place { offset: *offset, cookie: u64::from(*call) })
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
    pub(crate) fn told(&mut self, now: Moment, living: &Living) -> Vec<Event> {
        let Self { unreported, states, notices, .. } = self;
        let mut events = Vec::new();
        unreported.retain(|pid| {
            let Some((_, state)) = states.get(pid) else { return false };
            if !living.knows(*pid) {
                return true;
            }
            if let TensorWatch::Impossible(reason) = *state {
                notices.push(Notice::NoTensors { pid: *pid, reason });
            }
            let what = What::Torch(*state);
            events.push(Event { pid: *pid, tid: Tid(pid.0), entered: now, at: now, what });
            false
        });
        events
    }

    /// Drops the state of a process that exited or called exec.
    pub(crate) fn forget(&mut self, pid: Pid) {
        self.states.remove(&pid);
        self.unreported.remove(&pid);
    }

    pub(crate) fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }
}
