//! Resolves the stacks that the probes send to allocation sites.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::model::event::SiteFrames;
use engine::model::ids::{Pid, SiteId};
use engine::model::stack::{Frame, Language, UnknownReason};
use hashbrown::HashMap;

use super::merge::{PythonRun, is_interpreter};
use super::native::{FrameLocation, GeneratedCode, NativeUnwinder, UnwoundStack};
use super::process_stacks::{ProcessStacks, StackTables};
use super::records::StackRecord;
use super::symbolizer_thread::{
    NativeStack, PythonStack, QUEUE_CAPACITY, SymbolizeJob, SymbolizerThread,
};
use crate::decode::{ExecGeneration, StackRef};
use crate::files::Mapping;
use crate::hooks::HOOKS;
use crate::session::processes::ProcessTable;
use crate::wire::WirePythonFrame;

/// Maximum number of stacks and of sites per trace; calls beyond it have no site.
const MAX_STACKS: usize = 1 << 20;

/// Maximum time to wait for symbols at the end of a trace.
const FINAL_SYMBOLIZE_TIMEOUT: Duration = Duration::from_secs(10);

/// Parts of a site. Numbers start at 1; 0 means none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct SiteParts {
    hook: u16,
    native: u32,
    python: u32,
}

/// Resolves the stacks of one trace to sites. What it knows is shared by all processes; the process
/// table owns the rest.
pub(crate) struct SiteResolver {
    tables: Arc<StackTables>,
    native: NativeUnwinder,
    symbolizer: SymbolizerThread,
    native_stacks: Interner<NativeStack>,
    python_stacks: Interner<PythonStack>,
    sites: HashMap<SiteParts, SiteId>,
    /// Sites that did not fit into the queue of the symbolizer.
    unsubmitted: VecDeque<(SiteId, SiteParts, Arc<GeneratedCode>)>,
    /// Processes whose Python stacks cannot be read, until that is reported.
    unsupported: Vec<(Pid, String)>,
}

impl SiteResolver {
    pub(crate) fn new(tables: StackTables) -> std::io::Result<Self> {
        let native = NativeUnwinder::new();
        let symbolizer = SymbolizerThread::start(native.registry(), QUEUE_CAPACITY)?;
        Ok(Self {
            tables: Arc::new(tables),
            native,
            symbolizer,
            native_stacks: Interner::default(),
            python_stacks: Interner::default(),
            sites: HashMap::new(),
            unsubmitted: VecDeque::new(),
            unsupported: Vec::new(),
        })
    }

