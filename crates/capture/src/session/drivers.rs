//! The driver libraries of this trace: found, attached once each, and let go when nobody uses them.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use engine::ids::Pid;
use engine::tensor::NoTensors;

use super::attach::{Attachment, Place, attach};
use super::learning::Learning;
use super::object::{Loaded, Serves};
use super::tried::Tried;
use super::{Options, Target, unique};
use crate::error::Error;
use crate::hooks::{Group, HOOKS};
use crate::libraries::{
    Identity, Image, MappedCode, Mapping, Watch, installed, is_driver_name, scan_all, scan_process,
};
use crate::life::{is_alive, is_same_start, start_of};
use crate::plan::Plan;

/// Something the user should know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// Probes are on a library.
    Attached {
        /// The library.
        path: PathBuf,
        /// How many functions.
        functions: usize,
        /// How many of them have to be single-stepped.
        stepped: usize,
    },
    /// A library could not be probed.
    NotAttached {
        /// Why, with its path.
        reason: String,
    },
    /// Nobody has a driver, none is installed: waiting for one.
    NoDriver,
    /// New copies are found only by looking every few seconds.
    SlowWatch {
        /// Why.
        reason: String,
    },
    /// Python stacks of a process are not told.
    NoPython {
        /// The process.
        pid: Pid,
        /// Why, and what to do.
        reason: String,
    },
    /// Names of code could not be found: something panicked.
    NoNames {
        /// What.
        reason: String,
    },
    /// What the driver reports of processes and GPUs cannot be read any more.
    NoAccount {
        /// Why.
        reason: String,
    },
    /// The cache of PyTorch is watched.
    Tensors {
        /// The library that it tells of its blocks.
        path: PathBuf,
    },
    /// Tensors of a process are not told.
    NoTensors {
        /// The process.
        pid: Pid,
        /// Why.
        reason: NoTensors,
    },
    /// A library that nobody uses any more was let go.
    Released {
        /// The library.
        path: PathBuf,
    },
}

impl Notice {
    /// Whether something does not work as it should.
    #[must_use]
    pub const fn is_trouble(&self) -> bool {
        !matches!(self, Self::Attached { .. } | Self::Tensors { .. } | Self::Released { .. })
    }
}

/// How long an unused copy stays attached: an inode of a container that is gone should not be held.
pub(super) const LINGER: Duration = Duration::from_secs(30);

/// Failures that are remembered, so that each is reported once.
const REPORTED: usize = 1024;

struct Attached {
    image: Image,
    installed: bool,
    last_used: Instant,
    _attachments: Vec<Attachment>,
}

pub(crate) struct Drivers {
    named: Vec<PathBuf>,
    /// Limits links to these processes, where the kernel can.
    only: Option<Vec<Pid>>,
    /// Whose mappings matter; `None`: everybody's.
    of: Option<Vec<Pid>>,
    attached: HashMap<Identity, Attached>,
    /// Files that processes have mapped, and what became of them.
    tried: Tried<Identity, ()>,
    /// Why files could not be probed, as far as that was reported.
    reported: HashSet<String>,
    /// Processes that had the driver before their calls could be seen, with their start times.
    before: HashMap<Pid, u64>,
    learning: Learning,
    watch: Option<Watch>,
    /// Who mapped a driver since somebody asked.
    newcomers: Vec<Pid>,
    /// Who mapped code since somebody asked.
    mapped: Vec<MappedCode>,
    /// Who mapped a part of PyTorch since somebody asked; and whether that may not be all.
    torch: (Vec<Pid>, bool),
    notices: Vec<Notice>,
}

impl Drivers {
    pub(crate) fn new(options: &Options, plan: &Plan) -> Self {
        let mut notices = Vec::new();
        let watch = Watch::new()
            .map_err(|error| notices.push(Notice::SlowWatch { reason: error.to_string() }))
            .ok();
        let (only, of) = match &options.target {
            Target::Everybody => (None, None),
            Target::Processes { follow: true, .. } => (None, None),
            Target::Processes { pids, follow: false } => {
                (plan.link_per_process.then(|| pids.clone()), Some(pids.clone()))
            }
        };
        Self {
            named: options.drivers.clone(),
            only,
            of,
            attached: HashMap::new(),
            tried: Tried::new(),
            reported: HashSet::new(),
            before: HashMap::new(),
            learning: Learning::new(plan.link_per_process),
            watch,
            newcomers: Vec::new(),
            mapped: Vec::new(),
            torch: (Vec::new(), false),
            notices,
        }
    }

