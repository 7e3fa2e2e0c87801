//! NEWMOD session/enrich

pub(super) mod driver_usage;
pub(super) mod handles;
pub(super) mod kernel_names;
