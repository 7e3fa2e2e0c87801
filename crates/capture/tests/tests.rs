//! Tests of the hook table, the build and the attach modes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod arch;
mod coverage;
mod root_attach_modes;
