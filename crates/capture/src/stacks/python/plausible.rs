//! Validates the structures of an interpreter: back pointers match, thread ids are threads, and
//! frames have code objects.

use super::find::NoPython;
use super::layout::{Entry, Layout};
use super::memory::{Memory, word_of};
use crate::wire::WirePython;

/// Maximum number of attempts: the process runs, so a structure can change while it is read.
const TRIES: usize = 3;
const MOST_INTERPRETERS: usize = 16;
const MOST_THREADS: usize = 64;
/// Number of frames of a thread that are checked.
const FRAMES: usize = 4;

/// Checks the interpreters of a process.
pub(super) fn check(
    memory: &impl Memory,
    layout: &Layout,
    wire: &WirePython,
    code_type: Option<u64>,
) -> Result<(), NoPython> {
    let validation = Look { memory, layout, wire, code_type };
    let mut result = validation.interpreters();
    for _ in 1..TRIES {
        if result == Err(NoPython::Implausible) {
            result = validation.interpreters();
        }
    }
    result
}

/// Context of a validation.
struct Look<'a, M> {
    memory: &'a M,
    layout: &'a Layout,
    wire: &'a WirePython,
    code_type: Option<u64>,
}

/// Counts of valid and invalid threads and frames.
#[derive(Default)]
struct Seen {
    threads: usize,
    bad_threads: usize,
    frames: usize,
    bad_frames: usize,
}

impl<M: Memory> Look<'_, M> {
    fn interpreters(&self) -> Result<(), NoPython> {
        let mut at = self.memory.word(self.wire.interpreters).ok_or(NoPython::Unreadable)?;
        let mut seen = Seen::default();
        for _ in 0..MOST_INTERPRETERS {
            if at == 0 {
                break;
            }
            at = self.interpreter(at, &mut seen).ok_or(NoPython::Implausible)?;
        }
        match seen {
            Seen { threads: 0, bad_threads: 0, .. } => Err(NoPython::NotReadyYet),
            Seen { threads: 0, .. } | Seen { frames: 0, bad_frames: 1.., .. } => {
                Err(NoPython::Implausible)
            }
            _ => Ok(()),
        }
    }

    /// Checks the threads of an interpreter, and returns the next interpreter.
    fn interpreter(&self, interpreter: u64, seen: &mut Seen) -> Option<u64> {
        let mut thread = self.memory.word_at(interpreter, self.layout.threads)?;
        for _ in 0..MOST_THREADS {
            if thread == 0 {
                break;
            }
            if self.memory.word_at(thread, self.layout.thread_interpreter)? != interpreter {
                return None;
            }
            match self.memory.word_at(thread, self.layout.thread_id)? {
                // Not bound to a system thread yet.
                0 => {}
                id if self.is_thread(id) => seen.threads += 1,
                _ => seen.bad_threads += 1,
            }
            self.frames(thread, seen);
            thread = self.memory.word_at(thread, self.layout.thread_next)?;
        }
        self.memory.word_at(interpreter, self.layout.interpreter_next)
    }

    /// Returns whether an id is a thread pointer: in the x86-64 ABI it points to a pointer to
    /// itself.
    fn is_thread(&self, id: u64) -> bool {
        self.memory.word(id) == Some(id)
    }

    fn frames(&self, thread: u64, seen: &mut Seen) -> Option<()> {
        let layout = self.layout;
        let mut frame = self.memory.word_at(thread, layout.thread_frame)?;
        if let Some(inside) = layout.frame_of.filter(|_| frame != 0) {
            frame = self.memory.word_at(frame, inside)?;
        }
        for _ in 0..FRAMES {
            if frame == 0 {
                break;
            }
            let words = self.memory.block(frame, layout.frame_bytes(), usize::MAX);
            let Some(words) = words else {
                seen.bad_frames += 1;
                break;
            };
            let owner = match layout.entry {
                Entry::Shim(owner) => words.get(usize::from(owner)).copied(),
                Entry::Every | Entry::Marked(_) => Some(0),
            };
            if owner < Some(self.wire.owner_entry) {
                if self.is_code(word_of(&words, layout.frame_code.into())? & !7) {
                    seen.frames += 1;
                } else {
                    seen.bad_frames += 1;
                }
            }
            frame = word_of(&words, layout.frame_previous.into())?;
        }
        Some(())
    }

    fn is_code(&self, address: u64) -> bool {
        let kind = self.memory.word_at(address, self.layout.object_type);
        match self.code_type {
            Some(code_type) => kind == Some(code_type),
            None => kind.is_some_and(|kind| kind != 0),
        }
    }
}
