//! Minimal ELF reader that finds a Python interpreter. The file is not trusted: no size in it is,
//! and memory use is bounded.

use super::maps::Mapping;
use super::memory::{MemoryReader, u32_at, u64_at};
use super::version::{self, PythonVersion};

/// Data symbols that are searched for.
const RUNTIME: &[u8] = b"_PyRuntime";
const VERSION: &[u8] = b"Py_Version";
const CODE_TYPE: &[u8] = b"PyCode_Type";

/// The section of `_PyRuntime`, since 3.10; also in stripped files.
const RUNTIME_SECTION: &[u8] = b".PyRuntime";

const MAX_SECTIONS: u64 = 4096;
const MAX_SYMBOLS: u64 = 1 << 22;
const MAX_STRING_TABLE_BYTES: usize = 64 << 20;
const MAX_RODATA_BYTES: usize = 64 << 20;
/// Symbols per read.
const SYMBOLS_PER_READ: u64 = 2730;
/// Size of a symbol.
const SYMBOL_BYTES: u64 = 24;

/// The interpreter in a file, with virtual addresses in the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct InterpreterElf {
    pub(super) runtime: u64,
    /// Address of the version, since 3.11.
    pub(super) version: Option<u64>,
    pub(super) code_type: Option<u64>,
    /// The version from constants in the file, if it has no address.
    pub(super) constant_version: Option<PythonVersion>,
    /// Linked at a fixed address (not position-independent).
    fixed: bool,
    segments: Vec<Segment>,
}

/// A loaded segment.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Segment {
    executable: bool,
    offset: u64,
    address: u64,
}

/// A section of a file.
#[derive(Clone, Debug)]
struct Section {
    name: u32,
    kind: u32,
    address: u64,
    offset: u64,
    size: u64,
    link: u32,
}

const SHT_SYMTAB: u32 = 2;
const SHT_DYNSYM: u32 = 11;

/// Finds the interpreter in a file; `None` if it has none.
pub(super) fn read(file: &impl MemoryReader) -> Option<InterpreterElf> {
    let head: [u8; 64] = file.bytes(0)?;
    // 64 bits, little-endian.
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let fixed = u32_at(&head, 16)? & 0xffff == 2;
    let sections = sections(file, &head)?;
    let mut found = FoundSymbols::default();
    for kind in [SHT_DYNSYM, SHT_SYMTAB] {
        if found.runtime.is_none() {
            let table = sections.iter().find(|section| section.kind == kind);
            table.and_then(|table| {
                found.scan(file, table, sections.get(usize::try_from(table.link).ok()?)?)
            });
        }
    }
    let named = |name: &[u8]| section_named(file, &head, &sections, name);
    let runtime = found.runtime.or_else(|| Some(named(RUNTIME_SECTION)?.address))?;
    let constant_version = if found.version.is_some() {
        None
    } else {
        named(b".rodata").and_then(|section| {
            let length = usize::try_from(section.size).ok()?;
            version::of_constants(&file.block(section.offset, length, MAX_RODATA_BYTES)?)
        })
    };
    Some(InterpreterElf {
        runtime,
        version: found.version,
        code_type: found.code_type,
        constant_version,
        fixed,
        segments: segments(file, &head)?,
    })
}

/// Addresses of the symbols that were found.
#[derive(Default)]
struct FoundSymbols {
    runtime: Option<u64>,
    version: Option<u64>,
    code_type: Option<u64>,
}

impl FoundSymbols {
    fn scan(&mut self, file: &impl MemoryReader, table: &Section, names: &Section) -> Option<()> {
        let names =
            file.block(names.offset, usize::try_from(names.size).ok()?, MAX_STRING_TABLE_BYTES)?;
        let count = (table.size / SYMBOL_BYTES).min(MAX_SYMBOLS);
        let mut first = 0;
        while first < count {
            let batch = (count - first).min(SYMBOLS_PER_READ);
            let from = table.offset.checked_add(first * SYMBOL_BYTES)?;
            let symbols =
                file.block(from, usize::try_from(batch * SYMBOL_BYTES).ok()?, usize::MAX)?;
            for symbol in symbols.chunks_exact(SYMBOL_BYTES as usize) {
                self.observe(symbol, &names);
            }
            first += batch;
        }
        Some(())
    }

