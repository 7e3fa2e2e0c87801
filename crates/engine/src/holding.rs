//! Who holds what of one device at one moment, by where it came from.
//! Made by [`crate::ledger::Ledger::holdings`].

use std::sync::Arc;

use crate::ids::{DeviceId, GpuId, ProcessKey, SiteId};
use crate::stack::{Frame, SiteName};
use crate::units::Bytes;

/// Which memory is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Where {
    /// On any device.
    Anywhere,
    /// On a GPU of the host.
    Gpu(GpuId),
    /// On the device of that ordinal; for processes of which it is known, on that GPU.
    Device(DeviceId, Option<GpuId>),
}

/// What one process holds there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holding {
    /// Who.
    pub key: ProcessKey,
    /// The owner; `None` when it could not be read.
    pub uid: Option<u32>,
    /// Its name (hostile text).
    pub name: Box<str>,
    /// Device memory.
    pub live_bytes: Bytes,
    /// How many allocations that is.
    pub live_allocations: u64,
    /// The same by site, the most first.
    pub sites: Vec<HeldSite>,
    /// It ran before tracing began and may hold memory that was never seen.
    pub before_trace: bool,
}

/// What of that came from one site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeldSite {
    /// One of the site's ids.
    pub site: Option<SiteId>,
    /// Its name.
    pub name: SiteName,
    /// Its frames, innermost first, where they were asked for and are known.
    pub frames: Arc<[Frame]>,
    /// Device memory.
    pub live_bytes: Bytes,
    /// How many allocations that is.
    pub live_allocations: u64,
}
