//! The largest allocations of a file with their lifetimes, for charts that draw single allocations.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::MemoryScope;
use super::lifetimes::{Lifetime, LifetimeTracker};
use crate::model::change::{AllocationChange, ChangeKind, EndReason};
use crate::model::ids::AllocationKey;
use crate::model::units::Timestamp;

/// Finds the largest allocations. Keeps the live allocations and the requested number of ended
/// ones.
#[derive(Clone, Debug, Default)]
pub struct LargestAnalysis {
    scope: MemoryScope,
    limit: usize,
    count: u64,
    lifetimes: LifetimeTracker,
    ended: BinaryHeap<Reverse<BySize>>,
}

/// The largest allocations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LargestAllocations {
    /// The allocations, oldest first.
    pub allocations: Vec<Lifetime>,
    /// Number of all allocations.
    pub count: u64,
}

/// Orders by size, then by lifetime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct BySize(Lifetime);

impl BySize {
    fn rank(&self) -> (u64, u64, Reverse<Timestamp>, Reverse<AllocationKey>) {
        let Lifetime { change, allocated_at, ended } = self.0;
        let age = ended.map_or(u64::MAX, |(end, _)| (end - allocated_at).0);
        (change.bytes, age, Reverse(allocated_at), Reverse(change.key))
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
        self.count += u64::from(change.action == ChangeKind::Allocated);
        if let Some(ended) = self.lifetimes.observe(change) {
            // Without an end, the file has two allocations with the same key.
            let end = ended.ended.unwrap_or((change.at, EndReason::Replaced));
            self.keep(Lifetime { ended: Some(end), ..ended });
        }
    }

    fn keep(&mut self, lifetime: Lifetime) {
        self.ended.push(Reverse(BySize(lifetime)));
        if self.ended.len() > self.limit {
            self.ended.pop();
        }
    }

    /// Returns the largest allocations.
    #[must_use]
    pub fn finish(mut self) -> LargestAllocations {
        for live in std::mem::take(&mut self.lifetimes).finish() {
            self.keep(live);
        }
        let ended = self.ended.into_iter();
        let mut allocations: Vec<_> = ended.map(|Reverse(BySize(lifetime))| lifetime).collect();
        allocations.sort_by_key(|one| (one.allocated_at, one.change.pid, one.change.key));
        LargestAllocations { allocations, count: self.count }
    }
}
