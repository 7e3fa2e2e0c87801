//! From what the probes send of a stack to the site of an allocation.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::event::SiteFacts;
use engine::ids::{Pid, SiteId};
use engine::stack::Unknown;
use hashbrown::HashMap;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::known::KnownStacks;
use super::mixed::{Run, is_interpreter};
use super::naming::{Job, Naming, NativeStack, PythonStack, QUEUE};
use super::native::{Code, Native, Unwound};
use super::python::NoPython;
use super::pythons::Pythons;
use super::records::{From, StackRecord};
use crate::decode::{Program, Taken};
use crate::hooks::HOOKS;
use crate::libraries::MappedCode;
use crate::wire::{self, ToWire, ToldKey, WirePythonFrame};

/// Stacks and sites that are kept of a trace; more have no site.
const MOST: usize = 1 << 20;

/// Python stacks that are kept of a process; then it is asked to send them again.
const MOST_PYTHON: usize = 50_000;

/// Stacks of a process whose calls did not come yet.
const MOST_COPIES: usize = 10_000;

/// How long names are waited for at the end of a trace.
const PATIENCE: Duration = Duration::from_secs(10);

/// The maps of the probes that have to do with stacks.
#[derive(Debug)]
pub(crate) struct Maps {
    pub(crate) known: MapHandle,
    pub(crate) told: MapHandle,
    pub(crate) pythons: MapHandle,
}

/// What a site is made of. Numbers start at 1; 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Parts {
    hook: u16,
    native: u32,
    python: u32,
}

/// What is kept of a process.
#[derive(Debug, Default)]
struct OfProcess {
    /// Copies that came and whose call did not, yet.
    copies: HashMap<u64, u32>,
    addresses: HashMap<u64, u32>,
    python: HashMap<u64, u32>,
    /// The probes think that these were sent.
    told: Vec<ToldKey>,
    is_python: bool,
}

/// Stacks of one trace.
pub(crate) struct Desk {
    maps: Maps,
    known: KnownStacks,
    native: Native,
    pythons: Pythons,
    naming: Naming,
    processes: HashMap<Pid, OfProcess>,
    native_stacks: Interned<NativeStack>,
    python_stacks: Interned<PythonStack>,
    sites: HashMap<Parts, SiteId>,
    /// Sites that there was no room for among those that wait for names.
    unnamed: VecDeque<(SiteId, Parts)>,
}

impl Desk {
    /// `loops`: the kernel has them for programs.
    pub(crate) fn new(maps: Maps, loops: bool) -> std::io::Result<Self> {
        let native = Native::new();
        let naming = Naming::start(native.registry(), QUEUE)?;
        let known = KnownStacks::new(MapHandle::try_from(&maps.known).map_err(io)?, loops);
        Ok(Self {
            maps,
            known,
            native,
            pythons: Pythons::default(),
            naming,
            processes: HashMap::new(),
            native_stacks: Interned::default(),
            python_stacks: Interned::default(),
            sites: HashMap::new(),
            unnamed: VecDeque::new(),
        })
    }

    /// A process is there: it may run Python. `program`: any, where it is not known.
    pub(crate) fn began(&mut self, pid: Pid, program: Option<Program>) {
        let wire = self.pythons.look(pid);
        let Some(mut wire) = wire else { return };
        wire.program = program.map_or(wire::VS_ANY_EXEC_GEN as u16, |program| program.0);
        let added = self.maps.pythons.update(&pid.0.to_ne_bytes(), &wire.bytes(), MapFlags::ANY);
        self.processes.entry(pid).or_default().is_python = added.is_ok();
    }

    /// A process runs another program, or none.
    pub(crate) fn forget(&mut self, pid: Pid) {
        let _ = self.maps.pythons.delete(&pid.0.to_ne_bytes());
        self.known.forget(pid);
        self.native.forget(pid);
        self.pythons.forget(pid);
        for key in self.processes.remove(&pid).map(|process| process.told).unwrap_or_default() {
            let _ = self.maps.told.delete(&key.bytes());
        }
    }

    /// A process mapped code: addresses can mean something else than before.
    pub(crate) fn mapped(&mut self, code: MappedCode) {
        if self.processes.contains_key(&code.pid) {
            self.known.forget(code.pid);
        }
        self.native.mapped(code);
    }

    /// A stack came.
    pub(crate) fn take(&mut self, record: StackRecord) {
        match record {
            StackRecord::Copy { from, registers, bytes, pending } => {
                let unwound = self.native.unwind(from.pid, registers, &bytes, &pending);
                self.look_again(from, &unwound);
                let number = self.intern(&unwound);
                if pending.is_empty() && number != 0 {
                    self.known.add(from, registers, &unwound.slots, number.into());
                }
                let copies = &mut self.processes.entry(from.pid).or_default().copies;
                // Calls that were lost never ask for theirs.
                if copies.len() >= MOST_COPIES {
                    copies.clear();
                }
                copies.insert(from.token, number);
            }
            StackRecord::Addresses { from, addresses, pending } => {
                let unwound = self.native.place(from.pid, &addresses, &pending);
                self.look_again(from, &unwound);
                let number = self.intern(&unwound);
                self.told(from, wire::VS_ADDRESSES);
                let process = self.processes.entry(from.pid).or_default();
                process.addresses.insert(from.token, number);
            }
            StackRecord::Python { from, frames, cut } => {
                let stack = self.python(from.pid, &frames, cut);
                let number = self.python_stacks.number(stack);
                self.told(from, wire::VS_PYTHON);
                self.processes.entry(from.pid).or_default().python.insert(from.token, number);
            }
        }
    }

