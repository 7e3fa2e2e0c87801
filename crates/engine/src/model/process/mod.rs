//! Processes: who runs them, where, and what they hold.

pub mod container;
pub mod device_holder;
pub mod holder;
pub mod mig;
pub mod program;
