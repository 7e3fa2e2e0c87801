//! Python stacks: finds the interpreter of a process, and symbolizes its frames.
//!
//! [`detect`] finds out whether a process runs CPython and where its structures are ([`elf`],
//! [`maps`], [`layout`], [`debug_offsets`]). The probes use that to walk the frames.
//! [`symbolizer`] resolves the names and lines of the frames ([`strings`], [`line_table`]). No data
//! of the process is trusted.

mod code;
mod elf;
mod find;
mod layout;
mod lines;
mod maps;
mod memory;
mod offsets;
mod plausible;
#[cfg(test)]
mod tests;
mod text;
mod version;

pub(crate) use code::PythonSymbolizer;
pub(crate) use find::{PythonUnsupported, find};
pub(crate) use memory::ProcessMemory;
