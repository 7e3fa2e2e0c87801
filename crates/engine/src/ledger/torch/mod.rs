//! PyTorch's caching allocator inside a process.

pub(super) mod cache;
pub(super) mod segments;
