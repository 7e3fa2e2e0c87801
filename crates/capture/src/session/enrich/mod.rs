//! Adds to events what the records do not contain.

pub(super) mod driver_usage;
pub(crate) mod handles;
pub(super) mod identity;
mod job;
pub(super) mod kernel_names;
