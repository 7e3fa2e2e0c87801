//! The walk of the probes, implemented in user space; see `bpf/python.h`.

use crate::stacks::python::memory::MemoryReader;
use crate::wire::{VS_NONE, WirePython, WirePythonFrame};

const MAX_FRAMES: usize = 128;
const MAX_THREADS: usize = 512;
const WORDS: usize = 16;

/// Finds the state of a thread by its `pthread_self()`.
fn thread(memory: &impl MemoryReader, python: &WirePython, own: u64) -> u64 {
    let word = |address: u64, offset: u16| memory.word_at(address, offset).unwrap_or(0);
    let mut interpreter = memory.word(python.interpreters).unwrap_or(0);
    let mut state = if interpreter == 0 { 0 } else { word(interpreter, python.threads) };
    for _ in 0..MAX_THREADS {
        if state == 0 {
            if interpreter != 0 {
                interpreter = word(interpreter, python.interpreter_next);
            }
            if interpreter == 0 {
                return 0;
            }
            state = word(interpreter, python.threads);
        } else if word(state, python.thread_id) == own {
            return state;
        } else {
            state = word(state, python.thread_next);
        }
    }
    0
}

/// Returns the frames of a thread, innermost first, as the probes would send them.
pub(in crate::stacks::python) fn walk(
    memory: &impl MemoryReader,
    python: &WirePython,
    own: u64,
) -> Vec<WirePythonFrame> {
    let state = thread(memory, python, own);
    let mut frame = memory.word_at(state, python.thread_frame).unwrap_or(0);
    if frame != 0 && python.frame_of != u16::MAX {
        frame = memory.word_at(frame, python.frame_of).unwrap_or(0);
    }
    let mut frames = Vec::new();
    while frames.len() < MAX_FRAMES && frame != 0 {
        let length = if python.every_is_entry == 1 { 112 } else { 80 };
        let mut bytes = [0; WORDS * 8];
        if !memory.read(frame, &mut bytes[..length]) {
            break;
        }
        frame = word(&bytes, python.frame_previous);
        frames.push(one(memory, python, &bytes));
    }
    frames
}

fn one(memory: &impl MemoryReader, python: &WirePython, bytes: &[u8]) -> WirePythonFrame {
    let byte = |at: u8| bytes[usize::from(at) & (WORDS * 8 - 1)];
    let mut found =
        WirePythonFrame { code: 0, instruction: 0, name: 0, lines: 0, first_line: 0, entry: 1 };
    if byte(python.frame_owner) >= python.owner_entry {
        return found;
    }
    found.code = word(bytes, python.frame_code) & !7;
    found.instruction = word(bytes, python.frame_instruction);
    found.entry = python.every_is_entry.into();
    if usize::from(python.frame_is_entry) != VS_NONE {
        found.entry = (byte(python.frame_is_entry) & 1).into();
    }
    let mut code = [0; WORDS * 8];
    if memory.read(found.code.wrapping_add(python.code_from.into()), &mut code[..96]) {
        found.name = word(&code, python.code_name);
        found.lines = word(&code, python.code_lines);
        let at = usize::from(python.code_first_line) % (WORDS * 2) * 4;
        found.first_line = u32::from_le_bytes(*code[at..].first_chunk().unwrap());
    }
    found
}

fn word(bytes: &[u8], index: u8) -> u64 {
    let at = usize::from(index) % WORDS * 8;
    u64::from_le_bytes(*bytes[at..].first_chunk().unwrap())
}
