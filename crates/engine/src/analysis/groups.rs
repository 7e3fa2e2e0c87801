//! Totals by process, device, kind and site. One table lookup per change; single allocations are
//! not kept.

use hashbrown::HashMap;

use super::{Amount, GroupKey, MemoryScope, RunningSum};
use crate::model::change::{AllocationChange, ChangeKind, EndReason};
use crate::model::units::Timestamp;

/// All allocations with the same process, device, kind and site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group {
    /// What they have in common.
    pub key: GroupKey,
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
}

impl Group {
    /// Memory never freed: live at the end of the file or of its process.
    #[must_use]
    pub const fn never_freed(&self) -> Amount {
        self.live.plus(self.exited)
    }
}

/// Running totals of a group.
#[derive(Clone, Copy, Debug)]
struct GroupSums {
    key: GroupKey,
    allocated: Amount,
    freed: u64,
    released: u64,
    exited: Amount,
    live: RunningSum,
    count: i64,
    peak: RunningSum,
}

/// Totals of all groups.
#[derive(Clone, Debug, Default)]
pub struct GroupTable {
    scope: MemoryScope,
    index: HashMap<(u64, u64), u32>,
    sums: Vec<GroupSums>,
    /// Most recently used group: programs allocate and free in runs.
    last: Option<((u64, u64), u32)>,
    now: RunningSum,
    peak: RunningSum,
    peak_at: Timestamp,
}

impl GroupTable {
    /// Creates an empty table; `scope` selects the memory that the peak includes.
    #[must_use]
    pub fn new(scope: MemoryScope) -> Self {
        Self { scope, ..Self::default() }
    }

    /// Adds a change.
    pub fn observe(&mut self, change: &AllocationChange) {
        let key = GroupKey::of(change);
        let bytes = change.bytes;
        let counts = self.scope.counts(change.kind);
        match change.action {
            ChangeKind::Allocated => {
                let sums = self.sums(key);
                sums.allocated = sums.allocated.plus(Amount { bytes, allocations: 1 });
                sums.begin(bytes);
                if counts {
                    self.now.add(bytes);
                }
            }
            ChangeKind::Ended { reason, .. } => {
                let sums = self.sums(key);
                sums.end(bytes);
                match reason {
                    EndReason::Freed | EndReason::Replaced => sums.freed += 1,
                    EndReason::Released => sums.released += 1,
                    EndReason::ProcessExited => {
                        sums.exited = sums.exited.plus(Amount { bytes, allocations: 1 });
                    }
                }
                if counts {
                    self.now.subtract(bytes);
                }
            }
            ChangeKind::Updated { before, .. } => {
                let old = self.sums(key.on(before.device));
                let amount = Amount { bytes: before.bytes, allocations: 1 };
                old.end(before.bytes);
                old.allocated.bytes = old.allocated.bytes.saturating_sub(amount.bytes);
                old.allocated.allocations = old.allocated.allocations.saturating_sub(1);
                let new = self.sums(key);
                new.allocated = new.allocated.plus(Amount { bytes, allocations: 1 });
                new.begin(bytes);
                if counts {
                    self.now.subtract(before.bytes);
                    self.now.add(bytes);
                }
            }
        }
        if self.now > self.peak {
            self.peak = self.now;
            self.peak_at = change.at;
        }
    }

    fn sums(&mut self, key: GroupKey) -> &mut GroupSums {
        let packed = key.packed();
        let index = match self.last {
            Some((last, index)) if last == packed => index,
            _ => self.find(packed, key),
        };
        &mut self.sums[index as usize]
    }

    fn find(&mut self, packed: (u64, u64), key: GroupKey) -> u32 {
        let Self { index, sums, .. } = self;
        let found = *index.entry(packed).or_insert_with(|| {
            sums.push(GroupSums::new(key));
            (sums.len() - 1) as u32
        });
        self.last = Some((packed, found));
        found
    }

    /// Memory that counts in this file.
    #[must_use]
    pub const fn scope(&self) -> MemoryScope {
        self.scope
    }

    /// All groups with an allocation, in order of first appearance.
    pub fn iter(&self) -> impl Iterator<Item = Group> {
        self.sums.iter().map(GroupSums::group).filter(|group| group.allocated.allocations > 0)
    }

    /// Peak of the counted memory over all processes and devices, and when it was first reached.
    #[must_use]
    pub fn peak(&self) -> (u64, Timestamp) {
        (self.peak.value(), self.peak_at)
    }
}

impl GroupSums {
    const fn new(key: GroupKey) -> Self {
        let none = Amount { bytes: 0, allocations: 0 };
        let zero = RunningSum(0);
        Self {
            key,
            allocated: none,
            freed: 0,
            released: 0,
            exited: none,
            live: zero,
            count: 0,
            peak: zero,
        }
    }

    fn begin(&mut self, bytes: u64) {
        self.live.add(bytes);
        self.count += 1;
        self.peak = self.peak.max(self.live);
    }

    fn end(&mut self, bytes: u64) {
        self.live.subtract(bytes);
        self.count -= 1;
    }

    fn group(&self) -> Group {
        let allocations = u64::try_from(self.count).unwrap_or(0);
        Group {
            key: self.key,
            allocated: self.allocated,
            freed: self.freed,
            released: self.released,
            live: Amount { bytes: self.live.value(), allocations },
            exited: self.exited,
            peak_bytes: self.peak.value(),
        }
    }
}
