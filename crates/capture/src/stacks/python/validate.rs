//! Validates the structures of an interpreter: back pointers match, thread ids are threads, and
//! frames have code objects.

use super::detect::PythonUnsupported;
use super::layout::{EntryFrameRule, PythonLayout};
use super::memory::{MemoryReader, u64_at};
use crate::wire::WirePython;

/// Maximum number of attempts: the process runs, so a structure can change while it is read.
const MAX_ATTEMPTS: usize = 3;
const MAX_INTERPRETERS: usize = 16;
const MAX_THREADS: usize = 64;
/// Offset of the list in `struct pthread`: after 24 words that are reserved for the ABI.
const GLIBC_THREAD_LIST: u64 = 192;
/// Number of frames of a thread that are checked.
const FRAMES_CHECKED: usize = 4;

/// Checks the interpreters of a process.
pub(super) fn check(
    memory: &impl MemoryReader,
    layout: &PythonLayout,
    wire: &WirePython,
    code_type: Option<u64>,
) -> Result<(), PythonUnsupported> {
    let validation = Validation { memory, layout, wire, code_type };
    let mut result = validation.interpreters();
    for _ in 1..MAX_ATTEMPTS {
        if result == Err(PythonUnsupported::Implausible) {
            result = validation.interpreters();
        }
    }
    result
}

/// Context of a validation.
struct Validation<'a, M> {
    memory: &'a M,
    layout: &'a PythonLayout,
    wire: &'a WirePython,
    code_type: Option<u64>,
}

/// Counts of valid and invalid threads and frames.
#[derive(Default)]
struct ValidationCounts {
    threads: usize,
    bad_threads: usize,
    frames: usize,
    bad_frames: usize,
}

impl<M: MemoryReader> Validation<'_, M> {
    fn interpreters(&self) -> Result<(), PythonUnsupported> {
        let mut at =
            self.memory.word(self.wire.interpreters).ok_or(PythonUnsupported::Unreadable)?;
        let mut counts = ValidationCounts::default();
        for _ in 0..MAX_INTERPRETERS {
            if at == 0 {
                break;
            }
            at = self.interpreter(at, &mut counts).ok_or(PythonUnsupported::Implausible)?;
        }
        match counts {
            ValidationCounts { threads: 0, bad_threads: 0, .. } => {
                Err(PythonUnsupported::NotReadyYet)
            }
            ValidationCounts { threads: 0, .. }
            | ValidationCounts { frames: 0, bad_frames: 1.., .. } => {
                Err(PythonUnsupported::Implausible)
            }
            _ => Ok(()),
        }
    }

    /// Checks the threads of an interpreter, and returns the next interpreter.
    fn interpreter(&self, interpreter: u64, counts: &mut ValidationCounts) -> Option<u64> {
        let mut thread = self.memory.word_at(interpreter, self.layout.threads)?;
        for _ in 0..MAX_THREADS {
            if thread == 0 {
                break;
            }
            if self.memory.word_at(thread, self.layout.thread_interpreter)? != interpreter {
                return None;
            }
            match self.memory.word_at(thread, self.layout.thread_id)? {
                // Not bound to a system thread yet.
                0 => {}
                id if self.is_thread(id) => counts.threads += 1,
                _ => counts.bad_threads += 1,
            }
            self.frames(thread, counts);
            thread = self.memory.word_at(thread, self.layout.thread_next)?;
        }
        self.memory.word_at(interpreter, self.layout.interpreter_next)
    }

    /// Returns whether an id is that of a thread. On x86-64, and with musl, it points to a pointer
    /// to itself; on arm64, glibc's structure of a thread is an entry of a doubly linked list.
    fn is_thread(&self, id: u64) -> bool {
        let entry = id.wrapping_add(GLIBC_THREAD_LIST);
        let is_listed = || self.memory.word(self.memory.word(entry)?.wrapping_add(8));
        self.memory.word(id) == Some(id) || is_listed() == Some(entry)
    }

    fn frames(&self, thread: u64, counts: &mut ValidationCounts) -> Option<()> {
        let layout = self.layout;
        let mut frame = self.memory.word_at(thread, layout.thread_frame)?;
        if let Some(inside) = layout.frame_of.filter(|_| frame != 0) {
            frame = self.memory.word_at(frame, inside)?;
        }
        for _ in 0..FRAMES_CHECKED {
            if frame == 0 {
                break;
            }
            let words = self.memory.block(frame, layout.frame_bytes(), usize::MAX);
            let Some(words) = words else {
                counts.bad_frames += 1;
                break;
            };
            let owner = match layout.entry {
                EntryFrameRule::Shim(owner) => words.get(usize::from(owner)).copied(),
                EntryFrameRule::Every | EntryFrameRule::Marked(_) => Some(0),
            };
            if owner < Some(self.wire.owner_entry) {
                if self.is_code(u64_at(&words, layout.frame_code.into())? & !7) {
                    counts.frames += 1;
                } else {
                    counts.bad_frames += 1;
                }
            }
            frame = u64_at(&words, layout.frame_previous.into())?;
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
