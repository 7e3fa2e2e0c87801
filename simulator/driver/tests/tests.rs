//! Tests of the simulated driver.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod common;
mod copies;
mod entry_points;
mod launches;
mod memory;
mod objects;
mod physical_and_others;
mod pools_and_graphs;
mod processes;
