//! Allocators inside a process: they take memory from the driver and hand out blocks of it.

pub mod blocks;
pub mod caching_allocator;
pub mod sampling;
