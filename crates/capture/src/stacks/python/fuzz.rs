//! Fuzz target: recorded memory of real interpreters with changes.

use std::cell::Cell;
use std::sync::OnceLock;

use super::detect::examine;
use super::memory::MemoryReader;
use super::symbolizer::PythonCode;
use super::tests::image::{Image, MemoryPieces, images};
use super::tests::walker::walk;
use crate::fuzz::Input;

/// Number of threads whose stacks are read.
const THREADS: usize = 3;

/// Counts the reads.
struct Counting<M> {
    inner: M,
    reads: Cell<usize>,
    bytes: Cell<usize>,
}

impl<M: MemoryReader> MemoryReader for Counting<M> {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.reads.set(self.reads.get() + 1);
        self.bytes.set(self.bytes.get() + into.len());
        self.inner.read(address, into)
    }
}

/// Examines a process and symbolizes the stacks of some of its threads. Returns the number of
/// frames.
pub(super) fn resolve_all(image: &Image, memory: impl MemoryReader, threads: usize) -> usize {
    let memory = Counting { inner: memory, reads: Cell::new(0), bytes: Cell::new(0) };
    let mut frames = 0;
    if let Ok(interpreter) = examine(image.anchor.clone(), &memory) {
        let mut code = PythonCode::new(interpreter.layout, &memory);
        for thread in image.threads.iter().take(threads) {
            for found in walk(&memory, &interpreter.wire, thread.id) {
                frames += usize::from(code.frame(&found).is_some());
            }
        }
    }
    assert!(memory.reads.get() < 10_000 * (threads + 1), "{} reads", memory.reads.get());
    assert!(memory.bytes.get() < (256 << 20) * (threads + 1), "{} bytes", memory.bytes.get());
    frames
}

/// Recorded memory with changes.
struct ChangedMemory<'a> {
    memory: &'a MemoryPieces,
    changes: Vec<(u64, Vec<u8>)>,
}

impl MemoryReader for ChangedMemory<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        if !self.memory.read(address, into) {
            return false;
        }
        for (at, new) in &self.changes {
            let skip = at.saturating_sub(address) as usize;
            let old = into.iter_mut().skip(skip);
            let new = new.iter().skip(address.saturating_sub(*at) as usize);
            old.zip(new).for_each(|(old, new)| *old = *new);
        }
        true
    }
}

/// An image, and its pieces of memory as if they were next to each other.
struct Layout {
    image: Image,
    /// Position and address of each piece.
    pieces: Vec<(usize, u64)>,
    total: usize,
}

impl Layout {
    fn new(image: Image) -> Self {
        let mut total = 0;
        let pieces = image.memory.0.iter().map(|(start, piece)| {
            total += piece.len();
            (total - piece.len(), *start)
        });
        Self { pieces: pieces.collect(), total, image }
    }

    /// Returns the address of the byte at a position.
    fn address(&self, position: u16) -> Option<u64> {
        let position = usize::from(position).checked_rem(self.total)?;
        let after = self.pieces.partition_point(|(first, _)| *first <= position);
        let (first, start) = self.pieces.get(after.checked_sub(1)?)?;
        Some(start + (position - first) as u64)
    }
}

/// Symbolizes the stacks of a recorded interpreter after changes of its memory. The input is the
/// number of the image, and changes: a position, and bytes or the position that a pointer is to
/// lead to. Returns whether a frame was found.
pub(crate) fn python(bytes: &[u8]) -> bool {
    static LAYOUTS: OnceLock<Vec<Layout>> = OnceLock::new();
    let mut input = Input(bytes);
    let layouts = LAYOUTS.get_or_init(|| images().into_iter().map(Layout::new).collect());
    let Some(layout) = input.byte().and_then(|n| layouts.get(usize::from(n) % layouts.len()))
    else {
        return false;
    };
    let mut memory = ChangedMemory { memory: &layout.image.memory, changes: Vec::new() };
    while let (Some(kind), Some(at)) = (input.byte(), input.short()) {
        let Some(at) = layout.address(at) else { break };
        let value = match kind % 2 {
            0 => input.take(usize::from(kind / 2) % 32 + 1).to_vec(),
            _ => {
                let target = input.short().and_then(|position| layout.address(position));
                target.unwrap_or(0).to_le_bytes().to_vec()
            }
        };
        memory.changes.push((at, value));
    }
    resolve_all(&layout.image, memory, THREADS) > 0
}

/// Searches a file for an interpreter. Returns whether it has one.
pub(crate) fn elf(file: &[u8]) -> bool {
    super::elf::read(file).is_some_and(|elf| elf.bias(&[]).is_none())
}
