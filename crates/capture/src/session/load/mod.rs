//! Loads the BPF object.

pub(super) mod attach_mode;
pub(super) mod bpf_log;
pub(super) mod bpf_object;
#[cfg(test)]
mod bpf_tests;
pub(super) mod self_test;
#[cfg(test)]
pub(super) mod stack_depth;
