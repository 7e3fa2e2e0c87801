//! State of the driver that memory depends on: contexts, devices, pools, graphs.

pub(super) mod context;
pub(super) mod device;
pub(super) mod gpu_memory;
pub(super) mod graph;
pub(super) mod objects;
pub(super) mod out_of_memory;
pub(super) mod overhead;
pub(super) mod physical;
pub(super) mod pool;
pub(super) mod reuse;
pub(super) mod slots;