    /// The site of a call; `None` when nothing is known of its stack.
    pub(crate) fn site(&mut self, pid: Pid, taken: Taken) -> Option<SiteId> {
        let process = self.processes.get_mut(&pid);
        let (native, python) = match process {
            None => return None,
            Some(process) => {
                let native = if taken.known {
                    taken.stack as u32
                } else {
                    let copy = process.copies.remove(&taken.stack);
                    copy.or_else(|| process.addresses.get(&taken.stack).copied()).unwrap_or(0)
                };
                (native, process.python.get(&taken.python).copied())
            }
        };
        let python = python.unwrap_or_else(|| self.no_python(pid));
        if native == 0 && python == 0 {
            return None;
        }
        let parts = Parts { hook: taken.hook, native, python };
        if let Some(site) = self.sites.get(&parts) {
            return Some(*site);
        }
        if self.sites.len() >= MOST {
            return None;
        }
        let site = SiteId(self.sites.len() as u32);
        self.sites.insert(parts, site);
        self.unnamed.push_back((site, parts));
        self.ask_names();
        Some(site)
    }

    /// Asks for the names of sites while there is room.
    fn ask_names(&mut self) {
        while let Some((site, parts)) = self.unnamed.front() {
            let asked = self.naming.ask(Job {
                site: *site,
                function: HOOKS.get(usize::from(parts.hook)).map(|hook| hook.symbol),
                native: self.native_stacks.get(parts.native),
                python: self.python_stacks.get(parts.python),
            });
            if !asked {
                return;
            }
            self.unnamed.pop_front();
        }
    }

    /// Processes whose Python stacks are not told, and why, since the last call.
    pub(crate) fn refusals(&mut self) -> Vec<(Pid, String)> {
        self.pythons.take_refusals()
    }

    /// Why names are missing, the first time.
    pub(crate) fn no_names(&mut self) -> Option<String> {
        self.naming.take_failure()
    }

    /// Names that were found since the last call; `last`: that can be found at all.
    pub(crate) fn named(&mut self, last: bool) -> Vec<SiteFacts> {
        let until = Instant::now() + PATIENCE;
        let mut found = self.naming.take();
        self.ask_names();
        while last && let Some(facts) = self.naming.next(until) {
            found.push(facts);
            self.ask_names();
        }
        found
    }

    /// Where a call has no Python stack: why, should its native stack have been in the interpreter.
    fn no_python(&mut self, pid: Pid) -> u32 {
        let missing = match self.pythons.refusal(pid) {
            Some(NoPython::NotReadyYet) => Unknown::TooEarly,
            Some(_) => Unknown::Interpreter,
            None if self.processes.get(&pid).is_some_and(|process| process.is_python) => {
                Unknown::TooEarly
            }
            None => return 0,
        };
        self.python_stacks.number(PythonStack { missing: Some(missing), ..PythonStack::default() })
    }

    /// Looks for Python again where it was not there before, and is now.
    fn look_again(&mut self, from: From, unwound: &Unwound) {
        let is_python = self.processes.get(&from.pid).is_some_and(|process| process.is_python);
        if is_python || self.pythons.looked_lately(from.pid) {
            return;
        }
        let native = &self.native;
        let mut files = unwound.codes.iter().filter_map(|code| match code {
            Code::File { module, .. } => Some(native.path(*module)),
            _ => None,
        });
        if files.any(|path| is_interpreter(&path)) {
            self.began(from.pid, Some(from.program));
        }
    }

    fn intern(&mut self, unwound: &Unwound) -> u32 {
        let stack = NativeStack { codes: unwound.codes.clone(), end: unwound.end };
        self.native_stacks.number(stack)
    }

    fn python(&mut self, pid: Pid, frames: &[WirePythonFrame], cut: bool) -> PythonStack {
        let mut runs = vec![Run::new()];
        for frame in frames {
            if let Some(run) = runs.last_mut() {
                run.extend(self.pythons.frame(pid, frame));
            }
            if frame.entry != 0 {
                runs.push(Run::new());
            }
        }
        runs.retain(|run| !run.is_empty());
        PythonStack { runs, cut, missing: None }
    }

    /// The probes will not send it again, until it is taken out of their table. Before it is kept:
    /// this can forget what is.
    fn told(&mut self, from: From, kind: u32) {
        let process = self.processes.entry(from.pid).or_default();
        let From { pid, program, token } = from;
        process.told.push(ToldKey { token, pid: pid.0, program: program.0, kind: kind as u16 });
        if process.told.len() < MOST_PYTHON {
            return;
        }
        // A program that makes its functions anew all the time.
        process.python.clear();
        process.addresses.clear();
        for key in process.told.drain(..) {
            let _ = self.maps.told.delete(&key.bytes());
        }
    }
}

/// Values that are kept once, by number.
#[derive(Debug)]
struct Interned<T> {
    numbers: HashMap<Arc<T>, u32>,
    values: Vec<Arc<T>>,
}

impl<T> Default for Interned<T> {
    fn default() -> Self {
        Self { numbers: HashMap::new(), values: Vec::new() }
    }
}

impl<T: std::hash::Hash + Eq> Interned<T> {
    /// Its number, from 1; 0 when there are too many.
    fn number(&mut self, value: T) -> u32 {
        if let Some(number) = self.numbers.get(&value) {
            return *number;
        }
        if self.values.len() >= MOST {
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

fn io(error: libbpf_rs::Error) -> std::io::Error {
    std::io::Error::other(error)
}
