//! Model and analysis of GPU memory: no I/O, clock, threads or printing.
//!
//! Suggested reading order: [`model`] (ids, units, memory kinds, events), [`ledger`] (the only
//! writer of allocation state), [`snapshot`] (the state that all outputs read); then [`analysis`]
//! of files, which reads allocation changes and stacks.
#![forbid(unsafe_code)]

pub mod advice;
pub mod alert;
pub mod analysis;
pub mod cache;
pub mod change;
pub mod container;
pub mod demangle;
pub mod diagnosis;
pub mod event;
pub mod holding;
pub mod ids;
pub mod kind;
pub mod ledger;
pub mod metrics;
pub mod object;
pub mod result;
pub mod snapshot;
pub mod stack;
pub mod tensor;
pub mod units;
pub mod verdict;
pub mod work;

#[cfg(test)]
#[path = "../tests/random/mod.rs"]
mod random;
