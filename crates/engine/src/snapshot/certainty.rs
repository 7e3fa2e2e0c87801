//! What is known for certain, and what was lost.

use crate::units::{Bytes, Moment};

/// What is not known exactly.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Certainty {
    /// Records the kernel could not deliver: in a snapshot all of the trace, also those of processes
    /// that are gone; in a process its own.
    pub lost: Loss,
    /// Bounds of the true live device bytes: equal when nothing was lost. Memory from before
    /// tracing began is outside of them, and so is what launches allocate of graphs of whose making
    /// records were lost. A process's bounds also allow for losses that could not be
    /// attributed to any process, which its `lost` does not count.
    pub live_at_least: Bytes,
    /// See `live_at_least`.
    pub live_at_most: Bytes,
    /// Allocations that another allocation at the same address showed to be freed, and whose free
    /// call was not seen (yet).
    pub unseen_frees: u64,
    /// A process had the driver before tracing began: what it allocated then is not counted.
    pub before_trace: bool,
    /// When capture ended early: nothing after it was seen.
    pub capture_ended: Option<Moment>,
    /// Allocations that may have ended with a context, because the context they are in is not known.
    pub unknown_context: u64,
    /// Stream-ordered allocations and frees of threads that captured another stream: it is not known
    /// whether they were executed or recorded into the graph. The bounds cover both.
    pub ambiguous_calls: u64,
}

/// Calls whose records arrived, by class. What [`Loss`] has of a class and this together are the calls
/// that a process made while it was traced; those that did nothing (a null pointer was freed, or no
/// byte allocated) are in neither.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReceivedCalls {
    /// Successful calls that allocate or import memory, also where they only make a node of a graph.
    pub allocations: u64,
    /// Successful calls that free, release, unmap, close or unregister memory, whether that was the
    /// last reference to it or not.
    pub frees: u64,
    /// Failed calls of traced functions.
    pub failures: u64,
}

/// Losses added up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Loss {
    /// Allocating calls.
    pub allocations: u64,
    /// The bytes they asked for.
    pub allocated_bytes: u64,
    /// Freeing calls.
    pub frees: u64,
    /// Failed calls.
    pub failures: u64,
    /// Everything else: contexts, process life, mappings, pools, graphs.
    pub other: u64,
    /// Launches that were not counted; memory has nothing to do with them.
    pub launches: u64,
    /// Copies and memsets that were not counted; the same.
    pub copies: u64,
    /// Allocations that are known, but not where they came from.
    pub stacks: u64,
    /// Objects that began or ended; memory has nothing to do with them.
    pub objects: u64,
    /// Blocks of frameworks' caches; the driver's memory has nothing to do with them.
    pub tensors: u64,
    /// Programs of which no record arrived: they are in no list.
    pub processes: u64,
    /// When the first loss was noticed.
    pub since: Option<Moment>,
}

impl Loss {
    /// All records that have to do with memory.
    #[must_use]
    pub const fn events(&self) -> u64 {
        let calls = self.allocations.saturating_add(self.frees);
        calls.saturating_add(self.failures).saturating_add(self.other)
    }
}

impl Certainty {
    /// Whether every figure is exact.
    #[must_use]
    pub const fn exact(&self) -> bool {
        self.lost.events() == 0
            && self.lost.processes == 0
            && self.live_at_least.0 == self.live_at_most.0
            && !self.before_trace
            && self.unknown_context == 0
            && self.ambiguous_calls == 0
            && self.capture_ended.is_none()
    }
}
