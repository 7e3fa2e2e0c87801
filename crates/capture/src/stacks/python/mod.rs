//! Python stacks: where the interpreter keeps them, and what its code is called.
//!
//! [`mod@find`] tells whether a process runs CPython and where its structures are ([`elf`],
//! [`maps`], [`layout`], [`offsets`]). The probes walk the frames by that. [`code`] gives the names
//! and lines of what they found ([`text`], [`lines`]). Everything that is read is hostile.

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

pub(crate) use code::Names;
pub(crate) use find::{NoPython, find};
pub(crate) use memory::ProcessMemory;
