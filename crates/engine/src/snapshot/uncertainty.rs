//! Uncertainty of a snapshot, and lost records.

use crate::model::units::{Bytes, Timestamp};

/// Reasons why values are not exact.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Uncertainty {
    /// Records that the kernel could not deliver. In a snapshot, over the whole trace, including
    /// ended processes; in a process, its own.
    pub lost: LostTotals,
    /// Bounds of the true live device bytes: equal without losses. They do not include memory from
    /// before tracing began, nor memory allocated by launches of graphs for which records of their
    /// construction were lost. The bounds of a process also allow for losses that could not be
    /// attributed to any process, which its `lost` does not include.
    pub live_min: Bytes,
    /// See `live_min`.
    pub live_max: Bytes,
    /// Allocations whose free was implied by another allocation at the same address, and whose free
    /// call was not seen (yet).
    pub implied_frees: u64,
    /// Whether a process used the driver before tracing began: its earlier allocations are not
    /// included.
    pub before_trace: bool,
    /// Time at which capture ended early: nothing after it was seen.
    pub capture_ended: Option<Timestamp>,
    /// Allocations that may have ended with a context, because their context is unknown.
    pub unknown_context: u64,
    /// Stream-ordered allocations and frees of threads that captured another stream: it is not
    /// known whether they were executed or recorded into the graph. The bounds cover both. Also the
    /// implied frees of ended processes, whose calls never returned.
    pub ambiguous_calls: u64,
}

/// Calls whose records arrived, by class. Together with the [`LostTotals`] of a class, these are
/// all calls that a process made while it was traced, except for those without an effect (free of a
/// null pointer, allocation of 0 bytes).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReceivedCalls {
    /// Successful calls that allocate or import memory, even if they only create a graph node.
    pub allocations: u64,
    /// Successful calls that free, release, unmap, close or unregister memory, whether or not that
    /// was the last reference to it.
    pub frees: u64,
    /// Failed calls of traced functions.
    pub failures: u64,
}

/// Totals of lost records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LostTotals {
    /// Allocating calls.
    pub allocations: u64,
    /// Bytes they requested.
    pub allocated_bytes: u64,
    /// Freeing calls.
    pub frees: u64,
    /// Failed calls.
    pub failures: u64,
    /// All others: contexts, process lifecycle, mappings, pools, graphs.
    pub other: u64,
    /// Launches not counted; they do not affect memory.
    pub launches: u64,
    /// Copies and memsets not counted; they do not affect memory.
    pub copies: u64,
    /// Allocations whose call stack was lost.
    pub stacks: u64,
    /// Creations and destructions of objects; they do not affect memory.
    pub objects: u64,
    /// Blocks of frameworks' caches; they do not affect the driver's memory.
    pub tensors: u64,
    /// Processes of which no record arrived: they are not listed.
    pub processes: u64,
    /// When the first loss was detected.
    pub since: Option<Timestamp>,
}

impl LostTotals {
    /// Number of records that affect memory.
    #[must_use]
    pub const fn events(&self) -> u64 {
        let calls = self.allocations.saturating_add(self.frees);
        calls.saturating_add(self.failures).saturating_add(self.other)
    }
}

impl Uncertainty {
    /// Whether all values are exact.
    #[must_use]
    pub const fn exact(&self) -> bool {
        self.lost.events() == 0
            && self.lost.processes == 0
            && self.live_min.0 == self.live_max.0
            && !self.before_trace
            && self.unknown_context == 0
            && self.ambiguous_calls == 0
            && self.capture_ended.is_none()
    }
}
