//! Limits on requests: rates, CPU time, connections.

pub(super) mod connections;
pub(super) mod cpu_share;
pub(super) mod write_timeout;
