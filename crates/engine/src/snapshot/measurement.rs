//! Memory of one process between two points in time, as its program requests it.

use crate::model::{Bytes, CallStack, Nanos, SamplingInterval, SiteName};
use crate::verdict::Resource;

/// Memory of one process between the begin and the end of a measurement.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Measurement {
    /// Time between begin and end.
    pub duration: Nanos,
    /// Whether all calls of the process so far were seen, so that all values are exact.
    pub exact: bool,
    /// Live device memory at the begin.
    pub live_before: Bytes,
    /// Live device memory at the end.
    pub live_after: Bytes,
    /// Peak of the live device memory.
    pub peak: Bytes,
    /// Lower and upper bound of the peak, if overlapping calls leave it undetermined.
    pub peak_bounds: Option<(Bytes, Bytes)>,
    /// Tensors of PyTorch's cache, if it is traced.
    pub tensors: Option<TensorLevels>,
    /// Memory that caching allocators of frameworks allocated from the driver and still hold.
    pub cached: Bytes,
    /// Sites of memory and objects that were allocated and not freed, largest first. Memory of
    /// caching allocators is not included, but tensors are.
    pub kept: Vec<KeptSite>,
    /// Peak of the live device memory by time since the begin: each value holds from its time on.
    pub timeline: Vec<(Nanos, Bytes)>,
}

/// Bytes that tensors use in PyTorch's cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TensorLevels {
    /// At the begin.
    pub before: Bytes,
    /// At the end.
    pub after: Bytes,
    /// Highest between them.
    pub peak: Bytes,
}

/// Memory or objects from one site that were not freed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptSite {
    /// Site.
    pub site: SiteName,
    /// Frames, innermost first, if known.
    pub frames: CallStack,
    /// What is kept.
    pub resource: Resource,
    /// Bytes; 0 for objects.
    pub bytes: Bytes,
    /// Number of allocations or objects.
    pub count: u64,
    /// Largest sampling interval, if these are estimates from sampled blocks.
    pub sampling: Option<SamplingInterval>,
    /// Addresses of the newest of them; none for objects.
    pub addresses: Vec<u64>,
}
