//! PyTorch snapshots: real ones, made ones of every shape, and hostile ones. `make.py` writes the
//! made ones and the expected answers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod files;
mod hostile;
mod kept;
#[path = "../../../engine/tests/random/mod.rs"]
mod random;
