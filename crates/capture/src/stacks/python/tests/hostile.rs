//! Corrupt memory: no panic, and bounded work.

use std::cell::Cell;

use super::image::{MemoryPieces, images};
use super::recorded::interpreter;
use super::walker::walk;
use crate::stacks::python::fuzz::resolve_all;
use crate::stacks::python::memory::MemoryReader;
use crate::stacks::python::symbolizer::PythonCode;
use crate::wire::WirePythonFrame;

fn flipped(pieces: &MemoryPieces, flip: impl Fn(&mut u8)) -> impl Iterator<Item = MemoryPieces> {
    let positions: Vec<_> = pieces
        .0
        .iter()
        .flat_map(|(&start, piece)| (0..piece.len()).map(move |at| (start, at)))
        .collect();
    let mut pieces = pieces.clone();
    positions.into_iter().map(move |(start, at)| {
        let byte = &mut pieces.0.get_mut(&start).unwrap()[at];
        let before = *byte;
        flip(byte);
        let changed = pieces.clone();
        pieces.0.get_mut(&start).unwrap()[at] = before;
        changed
    })
}

#[test]
fn corrupt_bytes_do_not_panic() {
    for image in images() {
        for memory in flipped(&image.memory, |byte| *byte = !*byte) {
            resolve_all(&image, memory, 2);
        }
    }
}

#[test]
fn missing_memory_does_not_panic() {
    for image in images() {
        for start in image.memory.0.keys() {
            let mut memory = image.memory.clone();
            memory.0.remove(start);
            resolve_all(&image, memory, image.threads.len());
        }
    }
}

/// Memory in which every word is a function of its address.
struct Everywhere(fn(u64) -> u64);

impl MemoryReader for Everywhere {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        for (at, byte) in (address..=u64::MAX).zip(into) {
            *byte = (self.0)(at & !7).to_le_bytes()[(at & 7) as usize];
        }
        true
    }
}

#[test]
fn walk_of_arbitrary_memory_terminates() {
    let mixed = |at: u64| (at ^ 0x5bd1_e995).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for words in [|at| at, |_| 0, |_| u64::MAX, |at: u64| at.wrapping_add(64), mixed] {
        for image in images() {
            resolve_all(&image, Everywhere(words), 2);
            // The interpreter is valid, but nothing else is.
            let interpreter = interpreter(&image).unwrap();
            let memory = Everywhere(words);
            let mut code = PythonCode::new(interpreter.layout, &memory);
            for found in walk(&memory, &interpreter.wire, 0) {
                code.frame(&found);
            }
        }
    }
}

/// Memory with a code object at every address, with the longest line table.
struct Endless {
    reads: Cell<usize>,
}

const NAME: u64 = 1 << 40;
const TABLE: u64 = 2 << 40;

impl MemoryReader for Endless {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.reads.set(self.reads.get() + 1);
        into.fill(0);
        let mut put = |at: u64, word: u64| {
            let at = usize::try_from(at).unwrap();
            if let Some(target) = into.get_mut(at..at + 8) {
                target.copy_from_slice(&word.to_le_bytes());
            }
        };
        match address {
            NAME => put(32, 0x64),
            TABLE.. => put(0, 1 << 20),
            _ => {
                put(128, NAME);
                put(136, TABLE);
            }
        }
        true
    }
}

#[test]
fn cache_of_a_process_is_bounded() {
    let interpreter = interpreter(&images()[3]).unwrap();
    let memory = Endless { reads: Cell::new(0) };
    let mut code = PythonCode::new(interpreter.layout, &memory);
    let mut is_read = |number: u64| {
        let before = memory.reads.get();
        let found = WirePythonFrame {
            code: number * 4096,
            instruction: 0,
            name: NAME,
            lines: TABLE,
            first_line: 0,
            entry: 0,
        };
        assert_eq!(code.frame(&found).unwrap().unknown, None);
        memory.reads.get() > before
    };
    assert!(is_read(1));
    assert!(!is_read(1), "cached");
    for number in 2..=16 {
        is_read(number);
    }
    assert!(!is_read(1), "cached up to 16 MiB");
    is_read(17);
    assert!(is_read(1), "dropped");
}
