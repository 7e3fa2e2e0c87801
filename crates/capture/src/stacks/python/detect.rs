//! Finds the Python interpreter of a process, its version and its structures.

use engine::model::ids::Pid;

use super::layout::{self, PythonLayout};
use super::memory::{MemoryReader, ProcessMemory};
use super::version::{self, PythonVersion};
use super::{debug_offsets, elf, maps, validate};
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
    let candidates = maps::candidates(pid).map_err(|_| PythonUnsupported::Unreadable)?;
    for mapped in candidates.into_iter().take(MAX_FILES) {
        let name = mapped.name().to_string_lossy();
        let Ok(file) = mapped.open(pid) else {
            unreadable |= name.contains("python");
            continue;
        };
        let Some(elf) = elf::read(&file) else { continue };
        let Some(bias) = elf.bias(&mapped.mappings) else { continue };
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
