//! Memory and files in which anything may stand: no panic, and an end.

use std::cell::Cell;

use engine::ids::Pid;

use super::image::{Image, Pieces};
use super::recorded::{images, interpreter};
use super::walker::walk;
use crate::stacks::python::code::Names;
use crate::stacks::python::find::examine;
use crate::stacks::python::memory::Memory;
use crate::wire::WirePythonFrame;

/// Counts what is asked of it.
struct Counting<M> {
    inner: M,
    reads: Cell<usize>,
    bytes: Cell<usize>,
}

impl<M: Memory> Memory for Counting<M> {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.reads.set(self.reads.get() + 1);
        self.bytes.set(self.bytes.get() + into.len());
        self.inner.read(address, into)
    }
}

/// Everything that can be done with a process, on some of its threads.
fn use_it(image: &Image, memory: impl Memory, threads: usize) {
    let memory = Counting { inner: memory, reads: Cell::new(0), bytes: Cell::new(0) };
    if let Ok(interpreter) = examine(image.anchor.clone(), &memory) {
        let mut names = Names::default();
        names.add(Pid(1), &interpreter, &memory);
        for thread in image.told.iter().take(threads) {
            for found in walk(&memory, &interpreter.wire, thread.id) {
                names.frame(Pid(1), &found);
            }
        }
    }
    assert!(memory.reads.get() < 10_000 * (threads + 1), "{} reads", memory.reads.get());
    assert!(memory.bytes.get() < (256 << 20) * (threads + 1), "{} bytes", memory.bytes.get());
}

fn flipped(pieces: &Pieces, flip: impl Fn(&mut u8)) -> impl Iterator<Item = Pieces> {
    let places: Vec<_> = pieces
        .0
        .iter()
        .flat_map(|(&start, piece)| (0..piece.len()).map(move |at| (start, at)))
        .collect();
    let mut pieces = pieces.clone();
    places.into_iter().map(move |(start, at)| {
        let byte = &mut pieces.0.get_mut(&start).unwrap()[at];
        let before = *byte;
        flip(byte);
        let changed = pieces.clone();
        pieces.0.get_mut(&start).unwrap()[at] = before;
        changed
    })
}

#[test]
fn any_byte_of_a_process_may_be_wrong() {
    for image in images() {
        for memory in flipped(&image.memory, |byte| *byte = !*byte) {
            use_it(&image, memory, 2);
        }
    }
}

#[test]
fn any_piece_of_a_process_may_be_missing() {
    for image in images() {
        for start in image.memory.0.keys() {
            let mut memory = image.memory.clone();
            memory.0.remove(start);
            use_it(&image, memory, image.told.len());
        }
    }
}

/// Every word is what a function of its address says.
struct Everywhere(fn(u64) -> u64);

impl Memory for Everywhere {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        for (at, byte) in (address..=u64::MAX).zip(into) {
            *byte = (self.0)(at & !7).to_le_bytes()[(at & 7) as usize];
        }
        true
    }
}

#[test]
fn a_process_that_answers_everything_comes_to_an_end() {
    let mixed = |at: u64| (at ^ 0x5bd1_e995).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for words in [|at| at, |_| 0, |_| u64::MAX, |at: u64| at.wrapping_add(64), mixed] {
        for image in images() {
            use_it(&image, Everywhere(words), 2);
            // As if the beginning were right and all else were not.
            let interpreter = interpreter(&image).unwrap();
            let memory = Everywhere(words);
            let mut names = Names::default();
            names.add(Pid(1), &interpreter, &memory);
            for found in walk(&memory, &interpreter.wire, 0) {
                names.frame(Pid(1), &found);
            }
        }
    }
}

/// Wherever code is said to be there is some, with the longest table of lines.
struct Endless {
    reads: Cell<usize>,
}

const NAME: u64 = 1 << 40;
const TABLE: u64 = 2 << 40;

impl Memory for Endless {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.reads.set(self.reads.get() + 1);
        into.fill(0);
        let mut put = |at: u64, word: u64| {
            let at = usize::try_from(at).unwrap();
            if let Some(place) = into.get_mut(at..at + 8) {
                place.copy_from_slice(&word.to_le_bytes());
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
fn what_is_kept_of_a_process_is_bounded() {
    let interpreter = interpreter(&images()[3]).unwrap();
    let memory = Endless { reads: Cell::new(0) };
    let mut names = Names::default();
    names.add(Pid(1), &interpreter, &memory);
    let mut ask = |number: u64| {
        let before = memory.reads.get();
        let found = WirePythonFrame {
            code: number * 4096,
            instruction: 0,
            name: NAME,
            lines: TABLE,
            first_line: 0,
            entry: 0,
        };
        assert_eq!(names.frame(Pid(1), &found).unwrap().unknown, None);
        memory.reads.get() > before
    };
    assert!(ask(1));
    assert!(!ask(1), "kept");
    for number in 2..=16 {
        ask(number);
    }
    assert!(!ask(1), "kept while it is no more than 16 MiB");
    ask(17);
    assert!(ask(1), "let go");
}
