//! Resolves the stacks that the probes send to allocation sites.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::model::event::SiteFrames;
use engine::model::ids::{Pid, SiteId};
use engine::model::stack::UnknownReason;
use hashbrown::HashMap;

use super::known_stacks::KnownStacks;
use super::merge::{PythonRun, is_interpreter};
use super::native::{FrameLocation, NativeUnwinder, UnwoundStack};
use super::python::PythonUnsupported;
use super::python_processes::PythonProcesses;
use super::records::{StackOrigin, StackRecord};
use super::symbolizer_thread::{
    NativeStack, PythonStack, QUEUE_CAPACITY, SymbolizeJob, SymbolizerThread,
};
use crate::decode::{ExecGeneration, StackRef};
use crate::hooks::HOOKS;
use crate::libraries::MmapEvent;
use crate::session::Table;
use crate::wire::{self, SentFramesKey, ToWire, WirePythonFrame};

/// Maximum number of stacks and of sites per trace; calls beyond it have no site.
const MAX_STACKS: usize = 1 << 20;

/// Maximum number of lists of frames kept per process; beyond it all are dropped and sent again.
const MAX_PYTHON_STACKS: usize = 50_000;

/// Maximum number of stack copies per process whose calls have not come yet.
const MAX_PENDING_COPIES: usize = 10_000;

/// Time between two checks for processes that exited unseen.
const UNSEEN_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum time to wait for symbols at the end of a trace.
const FINAL_SYMBOLIZE_TIMEOUT: Duration = Duration::from_secs(10);

/// Tables for stacks.
pub(crate) struct StackTables {
    pub(crate) known: Table,
    pub(crate) sent: Table,
    pub(crate) pythons: Table,
}

/// Parts of a site. Numbers start at 1; 0 means none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct SiteParts {
    hook: u16,
    native: u32,
    python: u32,
}

/// Stacks of a process, by token.
#[derive(Debug, Default)]
struct ProcessStacks {
    /// Copies whose call has not come yet.
    copies: HashMap<u64, u32>,
    addresses: HashMap<u64, u32>,
    python: HashMap<u64, u32>,
    /// Keys in the table of sent frames.
    sent: Vec<SentFramesKey>,
    is_python: bool,
}

/// Resolves the stacks of one trace to sites.
pub(crate) struct SiteResolver {
    /// Lists of frames that were sent.
    sent: Table,
    /// Layouts of the interpreters of processes.
    interpreters: Table,
    known: KnownStacks,
    native: NativeUnwinder,
    pythons: PythonProcesses,
    symbolizer: SymbolizerThread,
    processes: HashMap<Pid, ProcessStacks>,
    native_stacks: Interner<NativeStack>,
    python_stacks: Interner<PythonStack>,
    sites: HashMap<SiteParts, SiteId>,
    /// Sites that did not fit into the queue of the symbolizer.
    unsubmitted: VecDeque<(SiteId, SiteParts)>,
    /// Time of the last check for processes that exited unseen.
    last_check: Instant,
}

impl SiteResolver {
    /// `loops`: the traced side can search many known stacks per key.
    pub(crate) fn new(tables: StackTables, loops: bool) -> std::io::Result<Self> {
        let native = NativeUnwinder::new();
        let symbolizer = SymbolizerThread::start(native.registry(), QUEUE_CAPACITY)?;
        Ok(Self {
            sent: tables.sent,
            interpreters: tables.pythons,
            known: KnownStacks::new(tables.known, loops),
            native,
            pythons: PythonProcesses::default(),
            symbolizer,
            processes: HashMap::new(),
            native_stacks: Interner::default(),
            python_stacks: Interner::default(),
            sites: HashMap::new(),
            unsubmitted: VecDeque::new(),
            last_check: Instant::now(),
        })
    }

    /// Checks whether a new process runs Python. `exec_gen`: its exec generation, if known.
    pub(crate) fn process_started(&mut self, pid: Pid, exec_gen: Option<ExecGeneration>) {
        let Some(mut wire) = self.pythons.detect(pid) else {
            // A Python process with this pid may have exited unseen.
            if self.is_python(pid) {
                self.process_exited(pid);
            }
            return;
        };
        wire.exec_gen = exec_gen.map_or(wire::VS_ANY_EXEC_GEN as u16, |exec_gen| exec_gen.0);
        let added = self.interpreters.update(&pid.0.to_ne_bytes(), &wire.bytes());
        self.processes.entry(pid).or_default().is_python = added;
    }

    /// Drops the stacks of a process that exited or called exec.
    pub(crate) fn process_exited(&mut self, pid: Pid) {
        self.interpreters.delete(&pid.0.to_ne_bytes());
        self.known.process_exited(pid);
        self.native.process_exited(pid);
        self.pythons.process_exited(pid);
        for key in self.processes.remove(&pid).map(|process| process.sent).unwrap_or_default() {
            self.sent.delete(&key.bytes());
        }
    }

