//! Tests of the workloads on the simulated driver.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

mod command_line;
mod common;
mod copies;
mod launches;
mod leaks;
