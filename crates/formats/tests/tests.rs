//! Tests of the formats that are read and written.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod analysis;
mod chart;
mod claims;
mod collect;
mod detect;
mod export;
mod exports;
mod fuzz;
mod hostile_errors;
mod import_nsys;
mod import_sanitizer;
mod import_smi;
mod incident;
mod kernel_names;
mod openmetrics;
#[path = "../../engine/tests/random/mod.rs"]
mod random;
mod recording;
mod sums;
mod torch;
mod verdicts;
