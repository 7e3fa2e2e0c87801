//! Driver libraries of the trace: finds them, attaches to each once, and detaches unused ones.

use std::collections::{HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use engine::model::blocks::{Allocator, BlocksUnavailable};
use engine::model::ids::Pid;

use super::super::load::bpf_object::{LoadedObject, ProbeSet};
use super::super::read::unknown_calls::UnknownFunctions;
use super::super::{SessionOptions, Target, unique};
use super::context_discovery::ContextDiscovery;
use super::probes::{AttachedProbes, ProbePoint, attach};
use super::retry::AttachAttempts;
use crate::clock;
use crate::error::Error;
use crate::files::Mapping;
use crate::hooks::{HOOKS, HookGroup};
use crate::libraries::{
    DriverLibrary, DriverLibraryError, FileIdentity, MmapBatch, MmapWatcher, UnknownFunction,
    installed, scan_all, scan_process,
};
use crate::plan::AttachPlan;
use crate::session::liveness::start_of;
use crate::session::processes::{Process, ProcessTable};

/// A message for the user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// Probes were attached to a library.
    Attached {
        /// The library.
        path: PathBuf,
        /// Number of probed functions.
        functions: usize,
        /// Number of those that the kernel has to single-step.
        stepped: usize,
    },
    /// A driver is newer than the hook table: calls of these functions are counted, and what they
    /// allocate is not.
    UnknownFunctions {
        /// The library.
        path: PathBuf,
        /// Exported memory functions that are neither hooked nor known to need no hook.
        functions: Vec<Box<str>>,
    },
    /// A process loaded the in-process library.
    Wrapped {
        /// The process.
        pid: Pid,
        /// Number of functions whose calls are recorded.
        functions: usize,
        /// Functions that could not be wrapped.
        missing: Vec<Box<str>>,
    },
    /// Probes of another tool hide calls from the in-process library.
    HiddenCalls {
        /// The process.
        pid: Pid,
        /// The functions.
        functions: Vec<Box<str>>,
    },
    /// A library could not be probed.
    NotAttached {
        /// The path and the reason.
        reason: String,
    },
    /// No process has a driver mapped and none is installed: waiting for one.
    NoDriver,
    /// New copies of the driver are found only by a scan every few seconds.
    NoMmapEvents {
        /// The error.
        reason: String,
    },
    /// Python stacks of a process cannot be read.
    PythonUnsupported {
        /// The process.
        pid: Pid,
        /// The reason and the remedy.
        reason: String,
    },
    /// Symbolization failed with a panic.
    NoNames {
        /// The panic message.
        reason: String,
    },
    /// Driver-reported usage can no longer be read.
    UsageUnavailable {
        /// The error.
        reason: String,
    },
    /// An allocator inside a process is traced.
    AllocatorAttached {
        /// The allocator.
        allocator: Allocator,
        /// The probed library.
        path: PathBuf,
    },
    /// Blocks of an allocator of a process cannot be traced.
    BlocksUnavailable {
        /// The process.
        pid: Pid,
        /// The allocator.
        allocator: Allocator,
        /// The reason.
        reason: BlocksUnavailable,
    },
    /// An unused library was detached.
    Detached {
        /// The library.
        path: PathBuf,
    },
}

impl Notice {
    /// Returns whether the notice is a warning.
    #[must_use]
    pub const fn is_warning(&self) -> bool {
        match self {
            Self::Attached { .. } | Self::AllocatorAttached { .. } | Self::Detached { .. } => false,
            Self::Wrapped { missing, .. } => !missing.is_empty(),
            _ => true,
        }
    }
}

/// How long an unused copy stays attached, so that files of removed containers do not stay open.
pub(in crate::session) const DETACH_DELAY: Duration = Duration::from_secs(30);

/// Maximum number of failures kept, so that each is reported once.
const MAX_REPORTED_FAILURES: usize = 1024;

struct AttachedDriver {
    file: DriverLibrary,
    installed: bool,
    last_used: Instant,
    _attachments: Vec<AttachedProbes>,
}

