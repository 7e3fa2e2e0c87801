//! The functions of the driver, by area.

pub(super) mod array;
pub(super) mod context;
pub(super) mod copy;
pub(super) mod device;
pub(super) mod get_proc_address;
pub(super) mod graph;
pub(super) mod host_memory;
mod injection;
pub(super) mod ipc;
pub(super) mod launch;
pub(super) mod memory;
pub(super) mod module;
pub(super) mod objects;
pub(super) mod pool;
pub(super) mod shareable_handle;
pub(super) mod stream;
pub(super) mod vmm;
