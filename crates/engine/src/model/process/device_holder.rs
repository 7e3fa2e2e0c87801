//! Processes that keep a GPU open without appearing in the driver's list of processes.

use crate::model::{Container, GpuId, Nanos, Pid};

/// A process that has a device file of a GPU open and that the driver does not list. It may keep
/// memory: that of a process that exits, or that it inherited.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceHolder {
    /// Process.
    pub pid: Pid,
    /// Name (untrusted).
    pub name: Box<str>,
    /// User id of the owner.
    pub uid: u32,
    /// GPUs whose device files are open; empty if only control files are.
    pub gpus: Vec<GpuId>,
    /// Whether it has the file open that CUDA memory needs (`/dev/nvidia-uvm`). Without it, it is a
    /// monitoring tool or uses graphics.
    pub has_cuda: bool,
    /// Whether its main thread has exited, and other threads keep the files open.
    pub is_zombie: bool,
    /// Parent, with its name (untrusted); `None` if it cannot be read.
    pub parent: Option<(Pid, Box<str>)>,
    /// Whether the parent appears in the driver's list, so that it probably inherited the files.
    pub parent_is_listed: bool,
    /// Time since it started.
    pub age: Nanos,
    /// Container that it runs in, without names.
    pub container: Option<Container>,
}
