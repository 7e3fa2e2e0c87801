//! A driver library: its identity and probe points.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::elf::Sym64;
use object::read::elf::Sym;
use object::{Endianness, Object, ObjectSegment};

use crate::error::shortage;
use crate::files::{Elf, map, open_regular, symbols};
use crate::hooks::{HOOKS, is_unlisted_memory_function};
use crate::libraries::ARCHITECTURE;
use crate::plan::entry::AttachPoint;
use crate::plan::entry::native::attach_point;

/// Identity of a file, independent of the mount: overlay mounts of one layer have different device
/// numbers, and attaching through two of them would count every call twice.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FileIdentity {
    inode: u64,
    size: u64,
    build: Vec<u8>,
}

impl FileIdentity {
    pub(super) fn new(metadata: &Metadata, elf: &Elf<'_>) -> Self {
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

/// A memory function that this version of vramscope does not know: its calls are counted, and what
/// they allocate is not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownFunction {
    /// Exported name (untrusted).
    pub name: Box<str>,
    /// Offset of its probe point in the file.
    pub offset: u64,
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
    /// Memory functions that are not known. Other names of hooked functions are not among them.
    pub unknown: Vec<UnknownFunction>,
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
        "{path} is for another processor ({machine}) than this program; give the path of the \
         libcuda.so.1 that programs of this host load"
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
    /// Opens a library.
    pub fn open(path: &Path) -> Result<Self, DriverLibraryError> {
        Self::of(open_regular(path), path)
    }

    /// Reads a library; `path` is for messages.
    pub fn of(file: io::Result<File>, path: &Path) -> Result<Self, DriverLibraryError> {
        let path = path.to_owned();
        let opened = file.and_then(|file| Ok((file.metadata()?, map(&file)?, file)));
        let (metadata, map, file) = match opened {
            Ok(opened) => opened,
            Err(source) => return Err(DriverLibraryError::Read { path, source }),
        };
        let elf = match Elf::parse(&map[..]) {
            Ok(elf) => elf,
            Err(source) => return Err(DriverLibraryError::Elf { path, source }),
        };
        // Probe points are found by decoding machine code.
        if elf.architecture() != ARCHITECTURE {
            let machine = format!("{:?}", elf.architecture());
            return Err(DriverLibraryError::Machine { path, machine });
        }
        let identity = FileIdentity::new(&metadata, &elf);
        let (functions, unknown) = functions(&elf);
        if functions.is_empty() {
            return Err(DriverLibraryError::NoFunctions { path });
        }
        Ok(Self { path, identity, functions, unknown, file })
    }

    /// Returns a path to the open file that works even if the file was deleted.
    #[must_use]
    pub fn attach_path(&self) -> PathBuf {
        use std::os::fd::AsRawFd;
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

/// Maximum number of unknown functions that are listed: the library may be anything.
const MAX_UNKNOWN: usize = 256;

/// Returns the hooked functions that the library exports, and its memory functions that are not
/// known.
fn functions(elf: &Elf<'_>) -> (Vec<ProbedFunction>, Vec<UnknownFunction>) {
    let wanted: HashMap<&[u8], usize> =
        HOOKS.iter().enumerate().map(|(row, hook)| (hook.symbol.as_bytes(), row)).collect();
    let mut found = BTreeMap::new();
    let mut unknown = BTreeMap::new();
    for (name, symbol) in symbols(elf, true) {
        if let Some(hook) = wanted.get(name) {
            found.insert(*hook, symbol);
        } else if let Ok(name) = str::from_utf8(name)
            && unknown.len() < MAX_UNKNOWN
            && is_unlisted_memory_function(name)
        {
            unknown.insert(name, symbol);
        }
    }
    let mut functions: Vec<ProbedFunction> = Vec::new();
    for (hook, symbol) in found {
        let Some((entry, code)) = function(elf, symbol) else { continue };
        // An alias: the first row in the table is used.
        if functions.iter().all(|other| other.entry != entry) {
            functions.push(ProbedFunction { hook, entry, point: attach_point(code) });
        }
    }
    let mut entries: HashSet<u64> = functions.iter().map(|known| known.entry).collect();
    let unknown = unknown.into_iter().filter_map(|(name, symbol)| {
        let (entry, code) = function(elf, symbol)?;
        let offset = entry + attach_point(code).offset;
        entries.insert(entry).then(|| UnknownFunction { name: name.into(), offset })
    });
    let unknown = unknown.collect();
    (functions, unknown)
}

/// Minimum and maximum bytes of a function that are searched for branches.
const MIN_PROLOGUE_BYTES: u64 = 16;
const MAX_PROLOGUE_BYTES: u64 = 512;

/// Returns the offset of a function in the file, and the start of its code.
pub(super) fn function<'data>(
    elf: &Elf<'data>,
    symbol: &Sym64<Endianness>,
) -> Option<(u64, &'data [u8])> {
    let (address, size) = (symbol.st_value(elf.endian()), symbol.st_size(elf.endian()));
    let entry = elf.segments().find_map(|segment| {
        let (start, bytes) = segment.file_range();
        let inside = address.checked_sub(segment.address())?;
        (inside < bytes).then(|| start.checked_add(inside)).flatten()
    })?;
    let rest = elf.data().get(usize::try_from(entry).ok()?..)?;
    let bytes = size.clamp(MIN_PROLOGUE_BYTES, MAX_PROLOGUE_BYTES) as usize;
    Some((entry, rest.get(..bytes).unwrap_or(rest)))
}
