//! Probes the allocators inside processes: attaches once to each copy of the library with the
//! functions that hand out blocks, and reports which processes cannot be traced and why. PyTorch
//! passes its totals with each block and can have thousands of blocks per training step; they are
//! probed only while the memory of a process grows, unless they are requested. Its out-of-memory
//! errors are rare and always probed, as are all blocks of other allocators, which do not pass totals.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use engine::model::blocks::{Allocator, BlockTracking, BlocksUnavailable};
use engine::model::event::{Event, EventKind};
use engine::model::ids::{Pid, Tid};
use engine::model::units::Timestamp;

use super::super::load::bpf_object::LoadedObject;
use super::super::{AllocatorMode, SessionOptions, Target};
use super::drivers::{DETACH_DELAY, Notice};
use super::growth::Growth;
use super::probes::{AttachedProbes, ProbePoint, attach};
use super::retry::AttachAttempts;
use crate::clock;
use crate::error::Error;
use crate::files::Mapping;
use crate::libraries::{
    AllocatorLibrary, AllocatorLibraryError, FileIdentity, all_processes, scan_allocators,
};
use crate::plan::AttachPlan;
use crate::session::processes::{Process, ProcessTable};
use crate::wire;

struct AttachedLibrary {
    file: AllocatorLibrary,
    last_used: Instant,
    attached_at: Timestamp,
    _attachments: Vec<AttachedProbes>,
    /// Probes of blocks while memory of any process grows, if the kernel has no links per process.
    growing: Option<BlockProbes>,
}

/// Probes of blocks, and since when they are attached.
type BlockProbes = (Timestamp, AttachedProbes);

/// The allocators of a process.
pub(crate) struct AllocatorState {
    /// When it was last scanned.
    pub(crate) found: Timestamp,
    tracking: BTreeMap<Allocator, Tracking>,
    growth: Growth,
    /// Probes of PyTorch's blocks while its memory grows.
    growing: HashMap<FileIdentity, BlockProbes>,
}

/// Whether the blocks of an allocator are tracked, and since when.
struct Tracking {
    state: (BlockTracking, Timestamp),
    /// That was sent to the ledger.
    is_reported: bool,
}

/// Probes of all libraries with allocators.
pub(crate) struct AllocatorAttachments {
    /// Attach only to these processes, if the kernel supports links per process.
    only: Option<Vec<Pid>>,
    /// Processes whose mappings are scanned; `None`: all.
    targets: Option<Vec<Pid>>,
    attached: HashMap<FileIdentity, AttachedLibrary>,
    /// Mapped files and the result of attaching to them.
    attempts: AttachAttempts<FileIdentity, BlocksUnavailable>,
    notices: Vec<Notice>,
    /// Blocks of PyTorch are probed only while memory grows.
    while_growing: bool,
    /// Processes that began to grow since the last scan.
    began: Vec<Pid>,
    link_per_process: bool,
}