    /// Applies new mappings and stacks, and drops processes that exited unseen. `is_announced`: a
    /// record has announced the process, and another one will report its exit.
    pub(crate) fn update(
        &mut self,
        mappings: Vec<MmapEvent>,
        stacks: Vec<StackRecord>,
        is_announced: impl Fn(Pid) -> bool,
    ) {
        for mapping in mappings {
            self.mapping_changed(mapping);
        }
        for stack in stacks {
            self.insert(stack);
        }
        if self.last_check.elapsed() >= UNSEEN_CHECK_INTERVAL {
            self.last_check = Instant::now();
            self.drop_unseen(is_announced);
        }
    }

    /// Drops Python processes that ran at the start of the trace and exited before their first call.
    fn drop_unseen(&mut self, is_announced: impl Fn(Pid) -> bool) {
        let is_running = |pid: Pid| std::fs::exists(format!("/proc/{pid}")).unwrap_or(true);
        let processes = self.processes.iter().filter(|(_, process)| process.is_python);
        let unseen = processes.map(|(pid, _)| *pid).filter(|pid| !is_announced(*pid));
        for pid in unseen.filter(|pid| !is_running(*pid)).collect::<Vec<_>>() {
            self.process_exited(pid);
        }
    }

    fn is_python(&self, pid: Pid) -> bool {
        self.processes.get(&pid).is_some_and(|process| process.is_python)
    }

    /// Handles a new executable mapping: addresses of the process can have another meaning now.
    fn mapping_changed(&mut self, mmap: MmapEvent) {
        if self.processes.contains_key(&mmap.pid) {
            self.known.process_exited(mmap.pid);
        }
        self.native.mapped(mmap);
    }

    /// Adds a stack from the ring.
    fn insert(&mut self, record: StackRecord) {
        match record {
            StackRecord::Copy { origin, registers, bytes, hijacked } => {
                let unwound = self.native.unwind(origin.pid, registers, &bytes, &hijacked);
                self.detect_python_again(origin, &unwound);
                let number = self.intern(&unwound);
                if hijacked.is_empty() && number != 0 {
                    self.known.add(origin, registers, &unwound.slots, number.into());
                }
                let copies = &mut self.processes.entry(origin.pid).or_default().copies;
                // Copies of lost calls are never used.
                if copies.len() >= MAX_PENDING_COPIES {
                    copies.clear();
                }
                copies.insert(origin.token, number);
            }
            StackRecord::Addresses { origin, addresses, hijacked } => {
                let unwound = self.native.resolve_addresses(origin.pid, &addresses, &hijacked);
                self.detect_python_again(origin, &unwound);
                let number = self.intern(&unwound);
                self.mark_sent(origin, wire::VS_ADDRESSES);
                let process = self.processes.entry(origin.pid).or_default();
                process.addresses.insert(origin.token, number);
            }
            StackRecord::Python { origin, frames, truncated } => {
                let stack = self.python(origin.pid, &frames, truncated);
                let number = self.python_stacks.number(stack);
                self.mark_sent(origin, wire::VS_PYTHON);
                self.processes.entry(origin.pid).or_default().python.insert(origin.token, number);
            }
        }
    }

    /// Returns the site of a call; `None` if its stack is unknown.
    pub(crate) fn site(&mut self, pid: Pid, stack: StackRef) -> Option<SiteId> {
        let process = self.processes.get_mut(&pid);
        let (native, python) = match process {
            None => return None,
            Some(process) => {
                let native = if stack.known {
                    stack.stack as u32
                } else {
                    let copy = process.copies.remove(&stack.stack);
                    copy.or_else(|| process.addresses.get(&stack.stack).copied()).unwrap_or(0)
                };
                (native, process.python.get(&stack.python).copied())
            }
        };
        let python = python.unwrap_or_else(|| self.missing_python_stack(pid));
        if native == 0 && python == 0 {
            return None;
        }
        let parts = SiteParts { hook: stack.hook, native, python };
        if let Some(site) = self.sites.get(&parts) {
            return Some(*site);
        }
        if self.sites.len() >= MAX_STACKS {
            return None;
        }
        let site = SiteId(self.sites.len() as u32);
        self.sites.insert(parts, site);
        self.unsubmitted.push_back((site, parts));
        self.submit_sites();
        Some(site)
    }

    /// Submits sites to the symbolizer while its queue has room.
    fn submit_sites(&mut self) {
        while let Some((site, parts)) = self.unsubmitted.front() {
            let submitted = self.symbolizer.submit(SymbolizeJob {
                site: *site,
                function: HOOKS.get(usize::from(parts.hook)).map(|hook| hook.symbol),
                native: self.native_stacks.get(parts.native),
                python: self.python_stacks.get(parts.python),
            });
            if !submitted {
                return;
            }
            self.unsubmitted.pop_front();
        }
    }

