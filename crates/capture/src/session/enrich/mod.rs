//! Adds what records do not say: driver-reported usage, kernel names, programs, users and jobs.

pub(super) mod driver_usage;
pub(super) mod host_facts;
mod identity;
mod job;
pub(super) mod kernel_names;
