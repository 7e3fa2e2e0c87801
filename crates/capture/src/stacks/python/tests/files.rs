//! ELF files with and without an interpreter.

use engine::model::ids::Pid;

use crate::files::{Mapping, parse};
use crate::stacks::python::elf::{InterpreterElf, read};
use crate::stacks::python::version::PythonVersion;

/// A small ELF file: a readable segment, an executable one, and given sections.
struct File {
    fixed: bool,
    first_address: u64,
    dynamic: bool,
    symbols: Vec<(&'static str, u64)>,
    sections: Vec<(&'static str, u64)>,
    constants: &'static [u8],
}

const COMPLETE: File = File {
    fixed: false,
    first_address: 0x10000,
    dynamic: true,
    symbols: Vec::new(),
    sections: Vec::new(),
    constants: b"\0/usr/lib/python3.10\0",
};

impl File {
    fn bytes(&self) -> Vec<u8> {
        let mut names = vec![0];
        let mut symbols = vec![0; 24];
        for (name, address) in &self.symbols {
            symbols.extend_from_slice(&(names.len() as u32).to_le_bytes());
            symbols.extend_from_slice(&[0x11, 0, 1, 0]);
            symbols.extend_from_slice(&address.to_le_bytes());
            symbols.extend_from_slice(&[0; 8]);
            names.extend_from_slice(name.as_bytes());
            names.push(0);
        }
        let mut out = vec![0; 64];
        self.segments(&mut out);
        let own = [".symbols", ".names", ".rodata"].into_iter();
        let own = own.chain(self.sections.iter().map(|(name, _)| *name)).chain([".own"]);
        let own = format!("\0{}\0", own.collect::<Vec<_>>().join("\0"));
        let mut name_at = 1;
        let mut table = vec![0; 64];
        let kind = if self.dynamic { 11 } else { 2 };
        let mut add = |name: &str, kind: u32, address: u64, link: u32, data: &[u8]| {
            let words = [u64::from(kind) << 32 | name_at, 0, address];
            let rest = [out.len() as u64, data.len() as u64, u64::from(link), 0, 0];
            table.extend(words.iter().chain(&rest).flat_map(|word| word.to_le_bytes()));
            name_at += name.len() as u64 + 1;
            out.extend_from_slice(data);
        };
        add(".symbols", kind, 0, 2, &symbols);
        add(".names", 3, 0, 0, &names);
        add(".rodata", 1, 0, 0, self.constants);
        for (name, address) in &self.sections {
            add(name, 1, *address, 0, &[]);
        }
        add(".own", 3, 0, 0, own.as_bytes());
        let count = table.len() / 64;
        let at = out.len() as u64;
        out.extend_from_slice(&table);
        self.head(&mut out, at, count as u16);
        out
    }

    fn segments(&self, out: &mut Vec<u8>) {
        for (executable, offset) in [(0_u32, 0_u64), (1, 0x1234)] {
            out.extend_from_slice(&1_u32.to_le_bytes());
            out.extend_from_slice(&(4 | executable).to_le_bytes());
            let address = self.first_address + offset;
            for word in [offset, address, address, 0x1000, 0x1000, 0x1000] {
                out.extend_from_slice(&word.to_le_bytes());
            }
        }
    }

    fn head(&self, out: &mut [u8], sections: u64, count: u16) {
        out[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        out[16] = if self.fixed { 2 } else { 3 };
        out[32..40].copy_from_slice(&64_u64.to_le_bytes());
        out[40..48].copy_from_slice(&sections.to_le_bytes());
        for (at, value) in [(54, 56), (56, 2), (58, 64), (60, count), (62, count - 1)] {
            out[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
    }

    fn read(&self) -> Option<InterpreterElf> {
        read(&self.bytes())
    }
}

fn mapping(start: u64, offset: u64, executable: bool) -> Mapping {
    let mode = if executable { "r-xp" } else { "r--p" };
    let line = format!("{start:x}-{:x} {mode} {offset:x} fe:00 1 /p", start + 0x1000);
    parse(Pid(1), line.as_bytes(), |_, _| true).next().unwrap()
}

#[test]
fn interpreter_is_found_by_symbols() {
    let symbols = vec![("_PyRuntimes", 1), ("_PyRuntime", 0x20), ("PyCode_Type", 0x30)];
    for dynamic in [true, false] {
        let elf = File { symbols: symbols.clone(), dynamic, ..COMPLETE }.read().unwrap();
        assert_eq!((elf.runtime, elf.code_type), (0x20, Some(0x30)));
        let version = (elf.version, elf.constant_version);
        assert_eq!(version, (None, Some(PythonVersion::three(10))));
    }
    let symbols = vec![("Py_Version", 0x40), ("_PyRuntime", 0x20)];
    let elf = File { symbols, ..COMPLETE }.read().unwrap();
    assert_eq!((elf.version, elf.constant_version), (Some(0x40), None));
}

#[test]
fn interpreter_of_stripped_file_is_found_by_section() {
    let elf = File { sections: vec![(".PyRuntime", 0x50)], ..COMPLETE }.read().unwrap();
    assert_eq!(elf.runtime, 0x50);
}

#[test]
fn other_files_have_no_interpreter() {
    assert_eq!(File { symbols: vec![("main", 1)], ..COMPLETE }.read(), None);
    assert_eq!(read(b"#!/bin/sh\n"), None);
    assert_eq!(read(b""), None);
}

#[test]
fn load_bias_follows_from_mappings() {
    let symbols = vec![("_PyRuntime", 0x10020)];
    let moved = File { symbols: symbols.clone(), ..COMPLETE }.read().unwrap();
    // The virtual address of the first segment is 0x10000.
    let both = [mapping(0x7000_0000, 0, false), mapping(0x7000_1000, 0x1000, true)];
    assert_eq!(moved.bias(&both), Some(0x7000_0000 - 0x10000));
    assert_eq!(moved.bias(&both[1..]), Some(0x7000_0000 - 0x10000));
    assert_eq!(moved.bias(&[]), None);
    assert_eq!(moved.bias(&[mapping(0x7000_0000, 0x20_0000, true)]), None);
    let fixed = File { fixed: true, symbols, ..COMPLETE }.read().unwrap();
    assert_eq!(fixed.bias(&both), Some(0));
    // Addresses that wrap around do not panic.
    moved.bias(&[mapping(0, 0, false)]);
}

#[test]
fn corrupt_files_do_not_panic() {
    let symbols = vec![("_PyRuntime", 0x20), ("Py_Version", 0x30), ("PyCode_Type", 0x40)];
    let file = File { symbols, sections: vec![(".PyRuntime", 0x20)], ..COMPLETE }.bytes();
    let mappings = [mapping(0x7000_0000, 0, false), mapping(u64::MAX - 0x1000, 0x1000, true)];
    for at in 0..file.len() {
        assert!(read(&file[..at]).is_none_or(|elf| elf.runtime == 0x20));
        for value in [0, 1, 0x7f, 0x80, 0xff, !file[at]] {
            let mut wrong = file.clone();
            wrong[at] = value;
            read(&wrong).and_then(|elf| elf.bias(&mappings));
        }
    }
}
