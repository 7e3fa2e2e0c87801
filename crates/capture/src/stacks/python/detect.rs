//! Finds the Python interpreter of a process, its version and its structures.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use engine::model::ids::Pid;

use super::layout::{self, PythonLayout};
use super::memory::{MemoryReader, ProcessMemory};
use super::version::{self, PythonVersion};
use super::{debug_offsets, elf, validate};
use crate::files::{Mapping, map, mappings};
use crate::wire::WirePython;

/// Maximum number of files of a process that are searched.
const MAX_FILES: usize = 8;

/// The interpreter of a process.
#[derive(Clone, Debug)]
pub(crate) struct Interpreter {
    /// The data that the probes need to walk its stacks.
    pub(crate) wire: WirePython,
    pub(crate) layout: PythonLayout,
}

/// Reason why Python stacks of a process cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum PythonUnsupported {
    /// Its memory or its files cannot be read.
    #[error("cannot read the Python interpreter; trace as root or with CAP_SYS_PTRACE")]
    Unreadable,
    /// The version is not supported.
    #[error("Python {0} is not supported (supported: 3.9 to 3.15)")]
    UnknownVersion(String),
    /// Threads have their own copies of bytecode in free-threaded builds.
    #[error("free-threaded builds of Python are not supported")]
    FreeThreaded,
    /// The interpreter is still starting.
    #[error("the Python interpreter has not started yet")]
    NotReadyYet,
    /// The structures do not match the layout of the version.
    #[error("unsupported Python build (debug build?)")]
    Implausible,
}

/// Addresses in a process that seems to run Python.
#[derive(Clone, Debug)]
pub(super) struct InterpreterAnchor {
    pub(super) runtime: u64,
    /// Address of the version.
    pub(super) version: Option<u64>,
    /// The version from the content or the name of the file.
    pub(super) file_version: Option<PythonVersion>,
    /// The type of code objects.
    pub(super) code_type: Option<u64>,
}

/// Finds the Python interpreter of a process, the first running one if it has several; `None` if it
/// has none.
pub(crate) fn find(pid: Pid) -> Result<Option<Interpreter>, PythonUnsupported> {
    let mut result = Ok(None);
    for anchor in anchors(pid)? {
        match examine(anchor, &ProcessMemory(pid)) {
            Ok(interpreter) => return Ok(Some(interpreter)),
            Err(reason) => result = result.and(Err(reason)),
        }
    }
    result
}

/// Searches the files of a process for `_PyRuntime`.
pub(super) fn anchors(pid: Pid) -> Result<Vec<InterpreterAnchor>, PythonUnsupported> {
    let mut anchors = Vec::new();
    let mut unreadable = false;
    let candidates = candidates(pid).map_err(|_| PythonUnsupported::Unreadable)?;
    for mapped in candidates.chunk_by(|one, other| one.path == other.path).take(MAX_FILES) {
        let Some(first) = mapped.first() else { continue };
        let name = first.path.file_name().unwrap_or_default().to_string_lossy();
        let Ok(file) = first.open().and_then(|file| map(&file)) else {
            unreadable |= name.contains("python");
            continue;
        };
        let Some(elf) = elf::read(&file) else { continue };
        let Some(bias) = elf.bias(mapped) else { continue };
        let file_version = elf.constant_version.or_else(|| version::of_file_name(&name));
        anchors.push(InterpreterAnchor {
            runtime: elf.runtime.wrapping_add(bias),
            version: elf.version.map(|address| address.wrapping_add(bias)),
            file_version,
            code_type: elf.code_type.map(|address| address.wrapping_add(bias)),
        });
    }
    if anchors.is_empty() && unreadable { Err(PythonUnsupported::Unreadable) } else { Ok(anchors) }
}

/// Returns the mappings of files that may contain an interpreter.
fn candidates(pid: Pid) -> io::Result<Vec<Mapping>> {
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let program = program.as_os_str().as_bytes();
    let program = program.strip_suffix(b" (deleted)").unwrap_or(program);
    let mut found = mappings(pid, |_, path| rank(path, program).is_some())?;
    found.sort_by_cached_key(|one| (rank(&one.path, program), one.path.clone(), one.start));
    Ok(found)
}

/// Returns the rank of a file that may contain an interpreter, most likely first: the program
/// itself, then `libpython…`, then `python…` (a program started through a loader).
fn rank(path: &Path, program: &[u8]) -> Option<u8> {
    let name = path.file_name().filter(|_| path.is_absolute())?.as_bytes();
    match path.as_os_str().as_bytes() {
        path if path == program => Some(0),
        _ if name.starts_with(b"libpython") => Some(1),
        _ if name.starts_with(b"python") => Some(2),
        _ => None,
    }
}

/// Determines the layout of the interpreter at an anchor, and checks that its structures match it.
pub(super) fn examine(
    anchor: InterpreterAnchor,
    memory: &impl MemoryReader,
) -> Result<Interpreter, PythonUnsupported> {
    let layout = match debug_offsets::from_runtime(memory, anchor.runtime)? {
        Some(layout) => layout,
        None => by_version(&anchor, memory)?,
    };
    let unknown = || PythonUnsupported::UnknownVersion(layout.version.to_string());
    let wire = layout.wire(anchor.runtime).ok_or_else(unknown)?;
    validate::check(memory, &layout, &wire, anchor.code_type)?;
    Ok(Interpreter { wire, layout })
}

fn by_version(
    anchor: &InterpreterAnchor,
    memory: &impl MemoryReader,
) -> Result<PythonLayout, PythonUnsupported> {
    let version = match anchor.version {
        Some(address) => {
            let hex = memory.word(address).ok_or(PythonUnsupported::Unreadable)?;
            PythonVersion::from_hex(hex).ok_or(PythonUnsupported::NotReadyYet)?
        }
        None => {
            let unknown = || PythonUnsupported::UnknownVersion("of unknown version".into());
            anchor.file_version.ok_or_else(unknown)?
        }
    };
    if version >= layout::FIRST_WITH_DEBUG_OFFSETS {
        // The data is zero until the loader has copied it.
        let empty = memory.word(anchor.runtime) == Some(0);
        return Err(if empty {
            PythonUnsupported::NotReadyYet
        } else {
            PythonUnsupported::Implausible
        });
    }
    layout::of_version(version)
        .ok_or_else(|| PythonUnsupported::UnknownVersion(version.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likely_interpreters_are_ranked_first() {
        let program = b"/usr/bin/run me";
        for (path, expected) in [
            ("/usr/bin/run me", Some(0)),
            ("/usr/lib/libpython3.9.so.1.0", Some(1)),
            ("/usr/bin/python3.14", Some(2)),
            ("/usr/lib/libc.so.6", None),
            ("[heap]", None),
            ("python", None),
            ("", None),
        ] {
            assert_eq!(rank(Path::new(path), program), expected, "{path}");
        }
    }
}
