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
    pub place: GroupKey,
    /// All allocations.
    pub began: Amount,
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
    place: GroupKey,
    began: Amount,
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
    measure: MemoryScope,
    index: HashMap<(u64, u64), u32>,
    sums: Vec<GroupSums>,
    /// Most recently used group: programs allocate and free in runs.
    last: Option<((u64, u64), u32)>,
    now: RunningSum,
    peak: RunningSum,
    peak_at: Timestamp,
}

impl GroupTable {
    /// Creates an empty table; `measure` selects the memory that the peak includes.
    #[must_use]
    pub fn new(measure: MemoryScope) -> Self {
        Self { measure, ..Self::default() }
    }

    /// Adds a change.
    pub fn observe(&mut self, change: &AllocationChange) {
        let place = GroupKey::of(change);
        let bytes = change.bytes;
        let counts = self.measure.counts(change.kind);
        match change.action {
            ChangeKind::Allocated => {
                let sums = self.sums(place);
                sums.began = sums.began.plus(Amount { bytes, allocations: 1 });
                sums.begin(bytes);
                if counts {
                    self.now.add(bytes);
                }
            }
            ChangeKind::Ended { how, .. } => {
                let sums = self.sums(place);
                sums.end(bytes);
                match how {
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
                let old = self.sums(place.on(before.device));
                let amount = Amount { bytes: before.bytes, allocations: 1 };
                old.end(before.bytes);
                old.began.bytes = old.began.bytes.saturating_sub(amount.bytes);
                old.began.allocations = old.began.allocations.saturating_sub(1);
                let new = self.sums(place);
                new.began = new.began.plus(Amount { bytes, allocations: 1 });
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

    fn sums(&mut self, place: GroupKey) -> &mut GroupSums {
        let packed = place.packed();
        let index = match self.last {
            Some((last, index)) if last == packed => index,
            _ => self.find(packed, place),
        };
        &mut self.sums[index as usize]
    }

    fn find(&mut self, packed: (u64, u64), place: GroupKey) -> u32 {
        let Self { index, sums, .. } = self;
        let found = *index.entry(packed).or_insert_with(|| {
            sums.push(GroupSums::new(place));
            (sums.len() - 1) as u32
        });
        self.last = Some((packed, found));
        found
    }

    /// Memory that counts in this file.
    #[must_use]
    pub const fn measure(&self) -> MemoryScope {
        self.measure
    }

    /// All groups with an allocation, in order of first appearance.
    pub fn iter(&self) -> impl Iterator<Item = Group> {
        self.sums.iter().map(GroupSums::group).filter(|group| group.began.allocations > 0)
    }

    /// Peak of the counted memory over all processes and devices, and when it was first reached.
    #[must_use]
    pub fn peak(&self) -> (u64, Timestamp) {
        (self.peak.value(), self.peak_at)
    }
}

impl GroupSums {
    const fn new(place: GroupKey) -> Self {
        let none = Amount { bytes: 0, allocations: 0 };
        let zero = RunningSum(0);
        Self {
            place,
            began: none,
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
            place: self.place,
            began: self.began,
            freed: self.freed,
            released: self.released,
            live: Amount { bytes: self.live.value(), allocations },
            exited: self.exited,
            peak_bytes: self.peak.value(),
        }
    }
}
