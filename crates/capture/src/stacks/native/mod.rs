//! Native stacks: memory maps, unwinding and symbols.
//!
//! Reading order: `maps` and `address_space` (mappings of a process), `elf_image` and `modules`
//! (mapped files), `unwind_rules` and `unwind` (from a stack copy to locations in files),
//! `symbolizer` (from locations to names, in a separate thread).

mod address_space;
mod debug_file;
mod demangle;
mod drap;
mod elf_image;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
mod maps;
mod modules;
mod perf_map;
mod sigbus_guard;
mod symbolizer;
#[cfg(test)]
mod tests;
mod unwind;
mod unwind_rules;

pub(crate) use address_space::AddressSpace;
pub(crate) use maps::mmap_events;
pub(crate) use modules::ModuleRegistry;
pub(crate) use symbolizer::NativeSymbolizer;
pub(crate) use unwind::{
    FrameLocation, HijackedReturn, NativeUnwinder, Registers, ReturnSlot, StackEnd, UnwoundStack,
};
