//! The leak classifier over many shapes: leaks are found in time, and healthy sites are never
//! suspects.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod leaks;
mod not_leaks;
mod properties;
#[path = "../random/mod.rs"]
mod random;
mod scenario;
