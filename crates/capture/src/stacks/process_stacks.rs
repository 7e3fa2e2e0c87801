//! The stacks of one process: what its calls refer to, its mappings and its interpreter. Dropping it
//! deletes its entries in the tables of the traced side.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use engine::model::ids::Pid;
use engine::model::stack::UnknownReason;
use hashbrown::HashMap;

use super::native::{AddressSpace, Registers, ReturnSlot};
use super::python::{ProcessMemory, PythonCode, PythonUnsupported, find};
use super::records::StackOrigin;
use crate::decode::ExecGeneration;
use crate::session::Table;
use crate::session::liveness::has_no_memory;
use crate::wire::{self, KnownStack, KnownStackKey, SentFramesKey, ToWire, WireSlot};

/// Maximum number of known stacks of all processes; the BPF map has a few more.
const MAX_KNOWN_STACKS: usize = 8000;

/// Maximum number of lists of frames kept per process; beyond it all are dropped and sent again.
const MAX_SENT_FRAMES: usize = 50_000;

/// Maximum number of stack copies per process whose calls have not come yet.
const MAX_PENDING_COPIES: usize = 10_000;

/// Minimum time between two attempts for an interpreter that has not started.
const DETECT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Tables for stacks, written here and read by the traced side.
pub(crate) struct StackTables {
    known: Table,
    sent: Table,
    pythons: Table,
    /// Maximum number of known stacks with the same innermost frame.
    known_per_frame: u16,
    known_entries: AtomicUsize,
}

impl StackTables {
    /// `loops`: the traced side can search many known stacks with the same innermost frame.
    pub(crate) fn new(known: Table, sent: Table, pythons: Table, loops: bool) -> Self {
        let max = if loops { wire::VS_STACKS_PER_KEY } else { wire::VS_STACKS_PER_KEY_NO_LOOP };
        Self {
            known,
            sent,
            pythons,
            known_per_frame: max as u16,
            known_entries: AtomicUsize::new(0),
        }
    }

    /// Returns whether no more known stacks fit.
    pub(super) fn is_full(&self) -> bool {
        self.known_entries.load(Ordering::Relaxed) >= MAX_KNOWN_STACKS
    }
}

/// Innermost frame of a known stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct InnermostFrame {
    ip: u64,
    sp: u64,
    exec_gen: u16,
}

/// The interpreter of a process.
enum Python {
    /// None was found.
    None,
    Running(PythonCode<ProcessMemory>),
    /// Its stacks cannot be read; since when that is known.
    Unsupported(PythonUnsupported, Instant),
}

/// Stacks of a process, by token.
pub(crate) struct ProcessStacks {
    pid: Pid,
    tables: Arc<StackTables>,
    /// Copies whose call has not come yet.
    copies: HashMap<u64, u32>,
    addresses: HashMap<u64, u32>,
    python: HashMap<u64, u32>,
    /// Keys in the table of sent frames.
    sent: Vec<SentFramesKey>,
    /// Known stacks added per innermost frame; wraps around, so that the oldest is replaced.
    known: HashMap<InnermostFrame, u16>,
    pub(super) space: AddressSpace,
    interpreter: Python,
}

impl ProcessStacks {
    pub(super) fn new(pid: Pid, tables: Arc<StackTables>) -> Self {
        Self {
            pid,
            tables,
            copies: HashMap::new(),
            addresses: HashMap::new(),
            python: HashMap::new(),
            sent: Vec::new(),
            known: HashMap::new(),
            space: AddressSpace::new(pid),
            interpreter: Python::None,
        }
    }

    /// Searches an interpreter. Returns why its stacks cannot be read, if so. `exec_gen`: the exec
    /// generation of the process, if known.
    pub(super) fn detect_python(&mut self, exec_gen: Option<ExecGeneration>) -> Option<String> {
        let pid = self.pid;
        self.interpreter = Python::None;
        match find(pid) {
            Ok(None) => {}
            Ok(Some(mut found)) => {
                let any = wire::VS_ANY_EXEC_GEN as u16;
                found.wire.exec_gen = exec_gen.map_or(any, |exec_gen| exec_gen.0);
                if self.tables.pythons.update(&pid.0.to_ne_bytes(), &found.wire.bytes()) {
                    self.interpreter =
                        Python::Running(PythonCode::new(found.layout, ProcessMemory(pid)));
                }
                return None;
            }
            Err(reason) => {
                // A process that has exited needs no report.
                let is_reported = reason != PythonUnsupported::NotReadyYet && !has_no_memory(pid);
                let text = is_reported.then(|| reason.to_string());
                self.interpreter = Python::Unsupported(reason, Instant::now());
                return text;
            }
        }
        None
    }

    /// Returns whether an interpreter may be found if it is searched again.
    pub(super) fn may_find_python(&self) -> bool {
        match &self.interpreter {
            Python::None => true,
            Python::Unsupported(PythonUnsupported::NotReadyYet, since) => {
                since.elapsed() >= DETECT_RETRY_INTERVAL
            }
            Python::Running(_) | Python::Unsupported(..) => false,
        }
    }

