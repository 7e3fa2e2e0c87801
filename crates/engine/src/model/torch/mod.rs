//! PyTorch's caching allocator.

pub mod caching_allocator;
pub mod tensor;