/// Probes of all driver libraries.
pub(crate) struct DriverAttachments {
    /// Libraries given by `--driver`.
    named: Vec<PathBuf>,
    /// Attach only to these processes, if the kernel supports links per process.
    only: Option<Vec<Pid>>,
    /// Processes whose mappings are scanned; `None`: all.
    targets: Option<Vec<Pid>>,
    attached: HashMap<FileIdentity, AttachedDriver>,
    /// Mapped files and the result of attaching to them.
    attempts: AttachAttempts<FileIdentity, ()>,
    /// Failures that were already reported.
    reported: HashSet<String>,
    context_discovery: ContextDiscovery,
    watch: Option<MmapWatcher>,
    /// Mappings since the last scan.
    pending: MmapBatch,
    /// Processes that mapped a driver since the last drain.
    new_processes: Vec<Pid>,
    /// Executable mappings since the last drain.
    mapped: Vec<Mapping>,
    /// Processes that mapped a library with an allocator since the last drain; true if some may be
    /// missing.
    allocators: (Vec<Pid>, bool),
    /// Unknown memory functions of all drivers, with the numbers in their probes.
    unknown_functions: UnknownFunctions,
    notices: Vec<Notice>,
}

impl DriverAttachments {
    pub(crate) fn new(options: &SessionOptions, plan: &AttachPlan) -> Self {
        let mut notices = Vec::new();
        let watch = MmapWatcher::new()
            .map_err(|error| notices.push(Notice::NoMmapEvents { reason: error.to_string() }))
            .ok();
        let (only, targets) = match &options.target {
            Target::All => (None, None),
            Target::Processes { follow: true, .. } => (None, None),
            Target::Processes { pids, follow: false } => {
                (plan.link_per_process.then(|| pids.clone()), Some(pids.clone()))
            }
        };
        Self {
            named: options.drivers.clone(),
            only,
            targets,
            attached: HashMap::new(),
            attempts: AttachAttempts::new(),
            reported: HashSet::new(),
            context_discovery: ContextDiscovery::new(plan.link_per_process),
            watch,
            pending: MmapBatch::default(),
            new_processes: Vec::new(),
            mapped: Vec::new(),
            allocators: (Vec::new(), false),
            unknown_functions: UnknownFunctions::default(),
            notices,
        }
    }

    /// Attaches to all drivers at the start. Only failures of drivers given by option are errors.
    pub(crate) fn attach_all(
        &mut self,
        loaded: &LoadedObject,
        processes: &mut ProcessTable,
    ) -> Result<(), Error> {
        for path in self.named.clone() {
            let library = DriverLibrary::open(&path)?;
            self.attach(loaded, library, true)?;
        }
        for path in installed() {
            self.try_library(loaded, DriverLibrary::open(&path), true)?;
        }
        self.scan_processes(loaded)?;
        // Scanned after attaching: a process that has the driver now may have called it before.
        for pid in unique(self.mappings().into_iter().map(|mapping| mapping.pid)) {
            self.had_driver(pid, processes);
        }
        self.context_discovery.update(loaded, self.attached.values().map(|driver| &driver.file));
        if self.attached.is_empty() {
            self.notices.push(Notice::NoDriver);
        }
        Ok(())
    }

    /// Reads new mappings. Returns whether one is that of a driver or an allocator.
    pub(crate) fn check_mmaps(&mut self) -> bool {
        let pending = &mut self.pending;
        self.watch.iter().for_each(|watch| watch.poll(pending));
        pending.overflowed || !pending.pids.is_empty() || !pending.allocators.is_empty()
    }

    /// Scans for new copies of the driver. Returns whether one was attached.
    pub(crate) fn scan(
        &mut self,
        loaded: &LoadedObject,
        rescan: bool,
        processes: &mut ProcessTable,
    ) -> Result<bool, Error> {
        let mut known: HashSet<FileIdentity> = self.attached.keys().cloned().collect();
        let before = known.len();
        self.check_mmaps();
        let mut batch = std::mem::take(&mut self.pending);
        self.new_processes.extend_from_slice(&batch.pids);
        self.mapped.append(&mut batch.mapped);
        self.allocators.0.append(&mut batch.allocators);
        self.allocators.1 |= batch.overflowed;
        if rescan || batch.overflowed {
            self.scan_processes(loaded)?;
            self.detach_unused();
        } else {
            let is_target = |pid: &Pid| self.targets.as_ref().is_none_or(|all| all.contains(pid));
            let pids = unique(batch.pids.into_iter().filter(is_target));
            for mapping in pids.into_iter().flat_map(scan_process) {
                self.try_mapping(loaded, &mapping)?;
            }
        }
        // A scan can find and attach more copies, so it is repeated until it finds none.
        loop {
            let new = self.attached.keys().filter(|identity| !known.contains(identity)).cloned();
            let new: HashSet<FileIdentity> = new.collect();
            if new.is_empty() {
                break;
            }
            // These processes could call the driver before it was probed.
            for mapping in self.scan_processes(loaded)? {
                let file = self.attempts.outcome(&mapping.file_id(), Instant::now());
                if file.is_some_and(|file| file.is_ok_and(|identity| new.contains(identity))) {
                    self.had_driver(mapping.pid, processes);
                }
            }
            known.extend(new);
        }
        self.context_discovery.update(loaded, self.attached.values().map(|driver| &driver.file));
        Ok(known.len() > before)
    }

