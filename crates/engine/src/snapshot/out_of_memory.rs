//! Out-of-memory errors.

use crate::model::{
    Bytes, CallStack, DeviceId, GpuId, MemoryKind, Pid, SiteId, SiteName, Tid, Timestamp,
};

/// An allocation that failed because of insufficient memory, with the holders at that time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutOfMemory {
    /// Time.
    pub at: Timestamp,
    /// Requesting process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// Name of the process (untrusted).
    pub name: Box<str>,
    /// Requested device ordinal.
    pub device: Option<DeviceId>,
    /// GPU of the host, if known.
    pub gpu: Option<GpuId>,
    /// Kind and size of the request.
    pub requested: Option<(MemoryKind, Bytes)>,
    /// Allocation site.
    pub site: Option<SiteId>,
    /// Name of the site, as far as it was resolved when the snapshot was made.
    pub site_name: SiteName,
    /// Frames, innermost first, if known.
    pub frames: CallStack,
    /// Set if PyTorch's allocator gave up. It can do so although the driver rejected nothing: its
    /// memory fraction is a limit of its own.
    pub framework: Option<FrameworkOom>,
    /// Set if PyTorch freed this much of its cache, tried again and got the memory: the program
    /// noticed nothing.
    pub recovered: Option<Bytes>,
    /// Device memory of processes at that time, largest first: pid, name, bytes on that GPU (on the
    /// device with the same ordinal if the GPU is unknown, on all devices if the device is also
    /// unknown).
    pub holders: Vec<(Pid, Box<str>, Bytes)>,
}

/// State of PyTorch's allocator when it gave up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameworkOom {
    /// Requested size.
    pub requested: Bytes,
    /// Memory in tensors.
    pub allocated: Bytes,
    /// Memory that the allocator holds.
    pub reserved: Bytes,
}
