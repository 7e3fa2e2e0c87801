//! The judge over many shapes: what leaks is named in time, and nothing else is ever accused.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod any;
mod leaks;
mod others;
mod play;
#[path = "../random/mod.rs"]
mod random;
