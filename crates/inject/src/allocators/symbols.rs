//! Functions of allocators in the symbol table of a library, which is not loaded with its code. The
//! file is read and not mapped: a file that shrinks meanwhile would end the program.

use std::ffi::{CStr, OsStr};
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use super::Allocator;
use super::functions::call_of;

/// A function of an allocator.
pub(super) struct Function {
    /// The call that it makes known: `enum vs_block_call`.
    pub(super) call: u32,
    /// Its address, relative to that of the library.
    pub(super) address: u64,
    /// Its code, at most the analyzed part.
    pub(super) code: Vec<u8>,
}

/// The file of a library.
pub(super) struct LibraryFile {
    file: File,
    /// The program headers.
    pub(super) headers: Vec<u8>,
    sections: Vec<u8>,
}

/// Sizes of structures in an ELF file.
const FILE_HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const SECTION_HEADER: usize = 64;
const SYMBOL: usize = 24;
/// Types of sections.
const SHT_SYMTAB: u32 = 2;
const SHT_DYNSYM: u32 = 11;
/// Type of a symbol.
const STT_FUNC: u8 = 2;

/// Bytes that are read at once.
const PART: usize = 1 << 20;
/// Maximum length of a name, as the probes read it.
const MAX_NAME: usize = 256;
/// Maximum number of symbols.
const MAX_SYMBOLS: u64 = 1 << 22;
/// Minimum and maximum bytes of a function that are analyzed.
const MIN_ANALYZED: u64 = 64;
const MAX_ANALYZED: u64 = 4096;

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let mut word = [0; 8];
    word.get_mut(..N)?.copy_from_slice(bytes.get(at..at.checked_add(N)?)?);
    Some(u64::from_le_bytes(word))
}

impl LibraryFile {
    pub(super) fn open(path: &CStr) -> Option<Self> {
        // A pipe in its place must not block the program.
        let mut options = OpenOptions::new();
        let options = options.read(true).custom_flags(libc::O_NONBLOCK);
        let file = options.open(OsStr::from_bytes(path.to_bytes())).ok()?;
        let header = read(&file, 0, FILE_HEADER)?;
        if !header.starts_with(b"\x7fELF\x02\x01") || number::<2>(&header, 58)? != 64 {
            return None;
        }
        let headers = number::<2>(&header, 56)? as usize * PROGRAM_HEADER;
        let headers = read(&file, number::<8>(&header, 32)?, headers)?;
        let sections = number::<2>(&header, 60)? as usize * SECTION_HEADER;
        let sections = read(&file, number::<8>(&header, 40)?, sections)?;
        Some(Self { file, headers, sections })
    }

    /// Returns the functions of an allocator: exported ones, or all. `None`: the file cannot be read.
    pub(super) fn functions(&self, allocator: Allocator, exported: bool) -> Option<Vec<Function>> {
        let kind = if exported { SHT_DYNSYM } else { SHT_SYMTAB };
        let is_table = |section: &&[u8]| number::<4>(section, 4) == Some(kind.into());
        let mut sections = self.sections.chunks_exact(SECTION_HEADER);
        let Some(table) = sections.find(is_table) else { return Some(Vec::new()) };
        let names = number::<4>(table, 40)? as usize * SECTION_HEADER;
        let names = self.sections.get(names..names + SECTION_HEADER)?;
        let names = self.names(allocator, number::<8>(names, 24)?, number::<8>(names, 32)?)?;
        self.symbols(&names, number::<8>(table, 24)?, number::<8>(table, 32)?)
    }

    /// Returns the offsets of the names of an allocator's functions, and their calls. The names are
    /// read first: there can be half a million symbols, and the names of them are not in their order.
    fn names(&self, allocator: Allocator, start: u64, bytes: u64) -> Option<Vec<(u64, u32)>> {
        let mut found = Vec::new();
        let mut at = 0;
        while at < bytes {
            let part = (bytes - at).min(PART as u64);
            let text = read(&self.file, start.checked_add(at)?, part as usize)?;
            let mut offset = 0;
            for name in text.split_inclusive(|byte| *byte == 0) {
                if let Some((0, name)) = name.split_last()
                    && name.len() < MAX_NAME
                    && let Some(call) = call_of(allocator, name)
                {
                    found.push((at + offset, call));
                }
                offset += name.len() as u64;
            }
            // The last name of a part can be cut: the next part begins with it.
            let cut = text.iter().rev().take(MAX_NAME).position(|byte| *byte == 0).unwrap_or(0);
            at += part - if at + part < bytes { cut as u64 } else { 0 };
        }
        Some(found)
    }

