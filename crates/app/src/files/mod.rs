//! Commands on files: reading inputs and checking limits.

pub(crate) mod input;
pub(crate) mod leak_gate;
pub(super) mod plot_data;
pub(crate) mod smi_overlay;
