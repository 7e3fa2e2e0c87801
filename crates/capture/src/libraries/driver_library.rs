//! A driver library: its identity and probe points.

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use object::read::elf::ElfFile64;
use object::{Architecture, Endianness, Object, ObjectSegment, ObjectSymbol, ReadCache};

use super::open_regular;
use crate::error::shortage;
use crate::hooks::{HOOKS, is_unknown_memory_function};
use crate::plan::prologue::{AttachPoint, attach_point};

/// Identity of a file, independent of the mount: overlay mounts of one layer have different device
/// numbers, and attaching through two of them would count every call twice.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FileIdentity {
    inode: u64,
    size: u64,
    build: Vec<u8>,
}

impl FileIdentity {
    pub(super) fn new<'data>(
        metadata: &Metadata,
        elf: &ElfFile64<'data, Endianness, &'data ReadCache<&File>>,
    ) -> Self {
        let build = elf.build_id().ok().flatten().unwrap_or_default().to_vec();
        Self { inode: metadata.ino(), size: metadata.size(), build }
    }
}

/// A function of the driver that will be probed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProbedFunction {
    /// Row of the hook table.
    pub hook: usize,
    /// Offset of its entry in the file.
    pub entry: u64,
    /// The probe point, relative to the entry.
    pub point: AttachPoint,
}

/// A driver library that can be probed.
#[derive(Debug)]
pub struct DriverLibrary {
    /// The path for messages.
    pub path: PathBuf,
    /// The identity of the file.
    pub identity: FileIdentity,
    /// Probed functions; names that share an address appear once.
    pub functions: Vec<ProbedFunction>,
    /// Exported memory functions that this version of vramscope does not know, so their allocations
    /// are not counted.
    pub unknown: Vec<String>,
    file: File,
}

/// Reason why a file cannot be probed.
#[derive(Debug, thiserror::Error)]
pub enum DriverLibraryError {
    /// It cannot be opened or read.
    #[error("cannot read {path}: {source}; {}", advice(source))]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It is not an ELF library.
    #[error("{path} is not a 64-bit ELF library ({source}); give the path of libcuda.so.1")]
    Elf {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: object::Error,
    },
    /// It is for another processor.
    #[error(
        "{path} is for another processor ({machine}), and live tracing supports x86-64 only; give the \
         path of the libcuda.so.1 that programs of this host load"
    )]
    Machine {
        /// The file.
        path: PathBuf,
        /// Its processor.
        machine: String,
    },
    /// It exports no hooked function.
    #[error(
        "{path} exports none of the CUDA driver's memory functions; give the path of the real \
         libcuda.so.1, not of a stub or a runtime library"
    )]
    NoFunctions {
        /// The file.
        path: PathBuf,
    },
}

/// Returns the next step.
fn advice(error: &io::Error) -> String {
    shortage(error.raw_os_error()).unwrap_or_else(|| "check the path and its permissions".into())
}

impl DriverLibrary {
    /// Opens a library through `path`; `name` is the path for messages.
    pub fn open(path: &Path, name: &Path) -> Result<Self, DriverLibraryError> {
        let read = |source| DriverLibraryError::Read { path: name.to_owned(), source };
        let file = open_regular(path).map_err(read)?;
        let metadata = file.metadata().map_err(read)?;
        let cache = ReadCache::new(&file);
        let elf_error = |source| DriverLibraryError::Elf { path: name.to_owned(), source };
        let elf: ElfFile64<'_, object::Endianness, _> =
            ElfFile64::parse(&cache).map_err(elf_error)?;
        // Probe points are found by decoding x86-64 code.
        if elf.architecture() != Architecture::X86_64 {
            let machine = format!("{:?}", elf.architecture());
            return Err(DriverLibraryError::Machine { path: name.to_owned(), machine });
        }
        let identity = FileIdentity::new(&metadata, &elf);
        let (symbols, unknown) = exported(&elf, name)?;
        let functions = functions(&elf, &symbols, &file).map_err(read)?;
        if functions.is_empty() {
            return Err(DriverLibraryError::NoFunctions { path: name.to_owned() });
        }
        Ok(Self { path: name.to_owned(), identity, functions, unknown, file })
    }

    /// Returns a path to the open file that works even if the file was deleted.
    #[must_use]
    pub fn attach_path(&self) -> PathBuf {
        use std::os::fd::AsRawFd;
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

/// Addresses and sizes of exported functions that are hooked.
type HookedSymbols = HashMap<&'static str, (u64, u64)>;

/// Maximum number of unknown functions that are listed: the library may be anything.
const MAX_UNKNOWN: usize = 256;

/// Returns the hooked functions that the library exports, and its memory functions that are not
/// known.
fn exported<'data>(
    elf: &ElfFile64<'data, object::Endianness, &'data ReadCache<&File>>,
    name: &Path,
) -> Result<(HookedSymbols, Vec<String>), DriverLibraryError> {
    let wanted: HashMap<&[u8], &'static str> =
        HOOKS.iter().map(|hook| (hook.symbol.as_bytes(), hook.symbol)).collect();
    let mut found = HashMap::new();
    let mut unknown = BTreeSet::new();
    for symbol in elf.dynamic_symbols() {
        if !symbol.is_definition() {
            continue;
        }
        let bytes = symbol
            .name_bytes()
            .map_err(|source| DriverLibraryError::Elf { path: name.to_owned(), source })?;
        if let Some(&name) = wanted.get(bytes) {
            found.insert(name, (symbol.address(), symbol.size()));
        } else if let Ok(name) = str::from_utf8(bytes)
            && unknown.len() < MAX_UNKNOWN
            && is_unknown_memory_function(name)
        {
            unknown.insert(name.to_owned());
        }
    }
    Ok((found, unknown.into_iter().collect()))
}

/// Maximum bytes of a function that are searched for branches.
pub(super) const MAX_PROLOGUE_BYTES: u64 = 512;

fn functions<'data>(
    elf: &ElfFile64<'data, object::Endianness, &'data ReadCache<&File>>,
    symbols: &HashMap<&'static str, (u64, u64)>,
    file: &File,
) -> io::Result<Vec<ProbedFunction>> {
    let mut used = HashMap::new();
    let mut functions: Vec<ProbedFunction> = Vec::new();
    for (hook, row) in HOOKS.iter().enumerate() {
        let Some(&(address, size)) = symbols.get(row.symbol) else { continue };
        let Some(entry) = file_offset(elf, address) else { continue };
        // An alias: the first row in the table is used.
        if used.insert(entry, hook).is_some() {
            continue;
        }
        let mut code = vec![0; size.clamp(16, MAX_PROLOGUE_BYTES) as usize];
        let read = read_at_most(file, &mut code, entry)?;
        functions.push(ProbedFunction { hook, entry, point: attach_point(&code[..read]) });
    }
    Ok(functions)
}

pub(super) fn read_at_most(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], offset + read as u64)? {
            0 => break,
            more => read += more,
        }
    }
    Ok(read)
}

pub(super) fn file_offset<'data>(
    elf: &ElfFile64<'data, object::Endianness, &'data ReadCache<&File>>,
    address: u64,
) -> Option<u64> {
    elf.segments().find_map(|segment| {
        let (start, bytes) = segment.file_range();
        let inside = address.checked_sub(segment.address())?;
        (inside < bytes).then(|| start.checked_add(inside)).flatten()
    })
}