    fn observe(&mut self, symbol: &[u8], names: &[u8]) -> Option<()> {
        let kind_and_section = u32_at(symbol, 4)?;
        // Only data symbols that are defined in this file.
        if kind_and_section & 0xf != 1 || kind_and_section >> 16 == 0 {
            return None;
        }
        let name = names.get(u32_at(symbol, 0)? as usize..)?;
        let matches =
            |wanted: &[u8]| name.strip_prefix(wanted).is_some_and(|rest| rest.first() == Some(&0));
        let found = if matches(RUNTIME) {
            &mut self.runtime
        } else if matches(VERSION) {
            &mut self.version
        } else if matches(CODE_TYPE) {
            &mut self.code_type
        } else {
            return None;
        };
        *found = found.or(u64_at(symbol, 8));
        Some(())
    }
}

fn sections(file: &impl MemoryReader, head: &[u8]) -> Option<Vec<Section>> {
    let (offset, count) = (u64_at(head, 40)?, u64::from(u32_at(head, 60)? & 0xffff));
    let (size, count) = (u32_at(head, 58)? & 0xffff, count.min(MAX_SECTIONS));
    if size != 64 {
        return None;
    }
    let table = file.block(offset, usize::try_from(count * 64).ok()?, usize::MAX)?;
    table
        .chunks_exact(64)
        .map(|section| {
            Some(Section {
                name: u32_at(section, 0)?,
                kind: u32_at(section, 4)?,
                address: u64_at(section, 16)?,
                offset: u64_at(section, 24)?,
                size: u64_at(section, 32)?,
                link: u32_at(section, 40)?,
            })
        })
        .collect()
}

fn section_named<'a>(
    file: &impl MemoryReader,
    head: &[u8],
    sections: &'a [Section],
    name: &[u8],
) -> Option<&'a Section> {
    let names = sections.get(usize::from(u16::from_le_bytes(*head.get(62..)?.first_chunk()?)))?;
    let names = file.block(names.offset, usize::try_from(names.size).ok()?, 1 << 20)?;
    sections.iter().find(|section| {
        names
            .get(section.name as usize..)
            .and_then(|rest| rest.strip_prefix(name))
            .is_some_and(|rest| rest.first() == Some(&0))
    })
}

fn segments(file: &impl MemoryReader, head: &[u8]) -> Option<Vec<Segment>> {
    const PT_LOAD: u32 = 1;
    let (offset, size) = (u64_at(head, 32)?, u32_at(head, 54)? & 0xffff);
    let count = u32_at(head, 56)? & 0xffff;
    if size != 56 {
        return None;
    }
    let table = file.block(offset, count as usize * 56, usize::MAX)?;
    let loaded = table.chunks_exact(56).filter(|segment| u32_at(segment, 0) == Some(PT_LOAD));
    loaded
        .map(|segment| {
            Some(Segment {
                executable: u32_at(segment, 4)? & 1 == 1,
                offset: u64_at(segment, 8)?,
                address: u64_at(segment, 16)?,
            })
        })
        .collect()
}

impl InterpreterElf {
    /// Returns the load bias: the difference between addresses in memory and in the file. A mapping
    /// starts with the page in which its segment starts; two segments can start in one page, so
    /// executable ones are distinguished from others.
    pub(super) fn bias(&self, mappings: &[Mapping]) -> Option<u64> {
        const MAX_PAGE_SIZE: u64 = 65536;
        if self.fixed {
            return Some(0);
        }
        let fits = |segment: &&Segment, mapping: &Mapping| {
            segment.executable == mapping.executable
                && segment.offset.checked_sub(mapping.offset).is_some_and(|n| n < MAX_PAGE_SIZE)
        };
        mappings.iter().find_map(|mapping| {
            let near = self.segments.iter().filter(|segment| fits(segment, mapping));
            let segment = near.min_by_key(|segment| segment.offset)?;
            let into = segment.offset - mapping.offset;
            Some(mapping.range.start.wrapping_add(into).wrapping_sub(segment.address))
        })
    }
}
