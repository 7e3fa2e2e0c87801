//! PyTorch snapshots: real, generated and hostile ones. `make.py` writes the generated ones and the
//! expected results.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod checking_sink;
mod files;
mod hostile;
#[path = "../../../engine/tests/random/mod.rs"]
mod random;
