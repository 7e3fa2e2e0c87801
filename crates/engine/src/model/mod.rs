//! The data model: ids, units, events and the things they describe.

pub mod activity;
pub mod caching_allocator;
pub mod change;
pub mod container;
pub mod cuda_error;
pub mod cuda_object;
pub mod device_holder;
pub mod event;
pub mod holder;
pub mod ids;
pub mod memory_kind;
pub mod overhead;
pub mod program;
pub mod stack;
pub mod tensor;
pub mod trace_mode;
pub mod units;
