//! The largest allocations of a file with their lifetimes, for charts that draw single allocations.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use hashbrown::HashMap;

use super::MemoryScope;
use crate::model::change::{AllocationChange, ChangeKind, EndReason};
use crate::model::ids::{AllocationKey, DeviceId, Pid, SiteId, Tid};
use crate::model::memory_kind::MemoryKind;
use crate::model::units::Timestamp;

/// An allocation with its lifetime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocationSpan {
    /// Key of the allocation.
    pub key: AllocationKey,
    /// Size.
    pub bytes: u64,
    /// Time of the allocation.
    pub allocated_at: Timestamp,
    /// Time and reason of its end; `None` if it is live at the end of the file.
    pub ended: Option<(Timestamp, EndReason)>,
    /// Process.
    pub pid: Pid,
    /// Thread that allocated it, or 0.
    pub tid: Tid,
    /// Device, if known.
    pub device: Option<DeviceId>,
    /// Memory kind.
    pub kind: MemoryKind,
    /// Allocation site.
    pub site: Option<SiteId>,
}

/// Finds the largest allocations. Keeps the live allocations and the requested number of ended
/// ones.
#[derive(Clone, Debug, Default)]
pub struct LargestAnalysis {
    scope: MemoryScope,
    limit: usize,
    count: u64,
    live: HashMap<(Pid, AllocationKey), AllocationSpan>,
    ended: BinaryHeap<Reverse<BySize>>,
}

/// The largest allocations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LargestAllocations {
    /// The allocations, oldest first.
    pub allocations: Vec<AllocationSpan>,
    /// Number of all allocations.
    pub count: u64,
}

/// Orders by size, then by lifetime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct BySize(AllocationSpan);

impl BySize {
    fn rank(&self) -> (u64, u64, Reverse<Timestamp>, Reverse<AllocationKey>) {
        let AllocationSpan { bytes, allocated_at, ended, key, .. } = self.0;
        let age = ended.map_or(u64::MAX, |(end, _)| (end - allocated_at).0);
        (bytes, age, Reverse(allocated_at), Reverse(key))
    }
}

impl Ord for BySize {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for BySize {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl LargestAnalysis {
    /// Creates an analysis that keeps the `limit` largest allocations.
    #[must_use]
    pub fn new(scope: MemoryScope, limit: usize) -> Self {
        Self { scope, limit, ..Self::default() }
    }

    /// Adds a change.
    pub fn observe(&mut self, change: &AllocationChange) {
        if !self.scope.counts(change.kind) {
            return;
        }
        let AllocationChange { at, pid, tid, device, kind, key, bytes, site, .. } = *change;
        let span = |allocated_at| AllocationSpan {
            key,
            bytes,
            allocated_at,
            ended: None,
            pid,
            tid,
            device,
            kind,
            site,
        };
        match change.action {
            ChangeKind::Allocated => {
                self.count += 1;
                if let Some(older) = self.live.insert((pid, key), span(at)) {
                    // The file has two allocations with the same key and no free between them.
                    self.keep(AllocationSpan { ended: Some((at, EndReason::Replaced)), ..older });
                }
            }
            ChangeKind::Ended { allocated_at, reason } => {
                let span = self.live.remove(&(pid, key)).unwrap_or(span(allocated_at));
                self.keep(AllocationSpan { ended: Some((at, reason)), ..span });
            }
            ChangeKind::Updated { allocated_at, .. } => {
                self.live.insert((pid, key), span(allocated_at));
            }
        }
    }

    fn keep(&mut self, span: AllocationSpan) {
        self.ended.push(Reverse(BySize(span)));
        if self.ended.len() > self.limit {
            self.ended.pop();
        }
    }

    /// Returns the largest allocations.
    #[must_use]
    pub fn finish(mut self) -> LargestAllocations {
        for (_, span) in std::mem::take(&mut self.live) {
            self.keep(span);
        }
        let mut allocations: Vec<_> =
            self.ended.into_iter().map(|Reverse(BySize(span))| span).collect();
        allocations.sort_by_key(|span| (span.allocated_at, span.pid, span.key));
        LargestAllocations { allocations, count: self.count }
    }
}
