//! Call stacks of an Nsight Systems export.

pub(super) mod calls;
pub(super) mod chains;
pub(super) mod lookup;