    /// Requests the context of a thread that allocated in an unknown context.
    pub(crate) fn request_context_discovery(&mut self, pid: Pid, process: &mut Process) {
        if process.scanned.had_driver.is_some() {
            self.context_discovery.request(pid, process);
        }
    }

    /// Records that a running process could call the driver before it was probed.
    fn had_driver(&mut self, pid: Pid, processes: &mut ProcessTable) {
        // A process that has exited makes no more calls.
        let Some(process) = processes.running(pid) else { return };
        process.scanned.had_driver = Some(clock::monotonic());
        self.context_discovery.request(pid, process);
    }

    /// Returns processes that mapped a driver since the last call; they are announced only with
    /// their first call, much later.
    pub(crate) fn drain_new_processes(&mut self) -> Vec<Pid> {
        std::mem::take(&mut self.new_processes)
    }

    /// Returns executable mappings of files since the last call.
    pub(crate) fn drain_mmaps(&mut self) -> Vec<Mapping> {
        std::mem::take(&mut self.mapped)
    }

    /// Returns processes that mapped a library with an allocator since the last call, and whether some may be
    /// missing.
    pub(crate) fn drain_allocator_mmaps(&mut self) -> (Vec<Pid>, bool) {
        std::mem::take(&mut self.allocators)
    }

    pub(crate) fn drain_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Returns the unknown memory functions of all drivers.
    pub(crate) const fn unknown_functions(&self) -> &UnknownFunctions {
        &self.unknown_functions
    }

    /// Returns the probe points of the unknown functions of a library, and numbers those that are new.
    fn unknown_points(&mut self, library: &DriverLibrary) -> Vec<ProbePoint> {
        let known = &mut self.unknown_functions;
        let point = |function: &UnknownFunction| {
            let cookie = known.number(&function.name)?.into();
            Some(ProbePoint { offset: function.offset, cookie })
        };
        library.unknown.iter().filter_map(point).collect()
    }

