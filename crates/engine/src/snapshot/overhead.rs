//! Device memory of a process beyond its traced allocations.

use crate::model::{
    Bytes, CallStack, ContextLimit, ObjectKind, OverheadCause, Precision, SiteName,
};

/// Driver-reported memory beyond traced allocations, by cause: measured from the driver's reports
/// before and after the calls.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OverheadView {
    /// Causes with memory.
    pub causes: Vec<CauseView>,
    /// Whether no call changed memory around or since the last report of the driver.
    pub is_settled: bool,
    /// Limits that the process has set.
    pub limits: Vec<LimitView>,
    /// Cost of objects by kind and site, most expensive first; the list may be incomplete.
    pub objects: Vec<ObjectCostView>,
}

/// Memory with one cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CauseView {
    /// Cause.
    pub cause: OverheadCause,
    /// Most likely value.
    pub bytes: Bytes,
    /// Lower bound.
    pub min: Bytes,
    /// Upper bound.
    pub max: Bytes,
    /// How it was obtained.
    pub precision: Precision,
    /// Number of live objects or kernels, where that applies.
    pub count: u64,
}

/// A limit that a process has set with `cuCtxSetLimit`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitView {
    /// Limit.
    pub limit: ContextLimit,
    /// Last value: bytes, or a number of launches.
    pub value: u64,
    /// Number of calls.
    pub calls: u64,
    /// Change of the driver-reported memory from before to after the calls: most likely value.
    pub bytes: i64,
    /// Lower bound.
    pub min: i64,
    /// Upper bound.
    pub max: i64,
    /// How it was obtained.
    pub precision: Precision,
}

/// Device memory of the objects of one kind from one site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectCostView {
    /// Kind.
    pub kind: ObjectKind,
    /// Site.
    pub site: SiteName,
    /// Call stack, innermost frame first.
    pub frames: CallStack,
    /// Live objects.
    pub live: u64,
    /// Objects whose creation was measured.
    pub measured: u64,
    /// Mean cost of an object: most likely value.
    pub bytes: Bytes,
    /// Lower bound of the mean.
    pub min: Bytes,
    /// Upper bound of the mean.
    pub max: Bytes,
    /// Mean size of the images that modules and libraries were loaded from, if known.
    pub image: Option<Bytes>,
}

impl ObjectCostView {
    /// Memory of all live objects: most likely value.
    pub const fn total(&self) -> Bytes {
        Bytes(self.bytes.0.saturating_mul(self.live))
    }
}
