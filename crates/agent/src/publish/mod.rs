//! The engine thread, and the snapshots that it publishes.

pub(crate) mod engine_loop;
mod metrics_input;
pub(crate) mod snapshot_feed;
