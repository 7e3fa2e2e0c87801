//! Uncertainty of a snapshot, and lost records.

use std::ops::Deref;

use crate::model::{Bytes, LostDelta, Timestamp};

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
    /// Calls of memory functions that this version does not know: what they allocated is in no total
    /// and in no bound. In a snapshot, over the whole trace, including ended processes; in a process,
    /// its own.
    pub unknown_calls: u64,
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
    /// Number of records by class.
    pub counts: LostDelta,
    /// When the first loss was detected.
    pub since: Option<Timestamp>,
}

impl LostTotals {
    /// Adds the lost records of one event.
    pub(crate) fn add(&mut self, lost: &LostDelta, at: Timestamp) {
        self.counts = self.counts.combined(lost, u64::saturating_add);
        self.since = self.since.or(Some(at));
    }
}

impl Deref for LostTotals {
    type Target = LostDelta;

    fn deref(&self) -> &LostDelta {
        &self.counts
    }
}

impl Uncertainty {
    /// Whether all values are exact.
    pub const fn exact(&self) -> bool {
        self.lost.counts.events() == 0
            && self.lost.counts.processes == 0
            && self.live_min.0 == self.live_max.0
            && !self.before_trace
            && self.unknown_context == 0
            && self.ambiguous_calls == 0
            && self.unknown_calls == 0
            && self.capture_ended.is_none()
    }
}
