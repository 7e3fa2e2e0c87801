//! Reads records and counters of the probes.

pub(super) mod activity;
pub(super) mod counters;
pub(super) mod losses;
pub(super) mod map_reader;
pub(super) mod record_ring;
pub(super) mod ring;
pub(super) mod table;
pub(super) mod unknown_calls;
pub(super) mod waiter;