    /// Returns processes whose Python stacks cannot be read, with the reason, since the last call.
    pub(crate) fn drain_unsupported(&mut self) -> Vec<(Pid, String)> {
        self.pythons.drain_unsupported()
    }

    /// Returns once why symbols are missing.
    pub(crate) fn take_symbolizer_failure(&mut self) -> Option<String> {
        self.symbolizer.take_failure()
    }

    /// Returns the sites symbolized since the last call; `last`: waits for all pending ones.
    pub(crate) fn drain_resolved(&mut self, last: bool) -> Vec<SiteFrames> {
        let deadline = Instant::now() + FINAL_SYMBOLIZE_TIMEOUT;
        let mut resolved = self.symbolizer.drain();
        self.submit_sites();
        while last && let Some(frames) = self.symbolizer.next(deadline) {
            resolved.push(frames);
            self.submit_sites();
        }
        resolved
    }

    /// Returns the Python stack of a call without one: the reason, used if the native stack
    /// contains frames of the interpreter.
    fn missing_python_stack(&mut self, pid: Pid) -> u32 {
        let missing = match self.pythons.unsupported_reason(pid) {
            Some(PythonUnsupported::NotReadyYet) => UnknownReason::InterpreterNotReady,
            Some(_) => UnknownReason::UnsupportedInterpreter,
            None if self.is_python(pid) => UnknownReason::InterpreterNotReady,
            None => return 0,
        };
        self.python_stacks.number(PythonStack { missing: Some(missing), ..PythonStack::default() })
    }

    /// Detects Python again if the stack contains the interpreter and none was found before.
    fn detect_python_again(&mut self, origin: StackOrigin, unwound: &UnwoundStack) {
        if self.is_python(origin.pid) || self.pythons.detected_recently(origin.pid) {
            return;
        }
        let native = &self.native;
        let mut files = unwound.locations.iter().filter_map(|location| match location {
            FrameLocation::File { module, .. } => Some(native.path(*module)),
            _ => None,
        });
        if files.any(|path| is_interpreter(&path)) {
            self.process_started(origin.pid, Some(origin.exec_gen));
        }
    }

    fn intern(&mut self, unwound: &UnwoundStack) -> u32 {
        let stack = NativeStack { locations: unwound.locations.clone(), end: unwound.end };
        self.native_stacks.number(stack)
    }

    fn python(&mut self, pid: Pid, frames: &[WirePythonFrame], truncated: bool) -> PythonStack {
        let mut runs = vec![PythonRun::new()];
        for frame in frames {
            if let Some(run) = runs.last_mut() {
                run.extend(self.pythons.frame(pid, frame));
            }
            if frame.entry != 0 {
                runs.push(PythonRun::new());
            }
        }
        runs.retain(|run| !run.is_empty());
        PythonStack { runs, truncated, missing: None }
    }

    /// Keeps the key of frames that the probes will not send again until it is deleted from their
    /// map. To be called before the frames are stored, because it can drop all stored ones.
    fn mark_sent(&mut self, origin: StackOrigin, kind: u32) {
        let process = self.processes.entry(origin.pid).or_default();
        let StackOrigin { pid, exec_gen, token } = origin;
        let kind = kind as u16;
        process.sent.push(SentFramesKey { token, pid: pid.0, exec_gen: exec_gen.0, kind });
        if process.sent.len() < MAX_PYTHON_STACKS {
            return;
        }
        // A program that keeps creating new functions.
        process.python.clear();
        process.addresses.clear();
        for key in process.sent.drain(..) {
            self.sent.delete(&key.bytes());
        }
    }
}

/// Interned values with numbers.
#[derive(Debug)]
struct Interner<T> {
    numbers: HashMap<Arc<T>, u32>,
    values: Vec<Arc<T>>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { numbers: HashMap::new(), values: Vec::new() }
    }
}

impl<T: std::hash::Hash + Eq> Interner<T> {
    /// Returns the number of a value, from 1; 0 if there are too many.
    fn number(&mut self, value: T) -> u32 {
        if let Some(number) = self.numbers.get(&value) {
            return *number;
        }
        if self.values.len() >= MAX_STACKS {
            return 0;
        }
        let value = Arc::new(value);
        self.values.push(Arc::clone(&value));
        let number = self.values.len() as u32;
        self.numbers.insert(value, number);
        number
    }

    fn get(&self, number: u32) -> Option<Arc<T>> {
        self.values.get((number as usize).checked_sub(1)?).cloned()
    }
}
