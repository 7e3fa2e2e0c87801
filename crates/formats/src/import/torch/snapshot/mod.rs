//! The contents of a PyTorch memory snapshot.

pub(super) mod builder;
pub(super) mod entry;
pub(super) mod fast_path;
pub(super) mod frames;
pub(super) mod stack_cache;
pub(super) mod state;
pub(super) mod trace_entries;
