//! Finds a Python interpreter in an ELF file. The file is not trusted: it is mapped, and what is
//! searched in it is bounded.

use object::elf::STT_OBJECT;
use object::read::elf::Sym;
use object::{Object, ObjectKind, ObjectSection, ObjectSegment};

use super::version::{self, PythonVersion};
use crate::files::{Elf, Mapping, symbols};

/// The section of `_PyRuntime`, since 3.10; also in stripped files.
const RUNTIME_SECTION: &str = ".PyRuntime";

/// Maximum bytes of constants that are searched for a version.
const MAX_RODATA_BYTES: u64 = 64 << 20;

/// The interpreter in a file, with virtual addresses in the file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
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

/// Finds the interpreter in a file; `None` if it has none.
pub(super) fn read(file: &[u8]) -> Option<InterpreterElf> {
    let elf = Elf::parse(file).ok()?;
    let mut found = InterpreterElf::default();
    if !found.scan_symbols(&elf, true) && !found.scan_symbols(&elf, false) {
        found.runtime = elf.section_by_name(RUNTIME_SECTION)?.address();
    }
    if found.version.is_none() {
        let constants = elf.section_by_name(".rodata");
        let constants = constants.filter(|section| section.size() <= MAX_RODATA_BYTES);
        let constants = constants.and_then(|section| section.data().ok());
        found.constant_version = constants.and_then(version::of_constants);
    }
    found.fixed = elf.kind() == ObjectKind::Executable;
    for segment in elf.segments() {
        found.segments.push(Segment {
            executable: segment.permissions().executable(),
            offset: segment.file_range().0,
            address: segment.address(),
        });
    }
    Some(found)
}

impl InterpreterElf {
    /// Searches the dynamic or all data symbols. Returns whether the interpreter is among them.
    fn scan_symbols(&mut self, elf: &Elf<'_>, dynamic: bool) -> bool {
        let mut runtime = None;
        let data = symbols(elf, dynamic).filter(|(_, symbol)| symbol.st_type() == STT_OBJECT);
        for (name, symbol) in data {
            let found = match name {
                b"_PyRuntime" => &mut runtime,
                b"Py_Version" => &mut self.version,
                b"PyCode_Type" => &mut self.code_type,
                _ => continue,
            };
            found.get_or_insert(symbol.st_value(elf.endian()));
        }
        self.runtime = runtime.unwrap_or_default();
        runtime.is_some()
    }

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
            Some(mapping.start.wrapping_add(into).wrapping_sub(segment.address))
        })
    }
}
