//! What the driver does besides memory: objects, launches and copies, errors, and memory of its own.

pub mod activity;
pub mod cuda_error;
pub mod cuda_object;
pub mod overhead;