    /// The first round: drivers named by hand must work, those that are found should.
    pub(crate) fn attach_all(&mut self, loaded: &Loaded) -> Result<(), Error> {
        for path in self.named.clone() {
            let image = Image::open(&path, &path)?;
            self.attach(loaded, image, true)?;
        }
        for path in installed() {
            self.try_path(loaded, &path, &path, true)?;
        }
        self.scan(loaded)?;
        // Scanned after attaching: whoever has the driver now may have called it before.
        for pid in unique(self.mappings().into_iter().map(|mapping| mapping.pid)) {
            self.had_driver(pid);
        }
        self.learning.look(loaded, self.attached.values().map(|library| &library.image));
        if self.attached.is_empty() {
            self.notices.push(Notice::NoDriver);
        }
        Ok(())
    }

    /// Looks for copies that came up since the last time. True when one was attached.
    pub(crate) fn look(&mut self, loaded: &Loaded, rescan: bool) -> Result<bool, Error> {
        let before: HashSet<Identity> = self.attached.keys().cloned().collect();
        let mut seen = self.watch.as_ref().map(Watch::look).unwrap_or_default();
        self.newcomers.extend_from_slice(&seen.pids);
        self.mapped.append(&mut seen.mapped);
        self.torch.0.append(&mut seen.torch);
        self.torch.1 |= seen.overflowed;
        if rescan || seen.overflowed {
            self.scan(loaded)?;
            self.let_go();
            self.before.retain(|pid, start| is_alive(*pid, *start));
        } else {
            let concerned = |pid: &Pid| self.of.as_ref().is_none_or(|of| of.contains(pid));
            let pids = unique(seen.pids.into_iter().filter(concerned));
            for mapping in pids.into_iter().flat_map(scan_process) {
                self.try_mapping(loaded, &mapping)?;
            }
        }
        let new = self.attached.keys().filter(|identity| !before.contains(identity)).cloned();
        let new: HashSet<Identity> = new.collect();
        if !new.is_empty() {
            // They could call the driver before the probes were there.
            for mapping in self.scan(loaded)? {
                let file = self.tried.outcome(&mapping.device_inode, Instant::now());
                if file.is_some_and(|file| file.is_ok_and(|identity| new.contains(identity))) {
                    self.had_driver(mapping.pid);
                }
            }
        }
        self.learning.look(loaded, self.attached.values().map(|library| &library.image));
        Ok(!new.is_empty())
    }

    /// A thread of a process allocated, and its context is not known.
    pub(crate) fn want_context(&mut self, pid: Pid) {
        if self.before.contains_key(&pid) {
            self.learning.want(pid);
        }
    }

    /// Notes that a running process could call the driver before the probes were there.
    fn had_driver(&mut self, pid: Pid) {
        // One that has ended makes no calls.
        let Some(start) = start_of(pid) else { return };
        self.before.insert(pid, start);
        self.learning.want(pid);
    }

    /// Whether the process of that pid and start time had the driver before its calls could be seen.
    pub(crate) fn was_there_before(&self, pid: Pid, start: u64) -> bool {
        self.before.get(&pid).is_some_and(|known| is_same_start(*known, start))
    }

    /// Processes that had the driver before their calls could be seen.
    pub(crate) fn users(&self) -> impl Iterator<Item = Pid> {
        self.before.keys().copied()
    }

    /// A process ended or changed its program.
    pub(crate) fn forget(&mut self, pid: Pid, start: u64) {
        if self.was_there_before(pid, start) {
            self.before.remove(&pid);
        }
    }

    /// Processes that mapped a driver since the last call: long before they are announced, with
    /// their first call.
    pub(crate) fn take_newcomers(&mut self) -> Vec<Pid> {
        std::mem::take(&mut self.newcomers)
    }

    /// Code of files that processes mapped since the last call.
    pub(crate) fn take_mapped(&mut self) -> Vec<MappedCode> {
        std::mem::take(&mut self.mapped)
    }

    /// Processes that mapped a part of PyTorch since the last call; and whether there may be more.
    pub(crate) fn take_torch(&mut self) -> (Vec<Pid>, bool) {
        std::mem::take(&mut self.torch)
    }

