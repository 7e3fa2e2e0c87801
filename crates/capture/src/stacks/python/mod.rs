//! Python stacks: finds the interpreter of a process, and symbolizes its frames.
//!
//! [`detect`] finds out whether a process runs CPython and where its structures are ([`elf`],
//! [`layout`], [`debug_offsets`]). The probes use that to walk the frames.
//! [`symbolizer`] resolves the names and lines of the frames ([`strings`], [`line_table`]). No data
//! of the process is trusted.

mod debug_offsets;
mod detect;
mod elf;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
mod layout;
mod line_table;
mod memory;
mod strings;
mod symbolizer;
#[cfg(any(test, feature = "fuzzing"))]
mod tests;
mod validate;
mod version;

pub(crate) use detect::{PythonUnsupported, find};
pub(crate) use memory::ProcessMemory;
pub(crate) use symbolizer::PythonCode;
