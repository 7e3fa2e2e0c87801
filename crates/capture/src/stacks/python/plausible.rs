//! Whether structures are what they are taken for: pointers lead back, threads are threads, and
//! frames have code.

use super::find::NoPython;
use super::layout::{Entry, Layout};
use super::memory::{Memory, word_of};
use crate::wire::WirePython;

/// The process runs meanwhile, so a structure can change while it is read.
const TRIES: usize = 3;
const MOST_THREADS: usize = 64;
/// Frames of a thread that are looked at.
const FRAMES: usize = 4;

/// Checks the first interpreter of a process.
pub(super) fn check(
    memory: &impl Memory,
    layout: &Layout,
    wire: &WirePython,
    code_type: Option<u64>,
) -> Result<(), NoPython> {
    let look = Look { memory, layout, wire, code_type };
    let mut result = look.interpreter();
    for _ in 1..TRIES {
        if result == Err(NoPython::Implausible) {
            result = look.interpreter();
        }
    }
    result
}

struct Look<'a, M> {
    memory: &'a M,
    layout: &'a Layout,
    wire: &'a WirePython,
    code_type: Option<u64>,
}

/// What was seen of frames: how many had code, how many had something else.
#[derive(Default)]
struct Seen {
    good: usize,
    bad: usize,
}

impl<M: Memory> Look<'_, M> {
    fn interpreter(&self) -> Result<(), NoPython> {
        let odd = NoPython::Implausible;
        let interpreter = self.memory.word(self.wire.interpreters).ok_or(NoPython::Unreadable)?;
        if interpreter == 0 {
            return Err(NoPython::NotReadyYet);
        }
        let mut thread =
            self.memory.word_at(interpreter, self.layout.threads).ok_or(odd.clone())?;
        let (mut threads, mut frames) = (Seen::default(), Seen::default());
        for _ in 0..MOST_THREADS {
            if thread == 0 {
                break;
            }
            let back = self.memory.word_at(thread, self.layout.thread_interpreter);
            if back != Some(interpreter) {
                return Err(odd);
            }
            match self.memory.word_at(thread, self.layout.thread_id) {
                // Not bound to a thread of the system yet.
                Some(0) => {}
                Some(id) if self.is_thread(id) => threads.good += 1,
                _ => threads.bad += 1,
            }
            self.frames(thread, &mut frames);
            thread = self.memory.word_at(thread, self.layout.thread_next).ok_or(odd.clone())?;
        }
        match (threads, frames) {
            (Seen { good: 0, bad: 0 }, _) => Err(NoPython::NotReadyYet),
            (Seen { good: 0, .. }, _) => Err(odd),
            (_, Seen { good: 0, bad: 1.. }) => Err(odd),
            _ => Ok(()),
        }
    }

    /// By the ABI of x86-64, what the thread pointer points to is a pointer to itself.
    fn is_thread(&self, id: u64) -> bool {
        !cfg!(target_arch = "x86_64") || self.memory.word(id) == Some(id)
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
                seen.bad += 1;
                break;
            };
            let owner = match layout.entry {
                Entry::Shim(owner) => words.get(usize::from(owner)).copied(),
                Entry::Every | Entry::Marked(_) => Some(0),
            };
            if owner < Some(self.wire.owner_entry) {
                if self.is_code(word_of(&words, layout.frame_code.into())? & !7) {
                    seen.good += 1;
                } else {
                    seen.bad += 1;
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
