//! Offline analysis. Each module is given every change of a file, in order, and returns its report
//! at the end. None keeps more than the live allocations or the data that it reports.
//!
//! [`groups`] adds up allocations by group and is the basis of [`leaks`], [`summary`], [`diff`] and
//! [`bands`]. [`peak`] and [`usage`] keep the part of the history that they need. [`lifetimes`]
//! returns single allocations. [`phases`] measures the time between marks. [`fragmentation`] analyzes the final state of caches. [`bands`] and
//! [`largest`] provide the data of charts. Verdicts are those of [`crate::ledger::FileLedger`].
#![allow(clippy::cast_possible_truncation, reason = "fewer rows than 2^32")]

pub mod bands;
pub mod diff;
pub mod fragmentation;
pub mod groups;
pub mod largest;
pub mod leaks;
pub mod lifetimes;
pub mod peak;
pub mod phases;
pub mod summary;
mod time_buckets;
pub mod usage;

use std::hash::Hash;

use hashbrown::HashMap;

pub use crate::model::memory_kind::MemoryScope;
use crate::model::{AllocationChange, ChangeKind, DeviceId, MemoryKind, MemoryLayer, Pid, SiteId};

/// What allocations are grouped by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct GroupKey {
    /// Process.
    pub pid: Pid,
    /// Device, if known.
    pub device: Option<DeviceId>,
    /// Memory kind.
    pub kind: MemoryKind,
    /// Allocation site, if known.
    pub site: Option<SiteId>,
}

impl GroupKey {
    /// Group of a change.
    pub const fn of(change: &AllocationChange) -> Self {
        Self { pid: change.pid, device: change.device, kind: change.kind, site: change.site }
    }

    /// The same group on another device.
    const fn on(self, device: Option<DeviceId>) -> Self {
        Self { device, ..self }
    }

    /// Packs the key into two words: tables are read with every change.
    fn packed(self) -> (u64, u64) {
        let device = self.device.map_or(0, |device| u64::from(device.0) + 1);
        let site = self.site.map_or(0, |site| u64::from(site.0) + 1);
        (u64::from(self.pid.0) | (self.kind as u64) << 32 | device << 40, site)
    }
}

/// Effect of a change on one group: an allocation to take away, one to add, or both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delta {
    /// The group.
    pub key: GroupKey,
    /// Size to subtract.
    pub less: Option<u64>,
    /// Size to add.
    pub more: Option<u64>,
}

impl Delta {
    /// Effects of a change: two if an update moves memory to another device.
    pub fn of(change: &AllocationChange) -> impl Iterator<Item = Self> {
        let (key, more) = (GroupKey::of(change), Some(change.bytes));
        let (first, second) = match change.action {
            ChangeKind::Allocated => (Self { key, less: None, more }, None),
            ChangeKind::Ended { .. } => (Self { key, less: more, more: None }, None),
            ChangeKind::Updated { before, .. } if before.device == change.device => {
                (Self { key, less: Some(before.bytes), more }, None)
            }
            ChangeKind::Updated { before, .. } => {
                let from = key.on(before.device);
                let less = Some(before.bytes);
                (Self { key: from, less, more: None }, Some(Self { key, less: None, more }))
            }
        };
        std::iter::once(first).chain(second)
    }

    /// Whether it changes a sum of sizes.
    pub fn changes_size(&self) -> bool {
        self.less.unwrap_or(0) != self.more.unwrap_or(0)
    }

    /// Applies the sizes to a sum.
    pub fn apply(&self, sum: &mut RunningSum) {
        sum.subtract(self.less.unwrap_or(0));
        sum.add(self.more.unwrap_or(0));
    }
}

/// Values by key. The most recently used one is found at once: programs allocate and free in runs.
#[derive(Clone, Debug)]
struct Table<K, V> {
    index: HashMap<K, u32>,
    rows: Vec<V>,
    last: Option<(K, u32)>,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self { index: HashMap::new(), rows: Vec::new(), last: None }
    }
}

impl<K: Copy + Eq + Hash, V> Table<K, V> {
    /// Value of a key; adds it if it is new.
    fn get(&mut self, key: K, new: impl FnOnce() -> V) -> &mut V {
        let Self { index, rows, last } = self;
        let row = match *last {
            Some((known, row)) if known == key => row,
            _ => *index.entry(key).or_insert_with(|| {
                rows.push(new());
                (rows.len() - 1) as u32
            }),
        };
        *last = Some((key, row));
        &mut rows[row as usize]
    }

