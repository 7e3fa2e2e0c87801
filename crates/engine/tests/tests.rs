//! Tests of the ledger and of everything that is computed from it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod activity;
mod advice;
mod alerts;
mod allocators;
mod analysis;
mod fragmentation;
mod headline;
mod holders;
mod leak;
mod ledger_cases;
mod ledger_model;
mod metrics;
mod model;
mod oom;
mod prometheus_rules;
mod random;
mod random_seeds;
mod sampling;
mod view;
