//! The agent as a process: its threads, their capabilities, its usage and budget, its log.

pub(crate) mod budget;
pub mod capabilities;
pub(crate) mod fault;
pub(crate) mod log;
pub(crate) mod outcome_counter;
pub(crate) mod self_usage;
pub(crate) mod threads;
