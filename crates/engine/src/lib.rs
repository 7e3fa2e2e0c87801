//! Pure knowledge about GPU memory: no I/O, no clock, no thread, no print.
//!
//! Read in this order: [`ids`], [`units`] and [`kind`] (the words), [`event`] (what can happen),
//! [`ledger`] (the only writer of allocation state), [`snapshot`] (what every output reads);
//! then [`change`] and [`stack`], from which files are analysed ([`analysis`]).
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
