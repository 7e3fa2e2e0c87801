//! Allocation sites.

use super::{KindView, SiteObjectView};
use crate::model::{
    Bytes, CallStack, MemoryKind, Nanos, Pid, SamplingInterval, SiteName, Timestamp,
};

/// An allocation site: everything that was allocated with one call stack. Totals are of device
/// memory; `kinds` has all kinds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SiteView {
    /// Name, which also says why there may be no frames.
    pub name: SiteName,
    /// Call stack, innermost frame first.
    pub frames: CallStack,
    /// Live bytes.
    pub live_bytes: Bytes,
    /// Live allocations.
    pub live_allocations: u64,
    /// Change of the live bytes since the last snapshot.
    pub grown: i64,
    /// Bytes allocated so far.
    pub bytes_total: Bytes,
    /// Allocations so far.
    pub allocations_total: u64,
    /// Of those: freed by calls. Excludes allocations that ended with their context or process.
    pub freed_total: u64,
    /// Largest sampling interval, if these values are estimates from sampled blocks.
    pub sampling: Option<SamplingInterval>,
    /// Peak of the live bytes. If `peak_at` is `None`, the sum of several peaks that may have been
    /// at different times: of several processes, kinds, or ids of the same stack.
    pub peak_bytes: Bytes,
    /// When the peak was first reached.
    pub peak_at: Option<Timestamp>,
    /// Times of the first and the last allocation, of any kind.
    pub seen: (Timestamp, Timestamp),
    /// Lifetimes of freed allocations of any kind: binary logarithm of nanoseconds, and count.
    pub lifetimes: Vec<(u8, u64)>,
    /// Longest lifetime.
    pub longest_lifetime: Option<Nanos>,
    /// Live bytes over time.
    pub growth: SiteHistory,
    /// The same by kind, for all kinds that it ever allocated.
    pub kinds: Vec<SiteKindView>,
    /// Objects created there; not included in the values above.
    pub objects: Vec<SiteObjectView>,
    /// Processes that hold it; empty in lists of one process.
    pub processes: Vec<SiteProcess>,
}

impl SiteView {
    /// Median lifetime of freed allocations, to within a factor of two.
    pub fn median_lifetime(&self) -> Option<Nanos> {
        let all = self.lifetimes.iter().fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
        let mut below = 0_u64;
        let (power, _) = self.lifetimes.iter().find(|(_, count)| {
            below = below.saturating_add(*count);
            below >= all.div_ceil(2)
        })?;
        let from = 1_u64.checked_shl(u32::from(*power)).unwrap_or(u64::MAX);
        let middle = Nanos(from.saturating_add(from / 2));
        Some(self.longest_lifetime.map_or(middle, |longest| middle.min(longest)))
    }
}

/// Memory of one kind from one site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SiteKindView {
    /// Kind.
    pub kind: MemoryKind,
    /// Live bytes.
    pub live_bytes: Bytes,
    /// Live allocations.
    pub live_allocations: u64,
    /// Live allocations of unknown size.
    pub unknown_sizes: u64,
    /// Bytes allocated so far.
    pub bytes_total: Bytes,
    /// Allocations so far; for imported memory, all openings.
    pub allocations_total: u64,
    /// Of those: freed by calls.
    pub freed_total: u64,
    /// Peak of the live bytes; see [`SiteView::peak_bytes`].
    pub peak_bytes: Bytes,
}

impl From<&SiteKindView> for KindView {
    fn from(view: &SiteKindView) -> Self {
        let SiteKindView { kind, live_bytes, live_allocations, unknown_sizes, .. } = *view;
        Self { kind, live_bytes, live_allocations, unknown_sizes }
    }
}

/// Memory of one process from one site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SiteProcess {
    /// Process; `None` for merged processes that ended earlier.
    pub pid: Option<Pid>,
    /// Live device memory.
    pub live_bytes: Bytes,
    /// Live allocations.
    pub live_allocations: u64,
    /// Live bytes and allocations by kind; only kinds with live memory.
    pub kinds: Vec<KindView>,
}

/// Live device memory of a site over time. After the end of a process, it includes what the process
/// had not freed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SiteHistory {
    /// Start of the first window: the start of the trace.
    pub start: Timestamp,
    /// Length of each window.
    pub window: Nanos,
    /// Live bytes at the end of each window; the last window is still open and has the current
    /// value.
    pub live: Vec<Bytes>,
}

impl SiteHistory {
    /// Live bytes at a time, exact to one window; 0 before the first one.
    pub fn level_at(&self, at: Timestamp) -> Bytes {
        let windows = at.0.saturating_sub(self.start.0).checked_div(self.window.0).unwrap_or(0);
        // Each value is that of the end of its window.
        let ended = usize::try_from(windows).unwrap_or(usize::MAX).min(self.live.len());
        ended.checked_sub(1).and_then(|last| self.live.get(last)).copied().unwrap_or_default()
    }
}
