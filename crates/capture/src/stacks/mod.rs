//! Call stacks of allocations: unwinding, Python frames and symbols.

mod known_stacks;
mod merge;
pub(crate) mod native;
pub(crate) mod python;
mod python_processes;
mod records;
mod resolver;
mod symbolizer_thread;

pub(crate) use native::mmap_events;
pub(crate) use records::{StackRecord, read};
pub(crate) use resolver::{SiteResolver, StackTables};