    fn stacks<'a>(&self, processes: &'a mut ProcessTable, pid: Pid) -> &'a mut ProcessStacks {
        let new = || Box::new(ProcessStacks::new(pid, Arc::clone(&self.tables)));
        processes.entry(pid).stacks.get_or_insert_with(new)
    }

    /// Checks whether a new process runs Python. `exec_gen`: its exec generation, if known.
    pub(crate) fn process_started(
        &mut self,
        processes: &mut ProcessTable,
        pid: Pid,
        exec_gen: Option<ExecGeneration>,
    ) {
        let unsupported = self.stacks(processes, pid).detect_python(exec_gen);
        self.unsupported.extend(unsupported.map(|reason| (pid, reason)));
    }

    /// Applies new mappings and stacks.
    pub(crate) fn update(
        &mut self,
        mappings: Vec<Mapping>,
        stacks: Vec<StackRecord>,
        processes: &mut ProcessTable,
    ) {
        for mapping in mappings {
            let stacks = processes.all_of(mapping.pid).iter_mut();
            let stacks = stacks.filter_map(|process| process.stacks.as_deref_mut());
            stacks.for_each(ProcessStacks::mapping_changed);
            self.native.mapped(mapping);
        }
        for stack in stacks {
            self.insert(stack, processes);
        }
    }

    /// Adds a stack from the ring.
    fn insert(&mut self, record: StackRecord, processes: &mut ProcessTable) {
        match record {
            StackRecord::Copy { origin, registers, bytes, hijacked } => {
                if self.tables.is_full() {
                    let all = processes.all_mut();
                    let stacks = all.filter_map(|(_, process)| process.stacks.as_deref_mut());
                    stacks.for_each(ProcessStacks::clear_known);
                }
                let stacks = self.stacks(processes, origin.pid);
                let unwound = self.native.unwind(&mut stacks.space, registers, &bytes, &hijacked);
                self.detect_python_again(origin.pid, origin.exec_gen, stacks, &unwound);
                let number = self.intern(&unwound);
                if hijacked.is_empty() {
                    stacks.add_known(origin.exec_gen, registers, &unwound.slots, number);
                }
                stacks.add_copy(origin.token, number);
            }
            StackRecord::Addresses { origin, addresses, hijacked } => {
                let stacks = self.stacks(processes, origin.pid);
                let unwound =
                    self.native.resolve_addresses(&mut stacks.space, &addresses, &hijacked);
                self.detect_python_again(origin.pid, origin.exec_gen, stacks, &unwound);
                stacks.add_addresses(origin, self.intern(&unwound));
            }
            StackRecord::Python { origin, frames, truncated } => {
                let stacks = self.stacks(processes, origin.pid);
                let stack = python_stack(stacks, &frames, truncated);
                stacks.add_python(origin, self.python_stacks.number(stack));
            }
        }
    }

    /// Returns the site of a call; `None` if its stack is unknown.
    pub(crate) fn site(&mut self, stacks: &mut ProcessStacks, stack: StackRef) -> Option<SiteId> {
        let (native, python) = stacks.numbers(stack.known, stack.stack, stack.python);
        // Without a Python stack: the reason, used if the native stack has frames of the interpreter.
        let python = python.unwrap_or_else(|| match stacks.missing_python() {
            None => 0,
            missing => self.python_stacks.number(PythonStack { missing, ..PythonStack::default() }),
        });
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
        self.unsubmitted.push_back((site, parts, Arc::clone(&stacks.space.generated)));
        self.submit_sites();
        Some(site)
    }

    /// Submits sites to the symbolizer while its queue has room.
    fn submit_sites(&mut self) {
        while let Some((site, parts, generated)) = self.unsubmitted.front() {
            let submitted = self.symbolizer.submit(SymbolizeJob {
                site: *site,
                function: HOOKS.get(usize::from(parts.hook)).map(|hook| hook.symbol),
                native: self.native_stacks.get(parts.native),
                python: self.python_stacks.get(parts.python),
                generated: Arc::clone(generated),
            });
            if !submitted {
                return;
            }
            self.unsubmitted.pop_front();
        }
    }

    /// Returns processes whose Python stacks cannot be read, with the reason, since the last call.
    pub(crate) fn drain_unsupported(&mut self) -> Vec<(Pid, String)> {
        std::mem::take(&mut self.unsupported)
    }

    /// Returns once why symbols are missing.
    pub(crate) fn take_symbolizer_failure(&mut self) -> Option<String> {
        self.symbolizer.take_failure()
    }

    /// Returns whether symbols are being resolved.
    pub(crate) fn is_resolving(&self) -> bool {
        !self.unsubmitted.is_empty() || self.symbolizer.is_busy()
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

    /// Detects Python again if the stack contains the interpreter and none was found before.
    fn detect_python_again(
        &mut self,
        pid: Pid,
        exec_gen: ExecGeneration,
        stacks: &mut ProcessStacks,
        unwound: &UnwoundStack,
    ) {
        let native = &self.native;
        let mut files = unwound.locations.iter().filter_map(|location| match location {
            FrameLocation::File { module, .. } => Some(native.path(*module)),
            _ => None,
        });
        if stacks.may_find_python() && files.any(|path| is_interpreter(&path)) {
            let unsupported = stacks.detect_python(Some(exec_gen));
            self.unsupported.extend(unsupported.map(|reason| (pid, reason)));
        }
    }

    fn intern(&mut self, unwound: &UnwoundStack) -> u32 {
        let stack = NativeStack { locations: unwound.locations.clone(), end: unwound.end };
        self.native_stacks.number(stack)
    }
}

/// Symbolizes the frames of a Python stack.
fn python_stack(
    stacks: &mut ProcessStacks,
    frames: &[WirePythonFrame],
    truncated: bool,
) -> PythonStack {
    let mut runs = vec![PythonRun::new()];
    let mut code = stacks.python_code();
    for frame in frames {
        let named = match &mut code {
            Some(code) => code.frame(frame),
            None => (frame.code != 0).then(|| Frame {
                language: Language::Python,
                unknown: Some(UnknownReason::ProcessExited),
                ..Frame::default()
            }),
        };
        if let Some(run) = runs.last_mut() {
            run.extend(named);
        }
        if frame.entry != 0 {
            runs.push(PythonRun::new());
        }
    }
    runs.retain(|run| !run.is_empty());
    PythonStack { runs, truncated, missing: None }
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
