//! The largest allocations of a file with their lifetimes, for charts that draw single allocations.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::MemoryScope;
use super::lifetimes::{Lifetime, LifetimeTracker};
use crate::model::{AllocationChange, AllocationKey, ChangeKind, EndReason, Timestamp};

/// Finds the largest allocations. Keeps the live allocations and the requested number of ended
/// ones.
#[derive(Clone, Debug)]
pub struct LargestAnalysis {
    scope: MemoryScope,
    count: u64,
    lifetimes: LifetimeTracker,
    /// By size, then by lifetime.
    largest: Largest<(u64, u64, Reverse<Timestamp>, Reverse<AllocationKey>), Lifetime>,
}

/// The largest allocations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LargestAllocations {
    /// The allocations, oldest first.
    pub allocations: Vec<Lifetime>,
    /// Number of all allocations.
    pub count: u64,
}

/// The values with the highest ranks, and the number of others.
#[derive(Clone, Debug)]
pub struct Largest<R, T> {
    limit: usize,
    /// Of equal ranks, the first one is kept.
    by_rank: BTreeMap<(R, Reverse<u64>), T>,
    /// Number of values that were added.
    pub added: u64,
}

impl<R: Ord, T> Largest<R, T> {
    /// Keeps `limit` values.
    pub const fn new(limit: usize) -> Self {
        Self { limit, by_rank: BTreeMap::new(), added: 0 }
    }

    /// Adds a value.
    pub fn add(&mut self, rank: R, value: T) {
        self.added += 1;
        if self.by_rank.len() >= self.limit {
            match self.by_rank.first_entry() {
                Some(lowest) if lowest.key().0 < rank => lowest.remove(),
                _ => return,
            };
        }
        self.by_rank.insert((rank, Reverse(self.added)), value);
    }

    /// Returns the values, highest first.
    pub fn into_values(self) -> impl Iterator<Item = T> {
        self.by_rank.into_values().rev()
    }
}

impl LargestAnalysis {
    /// Creates an analysis that keeps the `limit` largest allocations.
    pub fn new(scope: MemoryScope, limit: usize) -> Self {
        let (count, lifetimes) = (0, LifetimeTracker::default());
        Self { scope, count, lifetimes, largest: Largest::new(limit) }
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
        let Lifetime { change, allocated_at, ended } = lifetime;
        let age = ended.map_or(u64::MAX, |(end, _)| (end - allocated_at).0);
        let rank = (change.bytes, age, Reverse(allocated_at), Reverse(change.key));
        self.largest.add(rank, lifetime);
    }

    /// Returns the largest allocations.
    pub fn finish(mut self) -> LargestAllocations {
        for live in std::mem::take(&mut self.lifetimes).finish() {
            self.keep(live);
        }
        let mut allocations: Vec<_> = self.largest.into_values().collect();
        allocations.sort_by_key(|one| (one.allocated_at, one.change.pid, one.change.key));
        LargestAllocations { allocations, count: self.count }
    }
}