impl AllocatorAttachments {
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
            while_growing: options.allocators == AllocatorMode::WhileGrowing,
            began: Vec::new(),
            link_per_process: plan.link_per_process,
        }
    }

    /// Observes a call of a process.
    pub(crate) fn observe(&mut self, event: &Event, process: &mut Process) {
        if self.while_growing
            && let Some(state) = &mut process.scanned.allocators
            && state.growth.observe(event)
        {
            self.began.push(event.pid);
        }
    }

    /// Scans the processes that mapped a library with an allocator, or all processes.
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
        self.attached.retain(|_, library| {
            let keep = library.last_used.elapsed() < DETACH_DELAY;
            if !keep {
                notices.push(Notice::Detached { path: library.file.path.clone() });
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
        let found = scan_allocators(pid);
        let mapped: Vec<_> = found.probed.iter().map(|(_, mapping)| mapping.clone()).collect();
        let any_grows = !self.link_per_process && is_any_growing(processes);
        let used = found.allocators();
        let Some(process) = (!used.is_empty()).then(|| processes.running(pid)).flatten() else {
            let known = processes.all_of(pid).iter_mut();
            known.for_each(|process| process.scanned.allocators = None);
            return mapped;
        };
        let state = process.scanned.allocators.get_or_insert_with(|| AllocatorState {
            found: Timestamp(0),
            tracking: BTreeMap::new(),
            growth: Growth::default(),
            growing: HashMap::new(),
        });
        state.found = clock::monotonic();
        state.tracking.retain(|allocator, _| used.contains(allocator));
        let is_growing = any_grows || self.link_per_process && state.growth.is_growing(state.found);
        for allocator in used {
            let mut outcome = Err(BlocksUnavailable::NoLibrary);
            let own = found.probed.iter().filter(|(other, _)| *other == allocator);
            for (_, mapping) in own {
                let attached = self.try_mapping(loaded, allocator, mapping);
                let attached = attached.and_then(|identity| {
                    self.probe_blocks(loaded, (allocator, &identity), pid, state, is_growing)
                });
                // One probed copy is enough: the allocator does not use the others.
                outcome = if outcome.is_ok() { outcome } else { attached };
            }
            let now = match outcome {
                Err(BlocksUnavailable::NoLibrary) if !settled => continue,
                Ok(since) => (BlockTracking::Active, since),
                Err(reason) => (BlockTracking::Unavailable(reason), Timestamp(0)),
            };
            if state.tracking.get(&allocator).is_none_or(|known| known.state != now) {
                state.tracking.insert(allocator, Tracking { state: now, is_reported: false });
            }
        }
        mapped
    }

    fn try_mapping(
        &mut self,
        loaded: &LoadedObject,
        allocator: Allocator,
        mapping: &Mapping,
    ) -> Result<FileIdentity, BlocksUnavailable> {
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
        let outcome = self.attach(loaded, allocator, mapping);
        self.attempts.insert(&mapping.file_id(), outcome.clone(), now);
        outcome
    }

    /// Attaches to PyTorch's function for blocks while the memory of a process grows, and detaches from
    /// it later. Returns since when the blocks of the process are seen.
    fn probe_blocks(
        &mut self,
        loaded: &LoadedObject,
        (allocator, identity): (Allocator, &FileIdentity),
        pid: Pid,
        process: &mut AllocatorState,
        is_growing: bool,
    ) -> Result<Timestamp, BlocksUnavailable> {
        let Some(torch) = self.attached.get_mut(identity) else {
            return Err(BlocksUnavailable::AttachFailed);
        };
        if !self.while_growing || allocator != Allocator::PyTorch {
            return Ok(torch.attached_at);
        }
        let scope = self.link_per_process.then_some(pid);
        let attached = match scope {
            Some(_) => process.growing.remove(identity),
            None => torch.growing.take(),
        };
        if !is_growing {
            return Err(BlocksUnavailable::NotGrowing);
        }
        let probes = match attached {
            Some(attached) => attached,
            None => {
                let points = points(&torch.file, |call| call == wire::VS_BLOCK_TORCH);
                let (file, path) = (torch.file.attach_path(), &torch.file.path);
                let probes =
                    attach(loaded, &file, path, &points, loaded.config.block_probes(), scope);
                (clock::monotonic(), probes.map_err(|_| BlocksUnavailable::AttachFailed)?)
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
        allocator: Allocator,
        mapping: &Mapping,
    ) -> Result<FileIdentity, BlocksUnavailable> {
        let file = mapping.open().map_err(AllocatorLibraryError::from);
        let library = file.and_then(|file| AllocatorLibrary::of(allocator, file, &mapping.path));
        let library = library.map_err(|error| match error {
            AllocatorLibraryError::Unreadable => BlocksUnavailable::Unreadable,
            AllocatorLibraryError::NoFunction => BlocksUnavailable::NoSymbol,
        })?;
        let identity = library.identity.clone();
        if let Some(attached) = self.attached.get_mut(&identity) {
            attached.last_used = Instant::now();
            return Ok(identity);
        }
        let attachments =
            self.links(loaded, &library).map_err(|_| BlocksUnavailable::AttachFailed)?;
        self.notices.push(Notice::AllocatorAttached { allocator, path: library.path.clone() });
        let attached = AttachedLibrary {
            file: library,
            last_used: Instant::now(),
            attached_at: clock::monotonic(),
            _attachments: attachments,
            growing: None,
        };
        self.attached.insert(identity.clone(), attached);
        Ok(identity)
    }

    fn links(
        &self,
        loaded: &LoadedObject,
        library: &AllocatorLibrary,
    ) -> Result<Vec<AttachedProbes>, Error> {
        let always = |call| !self.while_growing || call != wire::VS_BLOCK_TORCH;
        let points = points(library, always);
        let scopes: Vec<Option<Pid>> = match &self.only {
            None => vec![None],
            Some(pids) => pids.iter().copied().map(Some).collect(),
        };
        let file = library.attach_path();
        let link = |scope| {
            attach(loaded, &file, &library.path, &points, loaded.config.block_probes(), scope)
        };
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
            let Some(state) = &mut process.scanned.allocators else { continue };
            for (allocator, own) in state.tracking.iter_mut().filter(|(_, own)| !own.is_reported) {
                own.is_reported = true;
                let (tracking, since) = own.state;
                if let BlockTracking::Unavailable(reason) = tracking
                    && reason != BlocksUnavailable::NotGrowing
                {
                    let allocator = *allocator;
                    self.notices.push(Notice::BlocksUnavailable { pid, allocator, reason });
                }
                let (entry_time, kind) =
                    (since.min(now), EventKind::Allocator(*allocator, tracking));
                events.push(Event { pid, tid: Tid(pid.0), entry_time, time: now, kind });
            }
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
    let mut all =
        processes.all_mut().filter_map(|(_, process)| process.scanned.allocators.as_ref());
    all.any(|state| state.growth.is_growing(now))
}

/// Returns the probe points of the functions that are wanted.
fn points(library: &AllocatorLibrary, wanted: impl Fn(u32) -> bool) -> Vec<ProbePoint> {
    let all = library.points.iter().filter(|(_, call)| wanted(*call));
    all.map(|(offset, call)| ProbePoint { offset: *offset, cookie: u64::from(*call) }).collect()
}
