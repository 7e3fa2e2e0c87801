//! Native stacks: what a process has mapped, how to unwind it, what the code is called.
//!
//! Read in this order: `maps` and `space` (what is mapped where), `image` and `modules` (which
//! files that are), `rules` and `unwind` (from a copy of a stack to places in files), `symbols`
//! (from places to names, on a thread of its own).

mod debug_file;
mod demangle;
mod image;
mod maps;
mod modules;
mod perf_map;
mod realigned;
mod rules;
mod shrunk;
mod space;
mod symbols;
#[cfg(test)]
mod tests;
mod unwind;

pub(crate) use modules::Registry;
pub(crate) use symbols::Symbols;
pub(crate) use unwind::{Code, End, Native, Pending, Registers, Slot, Unwound};
