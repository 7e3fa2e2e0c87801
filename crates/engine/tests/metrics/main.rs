//! Metrics from snapshots: which series exist, and that counters only grow.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod catalog;
mod docs;
mod fixture;
mod series;
mod values;
