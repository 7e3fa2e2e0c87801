//! Offline questions, answered from changes: each analysis is fed every change of a file, in order,
//! and asked once at the end. None of them keeps more than what is live, or what it shows.
//!
//! [`groups`] adds up by place and is the ground of [`leakage`], [`summary`] and [`diff`];
//! [`watermark`], [`usage`] and [`suspects`] keep what they need of the course of time; [`lifetimes`]
//! tells allocations one by one; [`fragmentation`] looks at caches as they are at the end; [`bands`]
//! and [`lives`] are what pictures are made of.

pub mod bands;
pub mod diff;
pub mod fragmentation;
pub mod groups;
pub mod leak;
pub mod leakage;
pub mod lifetimes;
pub mod lives;
pub mod summary;
pub mod suspects;
pub mod unusual;
pub mod usage;
pub mod watermark;

use crate::change::Change;
use crate::ids::{DeviceId, Pid, SiteId};
use crate::kind::{Kind, Layer};

/// Which kinds are *the* memory of a file: what its sums, peaks and leaks are of. Layers are never
/// added, so there is one answer for each sort of file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Measure {
    /// Device memory, as the driver gave it out.
    #[default]
    Device,
    /// Blocks that a framework's cache gave out, for files that the framework wrote.
    Torch,
}

impl Measure {
    /// Whether memory of this kind counts.
    #[must_use]
    pub const fn counts(self, kind: Kind) -> bool {
        match self {
            Self::Device => kind.takes_device_memory(),
            Self::Torch => matches!(kind, Kind::Torch),
        }
    }
}

/// Whose memory it is, where it lies, and where in the program it came from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Place {
    /// The process.
    pub pid: Pid,
    /// The device, where known.
    pub device: Option<DeviceId>,
    /// The sort of memory.
    pub kind: Kind,
    /// The call stack, where known.
    pub site: Option<SiteId>,
}

impl Place {
    /// That of a change.
    #[must_use]
    pub const fn of(change: &Change) -> Self {
        Self { pid: change.pid, device: change.device, kind: change.kind, site: change.site }
    }

    /// The same with another device.
    const fn on(self, device: Option<DeviceId>) -> Self {
        Self { device, ..self }
    }

    /// The same in two words, for tables that are asked with every change.
    fn packed(self) -> (u64, u64) {
        let device = self.device.map_or(0, |device| u64::from(device.0) + 1);
        let site = self.site.map_or(0, |site| u64::from(site.0) + 1);
        (u64::from(self.pid.0) | (self.kind as u64) << 32 | device << 40, site)
    }
}

/// Bytes and allocations together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Amount {
    /// How much.
    pub bytes: u64,
    /// How many.
    pub allocations: u64,
}

impl Amount {
    /// Both sums; they stay at the largest number instead of starting again.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            allocations: self.allocations.saturating_add(other.allocations),
        }
    }
}

/// Sums by kind, in the order of kinds.
#[must_use]
pub fn by_kind(parts: impl Iterator<Item = (Kind, Amount)>) -> Vec<(Kind, Amount)> {
    let mut sums = [Amount::default(); Kind::COUNT];
    for (kind, amount) in parts {
        if let Some(sum) = sums.get_mut(kind.index()) {
            *sum = sum.plus(amount);
        }
    }
    Kind::ALL.into_iter().zip(sums).filter(|(_, sum)| sum.allocations > 0).collect()
}

/// Whether it is host memory.
#[must_use]
pub const fn is_host(kind: Kind) -> bool {
    matches!(kind.layer(), Layer::Host)
}

/// Whether it migrates between host and device.
#[must_use]
pub const fn is_managed(kind: Kind) -> bool {
    matches!(kind.layer(), Layer::Managed)
}

/// A running sum. Files may tell any sizes, and ends without beginnings: sums are wide enough for
/// all of them, and shown as a number from 0 to the largest one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Running(i128);

impl Running {
    /// The sum rises.
    pub fn add(&mut self, bytes: u64) {
        self.0 = self.0.saturating_add(i128::from(bytes));
    }

    /// The sum falls.
    pub fn take(&mut self, bytes: u64) {
        self.0 = self.0.saturating_sub(i128::from(bytes));
    }

    /// The sum, as far as a number can tell it.
    #[must_use]
    pub fn shown(self) -> u64 {
        u64::try_from(self.0.max(0)).unwrap_or(u64::MAX)
    }

    /// The sum divided by a count.
    fn mean(self, count: u64) -> u64 {
        Self(self.0 / i128::from(count.max(1))).shown()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torch_file_counts_blocks_and_every_other_one_device_memory() {
        let counted = |measure: Measure| -> Vec<&str> {
            let kinds = Kind::ALL.into_iter().filter(|kind| measure.counts(*kind));
            kinds.map(Kind::name).collect()
        };
        let device = ["device", "array", "physical", "graph", "async", "static"];
        assert_eq!(counted(Measure::Device), device);
        assert_eq!(counted(Measure::Torch), ["torch"]);
    }

    #[test]
    fn places_are_told_apart_in_their_packed_form() {
        let place = Place { pid: Pid(1), device: None, kind: Kind::Device, site: None };
        let others = [
            Place { pid: Pid(2), ..place },
            Place { device: Some(DeviceId(0)), ..place },
            Place { device: Some(DeviceId(u16::MAX)), ..place },
            Place { kind: Kind::Unknown, ..place },
            Place { site: Some(SiteId(0)), ..place },
            Place { site: Some(SiteId(u32::MAX)), ..place },
        ];
        let mut packed: Vec<_> = others.iter().map(|other| other.packed()).collect();
        packed.push(place.packed());
        packed.sort_unstable();
        packed.dedup();
        assert_eq!(packed.len(), 7);
    }

    #[test]
    fn a_running_sum_survives_what_files_may_say() {
        let mut sum = Running::default();
        sum.take(5);
        assert_eq!(sum.shown(), 0);
        sum.add(u64::MAX);
        sum.add(u64::MAX);
        assert_eq!(sum.shown(), u64::MAX);
        sum.take(u64::MAX);
        assert_eq!(sum.shown(), u64::MAX - 5);
    }
}
