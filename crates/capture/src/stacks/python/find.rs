//! Whether a process runs Python, which, and where its structures are.

use engine::ids::Pid;

use super::layout::{self, Layout};
use super::memory::{Memory, ProcessMemory};
use super::version::{self, Version};
use super::{elf, maps, offsets, plausible};
use crate::wire::WirePython;

/// Files of a process that are looked into.
const MOST_FILES: usize = 8;

/// The interpreter of a process.
#[derive(Clone, Debug)]
pub(crate) struct Interpreter {
    /// What the probes need to walk its stacks.
    pub(crate) wire: WirePython,
    pub(super) layout: Layout,
}

/// Why the stacks of a process that runs Python cannot be told.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum NoPython {
    /// Its memory or its files.
    #[error("cannot read the Python interpreter; trace as root or with CAP_SYS_PTRACE")]
    Unreadable,
    /// None of those that are known.
    #[error("Python {0} is not supported (supported: 3.9 to 3.15)")]
    UnknownVersion(String),
    /// Threads have their own copies of code there.
    #[error("free-threaded builds of Python are not supported")]
    FreeThreaded,
    /// It starts just now.
    #[error("the Python interpreter has not started yet")]
    NotReadyYet,
    /// The structures are not where that version has them.
    #[error("unsupported Python build (debug build?)")]
    Implausible,
}

/// Where to begin in a process that seems to run Python. Addresses are those of the process.
#[derive(Clone, Debug)]
pub(super) struct Anchor {
    pub(super) runtime: u64,
    /// Where the version is.
    pub(super) version: Option<u64>,
    /// What the file says of the version.
    pub(super) told: Option<Version>,
    /// The type of code objects.
    pub(super) code_type: Option<u64>,
}

/// The Python interpreter of a process; `None` where it has none. Where it has several, the first
/// that runs.
pub(crate) fn find(pid: Pid) -> Result<Option<Interpreter>, NoPython> {
    let mut result = Ok(None);
    for anchor in anchors(pid)? {
        match examine(anchor, &ProcessMemory(pid)) {
            Ok(interpreter) => return Ok(Some(interpreter)),
            Err(why) => result = result.and(Err(why)),
        }
    }
    result
}

/// Looks through the files of a process for `_PyRuntime`.
pub(super) fn anchors(pid: Pid) -> Result<Vec<Anchor>, NoPython> {
    let mut anchors = Vec::new();
    let mut unreadable = false;
    let candidates = maps::candidates(pid).map_err(|_| NoPython::Unreadable)?;
    for mapped in candidates.into_iter().take(MOST_FILES) {
        let name = mapped.name().to_string_lossy();
        let Ok(file) = mapped.open(pid) else {
            unreadable |= name.contains("python");
            continue;
        };
        let Some(program) = elf::read(&file) else { continue };
        let Some(bias) = program.bias(&mapped.mappings) else { continue };
        let told = program.told.or_else(|| version::of_file_name(&name));
        anchors.push(Anchor {
            runtime: program.runtime.wrapping_add(bias),
            version: program.version.map(|address| address.wrapping_add(bias)),
            told,
            code_type: program.code_type.map(|address| address.wrapping_add(bias)),
        });
    }
    if anchors.is_empty() && unreadable { Err(NoPython::Unreadable) } else { Ok(anchors) }
}

/// Finds out what is at the anchor, and believes it only if the structures there fit together.
pub(super) fn examine(anchor: Anchor, memory: &impl Memory) -> Result<Interpreter, NoPython> {
    let layout = match offsets::told(memory, anchor.runtime)? {
        Some(layout) => layout,
        None => by_version(&anchor, memory)?,
    };
    let unknown = || NoPython::UnknownVersion(layout.version.to_string());
    let wire = layout.wire(anchor.runtime).ok_or_else(unknown)?;
    plausible::check(memory, &layout, &wire, anchor.code_type)?;
    Ok(Interpreter { wire, layout })
}

fn by_version(anchor: &Anchor, memory: &impl Memory) -> Result<Layout, NoPython> {
    let version = match anchor.version {
        Some(address) => {
            let hex = memory.word(address).ok_or(NoPython::Unreadable)?;
            Version::from_hex(hex).ok_or(NoPython::NotReadyYet)?
        }
        None => anchor.told.ok_or_else(|| NoPython::UnknownVersion("of unknown version".into()))?,
    };
    if version >= layout::FIRST_THAT_TELLS {
        // Data that the loader copies is empty at first.
        let empty = memory.word(anchor.runtime) == Some(0);
        return Err(if empty { NoPython::NotReadyYet } else { NoPython::Implausible });
    }
    layout::of_version(version).ok_or_else(|| NoPython::UnknownVersion(version.to_string()))
}
