//! What a framework's or driver's cache holds at one moment: segments taken from the device, and
//! the blocks they are cut into. Fragmentation is judged from this.

use crate::ids::{DeviceId, Pid, SiteId, StreamId};
use crate::units::Moment;

/// A pool of a cache. Memory is never shared between pools, nor between streams of one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct CachePool {
    /// Who owns it: (0, 0) is the framework's own, others are private pools (graphs).
    pub id: (u64, u64),
    /// Which part of it.
    pub part: Part,
}

/// Pools are divided by the size of what they serve.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Part {
    /// Not divided, or not known.
    #[default]
    Whole,
    /// Small blocks.
    Small,
    /// Large blocks.
    Large,
}

/// Memory that a cache took from the device in one piece.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The device.
    pub device: Option<DeviceId>,
    /// The pool.
    pub pool: CachePool,
    /// The stream.
    pub stream: Option<StreamId>,
    /// Where it begins.
    pub address: u64,
    /// How much it is.
    pub bytes: u64,
    /// It can grow in place (expandable segments).
    pub expandable: bool,
    /// Its blocks, by address, without gaps.
    pub blocks: Box<[Block]>,
}

/// A part of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// Where it begins.
    pub address: u64,
    /// How much it is.
    pub bytes: u64,
    /// What the program asked for; the rest is rounding.
    pub requested: u64,
    /// What it is doing.
    pub state: BlockState,
    /// Where in the program it was allocated.
    pub site: Option<SiteId>,
}

/// What a block is doing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BlockState {
    /// The program holds it.
    Allocated,
    /// The program gave it back; a stream may still use it.
    PendingFree,
    /// Free for the next request that fits.
    Free,
}

/// What is known of a pool of which only sums are told (the driver's own pools).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolSums {
    /// Whose pool it is: handles of two processes may be equal.
    pub pid: Pid,
    /// The device.
    pub device: Option<DeviceId>,
    /// The pool's handle; 0 is a default pool whose handle was never told.
    pub pool: u64,
    /// What it holds of the device, where that was told.
    pub reserved: Option<u64>,
    /// What is allocated from it.
    pub used: u64,
    /// When this was so.
    pub at: Moment,
}

/// How a framework's cache is set up, as far as it is told.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct CacheSettings {
    /// The settings as the user wrote them (hostile text); empty when there are none.
    pub text: String,
    /// Segments grow in place; `None` when it is not told.
    pub expandable_segments: Option<bool>,
    /// Blocks of this size or more are not split; `None` when there is no limit, or none is told.
    pub max_split_bytes: Option<u64>,
    /// From this part of the allowed memory on, the cache gives unused segments back; 0 is never,
    /// `None` when it is not told.
    pub garbage_collection_threshold: Option<f64>,
    /// Into how many steps each doubling of a request's size is divided, from 1 MiB on; requests
    /// are rounded up to a step. 0 and 1 are none: rounding to [`CacheSettings::GRAIN`].
    pub roundup_divisions: [u64; 16],
}

impl CacheSettings {
    /// Blocks are multiples of this many bytes.
    pub const GRAIN: u64 = 512;

    /// What a request takes of the cache, before the rest of a block is left with it.
    #[must_use]
    pub fn rounded(&self, bytes: u64) -> u64 {
        let plain = bytes.max(1).div_ceil(Self::GRAIN).saturating_mul(Self::GRAIN);
        if bytes <= Self::GRAIN {
            return Self::GRAIN;
        }
        let step = (bytes.ilog2().saturating_sub(20) as usize).min(15);
        let divisions = self.roundup_divisions.get(step).copied().unwrap_or(0);
        if divisions <= 1 || bytes <= Self::GRAIN.saturating_mul(divisions) {
            return plain;
        }
        if bytes.is_power_of_two() {
            return bytes;
        }
        let floor = 1_u64 << bytes.ilog2();
        match floor >> divisions.ilog2() {
            0 => floor.saturating_mul(2),
            step => bytes.div_ceil(step).saturating_mul(step),
        }
    }
}

/// A sum over time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Level {
    /// At the end.
    pub current: u64,
    /// At the most.
    pub peak: u64,
}

impl Level {
    /// The sum rises.
    pub fn add(&mut self, bytes: u64) {
        self.current = self.current.saturating_add(bytes);
        self.peak = self.peak.max(self.current);
    }

    /// The sum falls.
    pub fn sub(&mut self, bytes: u64) {
        self.current = self.current.saturating_sub(bytes);
    }
}

/// What a framework's own statistics say of its cache on one device, found again from its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheLevels {
    /// The device.
    pub device: Option<DeviceId>,
    /// Blocks that the program holds.
    pub allocated: Level,
    /// What the program asked for when it got them.
    pub requested: Level,
    /// Blocks that the program holds, and those that a stream may still use.
    pub active: Level,
    /// What the cache holds of the device.
    pub reserved: Level,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_rounded_to_512_bytes_or_to_steps_of_a_doubling() {
        let plain = CacheSettings::default();
        for (asked, got) in [(0, 512), (1, 512), (512, 512), (513, 1024), (5_000_000, 5_000_192)] {
            assert_eq!(plain.rounded(asked), got, "{asked}");
        }
        let stepped = CacheSettings { roundup_divisions: [4; 16], ..CacheSettings::default() };
        const MIB: u64 = 1 << 20;
        for (asked, got) in [
            (2048, 2048),
            (2049, 2560),
            (1200, 1536),
            (MIB, MIB),
            (MIB + 1, MIB + MIB / 4),
            (5 * MIB, 5 * MIB),
            (5 * MIB + 1, 6 * MIB),
            (7 * MIB + 1, 8 * MIB),
        ] {
            assert_eq!(stepped.rounded(asked), got, "{asked}");
        }
        assert!(stepped.rounded(u64::MAX) >= u64::MAX - 1024);
        assert!(plain.rounded(u64::MAX) >= u64::MAX - 1024);
    }
}
