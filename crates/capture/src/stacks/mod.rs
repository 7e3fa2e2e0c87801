//! Call stacks of allocations: unwinding, Python frames and symbols.

mod merge;
pub(crate) mod native;
mod process_stacks;
pub(crate) mod python;
mod records;
mod resolver;
mod symbolizer_thread;

pub(crate) use process_stacks::{ProcessStacks, StackTables};
pub(crate) use records::{StackRecord, read};
pub(crate) use resolver::SiteResolver;
