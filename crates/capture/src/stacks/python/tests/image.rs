//! Recorded memory of a process, to be read without it.
#![cfg_attr(not(test), allow(dead_code, reason = "only tests write images"))]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;

use crate::stacks::python::detect::InterpreterAnchor;
use crate::stacks::python::memory::MemoryReader;
use crate::stacks::python::version;

const TEXTS: [&str; 7] = [
    include_str!("../../../../tests/python_images/3.9.image"),
    include_str!("../../../../tests/python_images/3.10.image"),
    include_str!("../../../../tests/python_images/3.11.image"),
    include_str!("../../../../tests/python_images/3.12.image"),
    include_str!("../../../../tests/python_images/3.13.image"),
    include_str!("../../../../tests/python_images/3.14.image"),
    include_str!("../../../../tests/python_images/3.15.image"),
];

/// Memory that records what is read.
pub(in crate::stacks::python) struct Recorder<M> {
    pub(in crate::stacks::python) inner: M,
    pub(in crate::stacks::python) seen: RefCell<BTreeMap<u64, u8>>,
}

impl<M: MemoryReader> MemoryReader for Recorder<M> {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let read = self.inner.read(address, into);
        if read {
            self.seen.borrow_mut().extend((address..).zip(into.iter().copied()));
        }
        read
    }
}

/// A thread as Python itself reports it.
#[derive(Clone, Debug)]
pub(in crate::stacks::python) struct ExpectedThread {
    pub(in crate::stacks::python) id: u64,
    pub(in crate::stacks::python) name: String,
    pub(in crate::stacks::python) frames: Vec<ExpectedFrame>,
}

/// A frame as Python itself reports it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::stacks::python) struct ExpectedFrame {
    pub(in crate::stacks::python) line: u32,
    pub(in crate::stacks::python) file: String,
    pub(in crate::stacks::python) function: String,
}

/// Parses the output of `chains.py`.
pub(in crate::stacks::python) fn threads(lines: &str) -> Vec<ExpectedThread> {
    let mut threads: Vec<ExpectedThread> = Vec::new();
    for line in lines.lines() {
        let words: Vec<_> = line.split('\t').collect();
        match words[..] {
            ["thread", id, name] => {
                let id = u64::from_str_radix(id, 16).unwrap();
                threads.push(ExpectedThread { id, name: name.to_owned(), frames: Vec::new() });
            }
            ["frame", line, file, function] => {
                threads.last_mut().unwrap().frames.push(ExpectedFrame {
                    line: line.parse().unwrap(),
                    file: file.to_owned(),
                    function: function.to_owned(),
                });
            }
            _ => {}
        }
    }
    threads
}

/// A recorded process.
#[derive(Clone)]
pub(in crate::stacks::python) struct Image {
    pub(in crate::stacks::python) anchor: InterpreterAnchor,
    pub(in crate::stacks::python) threads: Vec<ExpectedThread>,
    pub(in crate::stacks::python) memory: MemoryPieces,
}

/// Pieces of memory, by their first address; no two of them touch.
#[derive(Clone, Default)]
pub(in crate::stacks::python) struct MemoryPieces(
    pub(in crate::stacks::python) BTreeMap<u64, Vec<u8>>,
);

impl MemoryReader for MemoryPieces {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let Some((start, piece)) = self.0.range(..=address).next_back() else { return false };
        let from = usize::try_from(address - start).unwrap();
        let Some(found) = piece.get(from..).and_then(|rest| rest.get(..into.len())) else {
            return false;
        };
        into.copy_from_slice(found);
        true
    }
}

impl MemoryPieces {
    fn joined(bytes: &BTreeMap<u64, u8>) -> Self {
        let mut pieces: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for (&address, &byte) in bytes {
            match pieces.iter_mut().next_back() {
                Some((start, piece)) if start + piece.len() as u64 == address => piece.push(byte),
                _ => {
                    pieces.insert(address, vec![byte]);
                }
            }
        }
        Self(pieces)
    }

    /// Overwrites recorded bytes.
    pub(in crate::stacks::python) fn set(&mut self, address: u64, bytes: &[u8]) {
        let (start, piece) = self.0.range_mut(..=address).next_back().unwrap();
        let from = usize::try_from(address - start).unwrap();
        piece[from..from + bytes.len()].copy_from_slice(bytes);
    }
}

/// Formats an image: the anchor, the output of `chains.py`, and a line per piece of memory.
pub(in crate::stacks::python) fn write(
    anchor: &InterpreterAnchor,
    output: &str,
    seen: &BTreeMap<u64, u8>,
) -> String {
    let mut text = String::from("python image 1\n");
    writeln!(text, "runtime\t{:x}", anchor.runtime).unwrap();
    if let Some(version) = anchor.version {
        writeln!(text, "version\t{version:x}").unwrap();
    }
    if let Some(version) = anchor.file_version {
        writeln!(text, "file_name\tpython{version}").unwrap();
    }
    writeln!(text, "type\t{:x}", anchor.code_type.unwrap()).unwrap();
    let is_kept = |line: &&str| line.starts_with("thread") || line.starts_with("frame");
    for line in output.lines().filter(is_kept) {
        writeln!(text, "{line}").unwrap();
    }
    for (address, piece) in MemoryPieces::joined(seen).0 {
        writeln!(text, "{address:x}\t{}", digits(&piece)).unwrap();
    }
    text
}

/// Encodes bytes with two digits each; letters from `g` on stand for 2 zeros, 3 and so on.
fn digits(mut bytes: &[u8]) -> String {
    let mut text = String::new();
    while let Some((&byte, rest)) = bytes.split_first() {
        let zeros = bytes.iter().take(20).take_while(|&&byte| byte == 0).count();
        if zeros >= 2 {
            text.push(char::from(b'g' + zeros as u8 - 2));
            bytes = &bytes[zeros..];
        } else {
            write!(text, "{byte:02x}").unwrap();
            bytes = rest;
        }
    }
    text
}

fn bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.bytes().next() {
        let length = if first >= b'g' {
            bytes.extend(std::iter::repeat_n(0, usize::from(first - b'g') + 2));
            1
        } else {
            bytes.push(u8::from_str_radix(&rest[..2], 16).unwrap());
            2
        };
        rest = &rest[length..];
    }
    bytes
}

/// Parses an image.
pub(in crate::stacks::python) fn read(text: &str) -> Image {
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("python image 1"));
    let hexadecimal = |text| u64::from_str_radix(text, 16).unwrap();
    let mut anchor =
        InterpreterAnchor { runtime: 0, version: None, file_version: None, code_type: None };
    let mut memory = MemoryPieces::default();
    for line in lines {
        let (word, rest) = line.split_once('\t').unwrap();
        match word {
            "runtime" => anchor.runtime = hexadecimal(rest),
            "version" => anchor.version = Some(hexadecimal(rest)),
            "file_name" => anchor.file_version = version::of_file_name(rest),
            "type" => anchor.code_type = Some(hexadecimal(rest)),
            "thread" | "frame" => {}
            address => {
                memory.0.insert(hexadecimal(address), bytes(rest));
            }
        }
    }
    Image { anchor, threads: threads(text), memory }
}

/// All images, oldest version first.
pub(in crate::stacks::python) fn images() -> Vec<Image> {
    TEXTS.iter().map(|text| read(text)).collect()
}
