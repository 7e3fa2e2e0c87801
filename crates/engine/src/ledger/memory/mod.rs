//! Allocations of a process and their totals.

pub(super) mod allocation;
pub(super) mod loss;
mod old_levels;
pub(super) mod peak_bounds;
pub(super) mod pending_frees;
pub(super) mod recent_frees;
pub(super) mod size_index;
pub(super) mod thread;
pub(super) mod totals;
