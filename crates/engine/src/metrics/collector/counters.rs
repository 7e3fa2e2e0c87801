//! Counters of a process.

use crate::model::{CopyDirection, OUT_OF_MEMORY};
use crate::snapshot::ProcessView;

/// Counts that only grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct ProcessCounters {
    pub(super) allocations: u64,
    pub(super) frees: u64,
    pub(super) failures: u64,
    pub(super) out_of_memory: u64,
    pub(super) launches: u64,
    /// In the order of [`CopyDirection::ALL`].
    pub(super) copied: [u64; CopyDirection::ALL.len()],
}

impl ProcessCounters {
    pub(super) fn of(process: &ProcessView) -> Self {
        let ooms = process.failures.iter().filter(|failure| failure.code == OUT_OF_MEMORY);
        let activity = process.activity.as_ref();
        let copied = CopyDirection::ALL.map(|direction| {
            let copies = activity.into_iter().flat_map(|activity| &activity.copies);
            let these = copies.filter(|copies| copies.direction == direction);
            these.fold(0_u64, |sum, copies| sum.saturating_add(copies.bytes.0))
        });
        Self {
            allocations: process.allocations_total,
            frees: process.frees_total,
            failures: process.failed_allocations,
            out_of_memory: ooms.fold(0, |sum, failure| sum.saturating_add(failure.count)),
            launches: activity.map_or(0, |activity| activity.launches),
            copied,
        }
    }

    fn each(self, other: Self, with: impl Fn(u64, u64) -> u64) -> Self {
        let mut copied = [0; CopyDirection::ALL.len()];
        for (to, (one, two)) in copied.iter_mut().zip(self.copied.into_iter().zip(other.copied)) {
            *to = with(one, two);
        }
        Self {
            allocations: with(self.allocations, other.allocations),
            frees: with(self.frees, other.frees),
            failures: with(self.failures, other.failures),
            out_of_memory: with(self.out_of_memory, other.out_of_memory),
            launches: with(self.launches, other.launches),
            copied,
        }
    }

    /// Increments since an earlier count.
    pub(super) fn since(self, earlier: Self) -> Self {
        self.each(earlier, u64::saturating_sub)
    }

    pub(super) fn plus(self, more: Self) -> Self {
        self.each(more, u64::saturating_add)
    }

    pub(super) fn max_with(self, other: Self) -> Self {
        self.each(other, u64::max)
    }

    /// Whether this can be a later count of the same process.
    pub(super) const fn can_follow(&self, earlier: &Self) -> bool {
        self.allocations >= earlier.allocations && self.frees >= earlier.frees
    }
}