    pub(crate) fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    fn mappings(&self) -> Vec<Mapping> {
        match &self.of {
            None => scan_all(),
            Some(pids) => pids.iter().copied().flat_map(scan_process).collect(),
        }
    }

    fn scan(&mut self, loaded: &Loaded) -> Result<Vec<Mapping>, Error> {
        let mappings = self.mappings();
        for mapping in &mappings {
            self.try_mapping(loaded, mapping)?;
        }
        self.tried.keep(&mappings.iter().map(|mapping| mapping.device_inode.clone()).collect());
        Ok(mappings)
    }

    fn try_mapping(&mut self, loaded: &Loaded, mapping: &Mapping) -> Result<(), Error> {
        let now = Instant::now();
        match self.tried.outcome(&mapping.device_inode, now) {
            Some(Ok(identity)) => {
                if let Some(attached) = self.attached.get_mut(identity) {
                    attached.last_used = now;
                    return Ok(());
                }
            }
            Some(Err(())) => return Ok(()),
            None => {}
        }
        let path = mapping.openable().into_iter().find(|path| std::fs::File::open(path).is_ok());
        let Some(path) = path else { return Ok(()) };
        let outcome = self.try_path(loaded, &path, &mapping.path, false)?;
        self.tried.insert(&mapping.device_inode, outcome.ok_or(()), now);
        Ok(())
    }

    /// Attaches to a file that was found. What is wrong with it is told, not fatal.
    fn try_path(
        &mut self,
        loaded: &Loaded,
        path: &Path,
        name: &Path,
        installed: bool,
    ) -> Result<Option<Identity>, Error> {
        debug_assert!(is_driver_name(name));
        let image = match Image::open(path, name) {
            Ok(image) => image,
            Err(error) => {
                self.report_failure(&error);
                return Ok(None);
            }
        };
        let identity = image.identity.clone();
        match self.attach(loaded, image, installed) {
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
        if self.reported.len() >= REPORTED {
            self.reported.clear();
        }
        let reason = error.to_string();
        if self.reported.insert(reason.clone()) {
            self.notices.push(Notice::NotAttached { reason });
        }
    }

    fn attach(&mut self, loaded: &Loaded, image: Image, installed: bool) -> Result<(), Error> {
        if let Some(attached) = self.attached.get_mut(&image.identity) {
            attached.last_used = Instant::now();
            return Ok(());
        }
        let works = loaded.knobs.work.is_some();
        let mut groups = vec![Group::Memory];
        groups.extend(works.then_some(Group::Work));
        groups.extend(loaded.knobs.objects.then_some(Group::Objects));
        let calls = places(&image, &groups);
        let launches = if works { places(&image, &[Group::Launches]) } else { Vec::new() };
        let scopes: Vec<Option<Pid>> = match &self.only {
            None => vec![None],
            Some(pids) => pids.iter().copied().map(Some).collect(),
        };
        let file = image.attach_path();
        let mut attachments = Vec::new();
        for scope in scopes {
            let launched = Serves::launches(loaded.knobs.work.unwrap_or_default());
            for (places, serves) in [(&calls, loaded.knobs.calls()), (&launches, launched)] {
                let outcome = attach(loaded, &file, &image.path, places, serves, scope);
                attachments.push(outcome.map_err(|error| gone(error, scope))?);
            }
        }
        self.notices.push(Notice::Attached {
            path: image.path.clone(),
            functions: calls.len() + launches.len(),
            stepped: image.functions.iter().filter(|f| !f.point.emulated).count(),
        });
        self.attached.insert(
            image.identity.clone(),
            Attached { image, installed, last_used: Instant::now(), _attachments: attachments },
        );
        Ok(())
    }

    fn let_go(&mut self) {
        let notices = &mut self.notices;
        self.attached.retain(|_, library| {
            let keep = library.installed || library.last_used.elapsed() < LINGER;
            if !keep {
                notices.push(Notice::Released { path: library.image.path.clone() });
            }
            keep
        });
    }
}

/// Where to probe a library for some groups of functions.
pub(super) fn places(image: &Image, groups: &[Group]) -> Vec<Place> {
    let functions = image.functions.iter();
    functions
        .filter(|function| groups.contains(&HOOKS[function.hook].meaning.group()))
        .map(|f| Place { offset: f.entry + f.point.offset, cookie: f.hook as u64 })
        .collect()
}

/// The kernel's word for a process that is no more.
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
