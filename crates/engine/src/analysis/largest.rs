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
    pub began: Timestamp,
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
    measure: MemoryScope,
    limit: usize,
    count: u64,
    live: HashMap<(Pid, AllocationKey), AllocationSpan>,
    ended: BinaryHeap<Reverse<BySize>>,
}

/// The largest allocations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LargestAllocations {
    /// The allocations, oldest first.
    pub lives: Vec<AllocationSpan>,
    /// Number of all allocations.
    pub count: u64,
}

/// Orders by size, then by lifetime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct BySize(AllocationSpan);

impl BySize {
    fn rank(&self) -> (u64, u64, Reverse<Timestamp>, Reverse<AllocationKey>) {
        let AllocationSpan { bytes, began, ended, key, .. } = self.0;
        let age = ended.map_or(u64::MAX, |(end, _)| (end - began).0);
        (bytes, age, Reverse(began), Reverse(key))
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
    pub fn new(measure: MemoryScope, limit: usize) -> Self {
        Self { measure, limit, ..Self::default() }
    }

    /// Adds a change.
    pub fn observe(&mut self, change: &AllocationChange) {
        if !self.measure.counts(change.kind) {
            return;
        }
        let AllocationChange { at, pid, tid, device, kind, key, bytes, site, .. } = *change;
        let life =
            |began| AllocationSpan { key, bytes, began, ended: None, pid, tid, device, kind, site };
        match change.action {
            ChangeKind::Allocated => {
                self.count += 1;
                if let Some(older) = self.live.insert((pid, key), life(at)) {
                    // The file has two allocations with the same key and no free between them.
                    self.keep(AllocationSpan { ended: Some((at, EndReason::Replaced)), ..older });
                }
            }
            ChangeKind::Ended { began, how } => {
                let life = self.live.remove(&(pid, key)).unwrap_or(life(began));
                self.keep(AllocationSpan { ended: Some((at, how)), ..life });
            }
            ChangeKind::Updated { began, .. } => {
                self.live.insert((pid, key), life(began));
            }
        }
    }

    fn keep(&mut self, life: AllocationSpan) {
        self.ended.push(Reverse(BySize(life)));
        if self.ended.len() > self.limit {
            self.ended.pop();
        }
    }

    /// Returns the largest allocations.
    #[must_use]
    pub fn finish(mut self) -> LargestAllocations {
        for (_, life) in std::mem::take(&mut self.live) {
            self.keep(life);
        }
        let mut lives: Vec<_> = self.ended.into_iter().map(|Reverse(BySize(life))| life).collect();
        lives.sort_by_key(|life| (life.began, life.pid, life.key));
        LargestAllocations { lives, count: self.count }
    }
}