    /// Returns the functions with names at these offsets.
    fn symbols(&self, names: &[(u64, u32)], start: u64, bytes: u64) -> Option<Vec<Function>> {
        let mut found = Vec::new();
        if names.is_empty() {
            return Some(found);
        }
        let bytes = bytes.min(MAX_SYMBOLS * SYMBOL as u64);
        let step = PART / SYMBOL * SYMBOL;
        for at in (0..bytes).step_by(step) {
            let part =
                read(&self.file, start.checked_add(at)?, (bytes - at).min(step as u64) as usize)?;
            for symbol in part.chunks_exact(SYMBOL) {
                let offset = number::<4>(symbol, 0)?;
                let Some((_, call)) = names.iter().find(|(name, _)| *name == offset) else {
                    continue;
                };
                let (kind, section) = (number::<1>(symbol, 4)? as u8, number::<2>(symbol, 6)?);
                if kind & 15 == STT_FUNC && section != 0 {
                    let (address, size) = (number::<8>(symbol, 8)?, number::<8>(symbol, 16)?);
                    let code = self.code(address, size)?;
                    found.push(Function { call: *call, address, code });
                }
            }
        }
        Some(found)
    }

    /// Reads the code of a function.
    fn code(&self, address: u64, size: u64) -> Option<Vec<u8>> {
        let segment = |header: &[u8]| {
            let (offset, start) = (number::<8>(header, 8)?, number::<8>(header, 16)?);
            let inside = address.checked_sub(start)?;
            let rest = number::<8>(header, 32)?.checked_sub(inside).filter(|rest| *rest > 0)?;
            let is_loaded = number::<4>(header, 0)? == libc::PT_LOAD.into();
            is_loaded.then(|| Some((offset.checked_add(inside)?, rest)))?
        };
        let (offset, rest) = self.headers.chunks_exact(PROGRAM_HEADER).find_map(segment)?;
        // The bytes of a jump may be those of the next function.
        let bytes = size.clamp(MIN_ANALYZED, MAX_ANALYZED);
        read(&self.file, offset, bytes.min(rest) as usize)
    }
}

fn read(file: &File, at: u64, bytes: usize) -> Option<Vec<u8>> {
    let mut data = vec![0; bytes];
    file.read_exact_at(&mut data, at).ok()?;
    Some(data)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::wire::{VS_BLOCK_RMM_FREE, VS_BLOCK_XLA};

    const XLA: &[u8] =
        b"_ZN3tsl12BFCAllocator10AddTraceMeESt17basic_string_viewIcSt11char_traitsIcEEPKvll";
    const RMM: &[u8] = b"_ZN3rmm2mr6detail25pool_memory_resource_impl10free_blockEPvm";

    /// Returns a file without a name.
    fn file(bytes: &[u8]) -> File {
        let path = std::env::temp_dir().join(format!("vramscope-test-{}", std::process::id()));
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn names_at_every_place_of_a_part_are_found() {
        // Around the end of the first part, and at the end of the table.
        for start in [1, PART - XLA.len(), PART - 10, PART - 1, PART, PART + 1] {
            let mut names = vec![0; start];
            // A long name that is not wanted.
            names[..start - 1].fill(b'a');
            names
                .extend([XLA, b"\0", b"_ZN3tsl12BFCAllocator\0", XLA, b"v\0", RMM, b"\0"].concat());
            let file =
                LibraryFile { file: file(&names), headers: Vec::new(), sections: Vec::new() };
            let found = file.names(Allocator::Xla, 0, names.len() as u64);
            assert_eq!(found, Some(vec![(start as u64, VS_BLOCK_XLA)]), "{start}");
            let last = (names.len() - RMM.len() - 1) as u64;
            let found = file.names(Allocator::Rmm, 0, names.len() as u64);
            assert_eq!(found, Some(vec![(last, VS_BLOCK_RMM_FREE)]), "{start}");
            assert_eq!(file.names(Allocator::Rmm, 0, names.len() as u64 + 1), None);
        }
    }

    #[test]
    fn files_that_are_not_libraries_are_unreadable() {
        for path in [c"/dev/null", c"/nonexistent", c"/proc/self/maps", c"/"] {
            assert!(LibraryFile::open(path).is_none(), "{path:?}");
        }
    }
}
