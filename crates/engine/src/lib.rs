//! Model and analysis of GPU memory: no I/O, clock, threads or printing.
//!
//! Suggested reading order: [`model`] (ids, units, memory kinds, events), [`ledger`] (the only
//! writer of allocation state), [`snapshot`] (the state that all outputs read), [`view`] (what they
//! show of it); then [`analysis`] of files, which reads allocation changes and stacks.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::cast_possible_truncation))]

pub mod advice;
pub mod alert;
pub mod analysis;
pub mod anomaly;
pub mod demangle;
pub mod headline;
pub mod leak;
pub mod ledger;
pub mod metrics;
pub mod model;
pub mod oom;
pub mod snapshot;
pub mod verdict;
pub mod view;

#[cfg(test)]
#[path = "../tests/random/mod.rs"]
mod random;
