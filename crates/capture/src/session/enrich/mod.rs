//! Adds to events what the records do not contain.

pub(super) mod driver_usage;
pub(super) mod handles;
pub(super) mod kernel_names;