    /// Returns the descriptors that are ready after new mappings.
    pub(crate) fn mmap_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.watch.iter().flat_map(MmapWatcher::fds)
    }

    fn mappings(&self) -> Vec<Mapping> {
        match &self.targets {
            None => scan_all(),
            Some(pids) => pids.iter().copied().flat_map(scan_process).collect(),
        }
    }

    fn scan_processes(&mut self, loaded: &LoadedObject) -> Result<Vec<Mapping>, Error> {
        let mappings = self.mappings();
        for mapping in &mappings {
            self.try_mapping(loaded, mapping)?;
        }
        self.attempts.keep(&mappings.iter().map(Mapping::file_id).collect());
        Ok(mappings)
    }

    fn try_mapping(&mut self, loaded: &LoadedObject, mapping: &Mapping) -> Result<(), Error> {
        let now = Instant::now();
        match self.attempts.outcome(&mapping.file_id(), now) {
            Some(Ok(identity)) => {
                if let Some(attached) = self.attached.get_mut(identity) {
                    attached.last_used = now;
                    return Ok(());
                }
            }
            Some(Err(())) => return Ok(()),
            None => {}
        }
        let file = mapping.open();
        let is_open = file.is_ok();
        // A process that has exited makes no more calls.
        if !is_open && start_of(mapping.pid).is_none() {
            return Ok(());
        }
        let library = DriverLibrary::of(file, &mapping.path);
        let outcome = self.try_library(loaded, library, false)?;
        // Another process may have a path to the file.
        if is_open {
            self.attempts.insert(&mapping.file_id(), outcome.ok_or(()), now);
        }
        Ok(())
    }

    /// Attaches to a library that was found. A failure is reported, not fatal.
    fn try_library(
        &mut self,
        loaded: &LoadedObject,
        library: Result<DriverLibrary, DriverLibraryError>,
        installed: bool,
    ) -> Result<Option<FileIdentity>, Error> {
        let library = match library {
            Ok(library) => library,
            Err(error) => {
                self.report_failure(&error);
                return Ok(None);
            }
        };
        let identity = library.identity.clone();
        match self.attach(loaded, library, installed) {
            Ok(()) => Ok(Some(identity)),
            Err(error @ Error::ProcessGone(_)) => Err(error),
            Err(error) => {
                self.report_failure(&error);
                Ok(None)
            }
        }
    }

    /// Reports why a file cannot be probed, once.
    fn report_failure(&mut self, error: &dyn std::error::Error) {
        if self.reported.len() >= MAX_REPORTED_FAILURES {
            self.reported.clear();
        }
        let reason = error.to_string();
        if self.reported.insert(reason.clone()) {
            self.notices.push(Notice::NotAttached { reason });
        }
    }

    fn attach(
        &mut self,
        loaded: &LoadedObject,
        library: DriverLibrary,
        installed: bool,
    ) -> Result<(), Error> {
        if let Some(attached) = self.attached.get_mut(&library.identity) {
            attached.last_used = Instant::now();
            return Ok(());
        }
        let counts_activity = loaded.config.activity.is_some();
        let mut groups = vec![HookGroup::Memory];
        groups.extend(counts_activity.then_some(HookGroup::Activity));
        groups.extend(loaded.config.objects.then_some(HookGroup::Objects));
        let calls = probe_points(&library, &groups);
        let launches = if counts_activity {
            probe_points(&library, &[HookGroup::Launches])
        } else {
            Vec::new()
        };
        let unknown = self.unknown_points(&library);
        let scopes: Vec<Option<Pid>> = match &self.only {
            None => vec![None],
            Some(pids) => pids.iter().copied().map(Some).collect(),
        };
        let file = library.attach_path();
        let mut attachments = Vec::new();
        for scope in scopes {
            let launch_probes = ProbeSet::launches(loaded.config.activity.unwrap_or_default());
            for (points, probe_set) in [
                (&calls, loaded.config.calls()),
                (&launches, launch_probes),
                (&unknown, ProbeSet::Unknown),
            ] {
                let outcome = attach(loaded, &file, &library.path, points, probe_set, scope);
                attachments.push(outcome.map_err(|error| gone(error, scope))?);
            }
        }
        self.notices.push(Notice::Attached {
            path: library.path.clone(),
            functions: calls.len() + launches.len(),
            stepped: library.functions.iter().filter(|f| !f.point.emulated).count(),
        });
        if !library.unknown.is_empty() {
            self.notices.push(Notice::UnknownFunctions {
                path: library.path.clone(),
                functions: library.unknown.iter().map(|one| one.name.clone()).collect(),
            });
        }
        self.attached.insert(
            library.identity.clone(),
            AttachedDriver {
                file: library,
                installed,
                last_used: Instant::now(),
                _attachments: attachments,
            },
        );
        Ok(())
    }

    fn detach_unused(&mut self) {
        let notices = &mut self.notices;
        self.attached.retain(|_, driver| {
            let keep = driver.installed || driver.last_used.elapsed() < DETACH_DELAY;
            if !keep {
                notices.push(Notice::Detached { path: driver.file.path.clone() });
            }
            keep
        });
    }
}

/// Returns the probe points of a library for some groups of functions.
pub(in crate::session) fn probe_points(
    library: &DriverLibrary,
    groups: &[HookGroup],
) -> Vec<ProbePoint> {
    let functions = library.functions.iter();
    functions
        .filter(|function| groups.contains(&HOOKS[function.hook].semantics.meaning().group))
        .map(|f| ProbePoint { offset: f.entry + f.point.offset, cookie: f.hook as u64 })
        .collect()
}

/// Turns the kernel's error for a process that has exited into [`Error::ProcessGone`].
fn gone(error: Error, scope: Option<Pid>) -> Error {
    match (&error, scope) {
        (Error::Attach { cause, .. }, Some(pid))
            if cause.is_not_found() || !Path::new(&format!("/proc/{pid}")).exists() =>
        {
            Error::ProcessGone(pid)
        }
        _ => error,
    }
}
