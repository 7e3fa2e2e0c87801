//! Totals by process, device, kind and site. One table lookup per change; single allocations are
//! not kept.

use super::{Amount, Delta, GroupKey, MemoryScope, RunningSum, Table};
use crate::model::{AllocationChange, ChangeKind, EndReason, Timestamp};

/// All allocations with the same key, such as process, device, kind and site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group<K = GroupKey> {
    /// What they have in common.
    pub key: K,
    /// All allocations.
    pub allocated: Amount,
    /// Number freed by the program, including frees implied by the reuse of an address.
    pub freed: u64,
    /// Number that ended with their context or module.
    pub released: u64,
    /// Live at the end of the file.
    pub live: Amount,
    /// Live when their process ended.
    pub exited: Amount,
    /// Peak of the live bytes.
    pub peak_bytes: u64,
    /// When the peak was first reached.
    pub peak_at: Timestamp,
}

impl<K> Group<K> {
    /// Memory never freed: live at the end of the file or of its process.
    pub const fn never_freed(&self) -> Amount {
        self.live.plus(self.exited)
    }

    /// Adds another group. The peak is an upper bound: both may have been at different times.
    pub(super) fn add(&mut self, other: &Self) {
        self.allocated = self.allocated.plus(other.allocated);
        self.freed = self.freed.saturating_add(other.freed);
        self.released = self.released.saturating_add(other.released);
        self.live = self.live.plus(other.live);
        self.exited = self.exited.plus(other.exited);
        self.peak_bytes = self.peak_bytes.saturating_add(other.peak_bytes);
    }
}

/// Running totals of a group.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GroupSums {
    allocated: Amount,
    freed: u64,
    released: u64,
    exited: Amount,
    live: RunningSum,
    count: i64,
    peak: RunningSum,
    peak_at: Timestamp,
}

impl GroupSums {
    /// Applies the effect of a change. An update takes back earlier, incomplete data.
    pub(super) fn apply(&mut self, delta: &Delta, change: &AllocationChange) {
        let one = |bytes| Amount { bytes, allocations: 1 };
        if let Some(bytes) = delta.less {
            self.live.subtract(bytes);
            self.count = self.count.saturating_sub(1);
            match change.action {
                ChangeKind::Ended { reason: EndReason::Freed | EndReason::Replaced, .. } => {
                    self.freed = self.freed.saturating_add(1);
                }
                ChangeKind::Ended { reason: EndReason::Released, .. } => {
                    self.released = self.released.saturating_add(1);
                }
                ChangeKind::Ended { reason: EndReason::ProcessExited, .. } => {
                    self.exited = self.exited.plus(one(bytes));
                }
                ChangeKind::Allocated | ChangeKind::Updated { .. } => {
                    self.allocated = self.allocated.minus(one(bytes));
                }
            }
        }
        if let Some(bytes) = delta.more {
            self.allocated = self.allocated.plus(one(bytes));
            self.live.add(bytes);
            self.count = self.count.saturating_add(1);
            if self.live > self.peak {
                (self.peak, self.peak_at) = (self.live, change.at);
            }
        }
    }

    pub(super) fn peak(&self) -> (u64, Timestamp) {
        (self.peak.value(), self.peak_at)
    }

    pub(super) fn group<K>(&self, key: K) -> Group<K> {
        let allocations = u64::try_from(self.count).unwrap_or(0);
        Group {
            key,
            allocated: self.allocated,
            freed: self.freed,
            released: self.released,
            live: Amount { bytes: self.live.value(), allocations },
            exited: self.exited,
            peak_bytes: self.peak.value(),
            peak_at: self.peak_at,
        }
    }
}

/// Totals of all groups.
#[derive(Clone, Debug, Default)]
pub struct GroupTable {
    scope: MemoryScope,
    groups: Table<(u64, u64), (GroupKey, GroupSums)>,
    /// All counted memory, its peak, and when that was first reached.
    live: RunningSum,
    peak: (RunningSum, Timestamp),
}

impl GroupTable {
    /// Creates an empty table; `scope` selects the memory that the peak includes.
    pub fn new(scope: MemoryScope) -> Self {
        Self { scope, ..Self::default() }
    }

    /// Adds a change.
    pub fn observe(&mut self, change: &AllocationChange) {
        Delta::of(change).for_each(|delta| {
            let key = delta.key;
            let (_, sums) = self.groups.get(key.packed(), || (key, GroupSums::default()));
            sums.apply(&delta, change);
            if self.scope.counts(key.kind) {
                delta.apply(&mut self.live);
                if self.live > self.peak.0 {
                    self.peak = (self.live, change.at);
                }
            }
        });
    }

    /// Memory that counts in this file.
    pub const fn scope(&self) -> MemoryScope {
        self.scope
    }

    /// All groups with an allocation, in order of first appearance.
    pub fn iter(&self) -> impl Iterator<Item = Group> {
        let all = self.groups.rows.iter().map(|(key, sums)| sums.group(*key));
        all.filter(|group| group.allocated.allocations > 0)
    }

    /// Peak of the counted memory over all processes and devices, and when it was first reached.
    pub fn peak(&self) -> (u64, Timestamp) {
        (self.peak.0.value(), self.peak.1)
    }
}