    /// Returns why a call has no Python stack; `None` if the process runs no Python.
    pub(super) const fn missing_python(&self) -> Option<UnknownReason> {
        match self.interpreter {
            Python::None => None,
            Python::Running(_) | Python::Unsupported(PythonUnsupported::NotReadyYet, _) => {
                Some(UnknownReason::InterpreterNotReady)
            }
            Python::Unsupported(..) => Some(UnknownReason::UnsupportedInterpreter),
        }
    }

    /// Returns the code objects of the interpreter.
    pub(super) const fn python_code(&mut self) -> Option<&mut PythonCode<ProcessMemory>> {
        match &mut self.interpreter {
            Python::Running(code) => Some(code),
            Python::None | Python::Unsupported(..) => None,
        }
    }

    /// Handles a new executable mapping: addresses can have another meaning now.
    pub(super) fn mapping_changed(&mut self) {
        self.clear_known();
        self.space.changed();
    }

    /// Returns the numbers of the native stack, 0 for none, and of the Python stack of a call.
    pub(super) fn numbers(&mut self, known: bool, stack: u64, python: u64) -> (u32, Option<u32>) {
        let native = if known {
            stack as u32
        } else {
            let copy = self.copies.remove(&stack);
            copy.or_else(|| self.addresses.get(&stack).copied()).unwrap_or(0)
        };
        (native, self.python.get(&python).copied())
    }

    /// Adds a stack that was copied.
    pub(super) fn add_copy(&mut self, token: u64, number: u32) {
        // Copies of lost calls are never used.
        if self.copies.len() >= MAX_PENDING_COPIES {
            self.copies.clear();
        }
        self.copies.insert(token, number);
    }

    /// Adds the addresses of a frame-pointer walk.
    pub(super) fn add_addresses(&mut self, origin: StackOrigin, number: u32) {
        self.add_sent(origin, wire::VS_ADDRESSES);
        self.addresses.insert(origin.token, number);
    }

    /// Adds a Python stack.
    pub(super) fn add_python(&mut self, origin: StackOrigin, number: u32) {
        self.add_sent(origin, wire::VS_PYTHON);
        self.python.insert(origin.token, number);
    }

    /// Keeps the key of frames that the traced side will not send again until it is deleted from its
    /// table. If there are too many, drops all: the program keeps creating new functions.
    fn add_sent(&mut self, origin: StackOrigin, kind: u32) {
        if self.sent.len() >= MAX_SENT_FRAMES {
            self.python.clear();
            self.addresses.clear();
            self.clear_sent();
        }
        let StackOrigin { pid, exec_gen, token } = origin;
        let (pid, exec_gen, kind) = (pid.0, exec_gen.0, kind as u16);
        self.sent.push(SentFramesKey { token, pid, exec_gen, kind });
    }

    fn clear_sent(&mut self) {
        for key in self.sent.drain(..) {
            self.tables.sent.delete(&key.bytes());
        }
    }

    /// Adds the number of stacks with this innermost frame and these return addresses.
    pub(super) fn add_known(
        &mut self,
        exec_gen: ExecGeneration,
        registers: Registers,
        slots: &[ReturnSlot],
        number: u32,
    ) {
        if number == 0 || slots.is_empty() || slots.len() > wire::VS_SLOTS {
            return;
        }
        let frame = InnermostFrame { ip: registers.ip, sp: registers.sp, exec_gen: exec_gen.0 };
        let (added, max) = (self.known.entry(frame).or_default(), self.tables.known_per_frame);
        // The oldest one is replaced.
        let index = *added % max;
        if *added < max {
            self.tables.known_entries.fetch_add(1, Ordering::Relaxed);
        }
        *added = if *added + 1 == 2 * max { max } else { *added + 1 };
        let mut known = KnownStack {
            number: number.into(),
            count: slots.len() as u32,
            bytes: slots.last().map_or(0, |slot| slot.offset as u32 + 8),
            slots: [WireSlot { offset: 0, value: 0 }; wire::VS_SLOTS],
        };
        for (to, slot) in known.slots.iter_mut().zip(slots) {
            *to = WireSlot { offset: slot.offset, value: slot.value };
        }
        // A stack that does not fit is just sent again.
        let key = known_key(self.pid, frame, index);
        let _ = self.tables.known.update(&key.bytes(), &known.bytes());
    }

    /// Drops the known stacks: their calls are sent with a copy again.
    pub(super) fn clear_known(&mut self) {
        let tables = &self.tables;
        for (frame, added) in self.known.drain() {
            for index in 0..added.min(tables.known_per_frame) {
                tables.known_entries.fetch_sub(1, Ordering::Relaxed);
                tables.known.delete(&known_key(self.pid, frame, index).bytes());
            }
        }
    }
}

impl Drop for ProcessStacks {
    fn drop(&mut self) {
        self.clear_known();
        self.clear_sent();
        self.tables.pythons.delete(&self.pid.0.to_ne_bytes());
    }
}

fn known_key(pid: Pid, frame: InnermostFrame, index: u16) -> KnownStackKey {
    let InnermostFrame { ip, sp, exec_gen } = frame;
    KnownStackKey { ip, sp, pid: pid.0, exec_gen, index }
}
