//! Memory that processes hold on a device at one time, by allocation site. Created by
//! [`crate::ledger::Ledger::holders`].

use crate::model::{Bytes, CallStack, DeviceId, GpuId, ProcessKey, SiteId, SiteName};

/// Selects memory by device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceFilter {
    /// All devices.
    AllDevices,
    /// One GPU of the host.
    Gpu(GpuId),
    /// Device ordinal; for processes whose GPU is known, that GPU.
    Device(DeviceId, Option<GpuId>),
}

/// Memory held by one process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Process.
    pub key: ProcessKey,
    /// User id of the owner; `None` if it could not be read.
    pub uid: Option<u32>,
    /// Name (untrusted).
    pub name: Box<str>,
    /// Live device memory.
    pub live_bytes: Bytes,
    /// Number of live allocations.
    pub live_allocations: u64,
    /// The same by site, largest first.
    pub sites: Vec<HolderSite>,
    /// Whether it ran before tracing began, so that it may hold memory from before the trace.
    pub before_trace: bool,
}

/// Memory of a process from one site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HolderSite {
    /// One of the site's ids.
    pub site: Option<SiteId>,
    /// Name of the site.
    pub name: SiteName,
    /// Frames, innermost first, if requested and known.
    pub frames: CallStack,
    /// Live device memory.
    pub live_bytes: Bytes,
    /// Number of live allocations.
    pub live_allocations: u64,
}
