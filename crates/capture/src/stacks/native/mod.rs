//! Native stacks: memory maps, unwinding and symbols.
//!
//! Reading order: `address_space` (mappings of a process), `modules` (mapped files), `unwind_rules`
//! and `unwind` (from a stack copy to locations in files), `symbolizer` (from locations to names, in
//! a separate thread).

mod address_space;
mod arch;
mod debug_file;
mod demangle;
mod drap;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
mod modules;
mod perf_map;
mod symbolizer;
#[cfg(test)]
mod tests;
mod unwind;
mod unwind_rules;

pub(crate) use address_space::AddressSpace;
pub(crate) use modules::ModuleRegistry;
pub(crate) use perf_map::GeneratedCode;
pub(crate) use symbolizer::NativeSymbolizer;
pub(crate) use unwind::{
    FrameLocation, HijackedReturn, NativeUnwinder, Registers, ReturnSlot, StackEnd, UnwoundStack,
};