    /// All keys with their values.
    fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.index.iter().filter_map(|(key, row)| Some((*key, self.rows.get(*row as usize)?)))
    }

    fn find(&self, key: K) -> Option<&V> {
        self.index.get(&key).and_then(|row| self.rows.get(*row as usize))
    }
}

/// Bytes and number of allocations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Amount {
    /// Total size.
    pub bytes: u64,
    /// Number of allocations.
    pub allocations: u64,
}

impl Amount {
    /// Sum of two amounts; saturates.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            allocations: self.allocations.saturating_add(other.allocations),
        }
    }

    /// Difference of two amounts; at least 0.
    const fn minus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            allocations: self.allocations.saturating_sub(other.allocations),
        }
    }
}

/// Totals by kind, in the order of kinds.
pub fn by_kind(parts: impl Iterator<Item = (MemoryKind, Amount)>) -> Vec<(MemoryKind, Amount)> {
    let mut sums = [Amount::default(); MemoryKind::COUNT];
    for (kind, amount) in parts {
        if let Some(sum) = sums.get_mut(kind.index()) {
            *sum = sum.plus(amount);
        }
    }
    MemoryKind::ALL.into_iter().zip(sums).filter(|(_, sum)| sum.allocations > 0).collect()
}

/// Whether this kind is host memory.
pub const fn is_host(kind: MemoryKind) -> bool {
    matches!(kind.layer(), MemoryLayer::Host)
}

/// Whether this kind migrates between host and device.
pub const fn is_managed(kind: MemoryKind) -> bool {
    matches!(kind.layer(), MemoryLayer::Managed)
}

/// A running sum. Files may contain any sizes, and frees without allocations: the sum is wide
/// enough for all of them, and [`RunningSum::value`] clamps it to the range of `u64`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct RunningSum(i128);

impl RunningSum {
    /// Increases the sum.
    pub fn add(&mut self, bytes: u64) {
        self.0 = self.0.saturating_add(i128::from(bytes));
    }

    /// Decreases the sum.
    pub fn subtract(&mut self, bytes: u64) {
        self.0 = self.0.saturating_sub(i128::from(bytes));
    }

    /// The sum, clamped to the range of `u64`.
    pub fn value(self) -> u64 {
        u64::try_from(self.0.max(0)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torch_scope_counts_blocks_and_device_scope_device_memory() {
        let counted = |scope: MemoryScope| -> Vec<&str> {
            let kinds = MemoryKind::ALL.into_iter().filter(|kind| scope.counts(*kind));
            kinds.map(MemoryKind::name).collect()
        };
        let device = ["device", "array", "physical", "graph", "async", "static"];
        assert_eq!(counted(MemoryScope::Device), device);
        assert_eq!(counted(MemoryScope::Torch), ["torch"]);
    }

    #[test]
    fn packed_group_keys_are_distinct() {
        let group = GroupKey { pid: Pid(1), device: None, kind: MemoryKind::Device, site: None };
        let others = [
            GroupKey { pid: Pid(2), ..group },
            GroupKey { device: Some(DeviceId(0)), ..group },
            GroupKey { device: Some(DeviceId(u16::MAX)), ..group },
            GroupKey { kind: MemoryKind::Unknown, ..group },
            GroupKey { site: Some(SiteId(0)), ..group },
            GroupKey { site: Some(SiteId(u32::MAX)), ..group },
        ];
        let mut packed: Vec<_> = others.iter().map(|other| other.packed()).collect();
        packed.push(group.packed());
        packed.sort_unstable();
        packed.dedup();
        assert_eq!(packed.len(), 7);
    }

    #[test]
    fn running_sum_saturates() {
        let mut sum = RunningSum::default();
        sum.subtract(5);
        assert_eq!(sum.value(), 0);
        sum.add(u64::MAX);
        sum.add(u64::MAX);
        assert_eq!(sum.value(), u64::MAX);
        sum.subtract(u64::MAX);
        assert_eq!(sum.value(), u64::MAX - 5);
    }
}
