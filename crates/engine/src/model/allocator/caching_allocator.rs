//! State of a framework's or driver's cache at one time: segments allocated from the device, and
//! the blocks they are split into. Input of the fragmentation analysis.

use crate::model::{DeviceId, Pid, SiteId, StreamId, Timestamp};

/// A pool of a cache. Memory is never shared between pools, or between streams of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct CachePool {
    /// Pool id: (0, 0) is the framework's default pool, others are private pools (graphs).
    pub id: (u64, u64),
    /// Size class of the pool.
    pub size_class: PoolSizeClass,
}

/// Size class that a pool serves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum PoolSizeClass {
    /// All sizes, or unknown.
    #[default]
    Whole,
    /// Small blocks.
    Small,
    /// Large blocks.
    Large,
}

/// Memory that a cache allocated from the device in one piece.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Device.
    pub device: Option<DeviceId>,
    /// Pool.
    pub pool: CachePool,
    /// Stream.
    pub stream: Option<StreamId>,
    /// Start address.
    pub address: u64,
    /// Size.
    pub bytes: u64,
    /// Whether it can grow in place (expandable segments).
    pub expandable: bool,
    /// Blocks by address, without gaps.
    pub blocks: Box<[Block]>,
}

/// A block of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// Start address.
    pub address: u64,
    /// Size.
    pub bytes: u64,
    /// Bytes that the program requested; the rest is rounding.
    pub requested: u64,
    /// State.
    pub state: BlockState,
    /// Allocation site.
    pub site: Option<SiteId>,
}

/// State of a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BlockState {
    /// Held by the program.
    Allocated,
    /// Freed by the program, but a stream may still use it.
    PendingFree,
    /// Free for the next request that fits.
    Free,
}

/// Totals of a pool whose blocks are unknown (the driver's pools).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolTotals {
    /// Process that owns the pool: handles of two processes may be equal.
    pub pid: Pid,
    /// Device.
    pub device: Option<DeviceId>,
    /// Handle; 0 for a default pool whose handle is unknown.
    pub pool: u64,
    /// Device memory that it holds, if reported.
    pub reserved: Option<u64>,
    /// Memory allocated from it.
    pub used: u64,
    /// Time of these values.
    pub at: Timestamp,
}

/// Settings of a framework's caching allocator, as far as they are known.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct AllocatorSettings {
    /// The settings as the user wrote them (untrusted); empty if there are none.
    pub text: String,
    /// Whether segments grow in place; `None` if unknown.
    pub expandable_segments: Option<bool>,
    /// Blocks of at least this size are not split; `None` if there is no limit or it is unknown.
    pub max_split_bytes: Option<u64>,
    /// Share of the allowed memory above which the cache frees unused segments; 0 means never,
    /// `None` unknown.
    pub garbage_collection_threshold: Option<f64>,
    /// Divisions per power of two of the request size, starting at 1 MiB; requests are rounded up
    /// to the next division. 0 and 1 mean rounding to [`AllocatorSettings::BLOCK_ALIGNMENT`].
    pub roundup_divisions: [u64; 16],
}

impl AllocatorSettings {
    /// Block sizes are multiples of this.
    pub const BLOCK_ALIGNMENT: u64 = 512;

    /// Size of the block that serves a request of `bytes`, after rounding.
    pub fn rounded(&self, bytes: u64) -> u64 {
        let plain =
            bytes.max(1).div_ceil(Self::BLOCK_ALIGNMENT).saturating_mul(Self::BLOCK_ALIGNMENT);
        if bytes <= Self::BLOCK_ALIGNMENT {
            return Self::BLOCK_ALIGNMENT;
        }
        let step = (bytes.ilog2().saturating_sub(20) as usize).min(15);
        let divisions = self.roundup_divisions.get(step).copied().unwrap_or(0);
        if divisions <= 1 || bytes <= Self::BLOCK_ALIGNMENT.saturating_mul(divisions) {
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

/// A quantity with its peak.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CurrentAndPeak {
    /// Value at the end.
    pub current: u64,
    /// Peak.
    pub peak: u64,
}

impl CurrentAndPeak {
    /// Increases the value.
    pub fn add(&mut self, bytes: u64) {
        self.current = self.current.saturating_add(bytes);
        self.peak = self.peak.max(self.current);
    }

    /// Decreases the value.
    pub fn sub(&mut self, bytes: u64) {
        self.current = self.current.saturating_sub(bytes);
    }
}

/// A framework's own statistics of its cache on one device, recomputed from its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AllocatorStats {
    /// Device.
    pub device: Option<DeviceId>,
    /// Blocks held by the program.
    pub allocated: CurrentAndPeak,
    /// Bytes that the program requested for them.
    pub requested: CurrentAndPeak,
    /// Blocks held by the program, and those that a stream may still use.
    pub active: CurrentAndPeak,
    /// Device memory held by the cache.
    pub reserved: CurrentAndPeak,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_rounded_to_512_bytes_or_to_steps_of_a_doubling() {
        let plain = AllocatorSettings::default();
        for (size, got) in [(0, 512), (1, 512), (512, 512), (513, 1024), (5_000_000, 5_000_192)] {
            assert_eq!(plain.rounded(size), got, "{size}");
        }
        let stepped =
            AllocatorSettings { roundup_divisions: [4; 16], ..AllocatorSettings::default() };
        const MIB: u64 = 1 << 20;
        for (size, got) in [
            (2048, 2048),
            (2049, 2560),
            (1200, 1536),
            (MIB, MIB),
            (MIB + 1, MIB + MIB / 4),
            (5 * MIB, 5 * MIB),
            (5 * MIB + 1, 6 * MIB),
            (7 * MIB + 1, 8 * MIB),
        ] {
            assert_eq!(stepped.rounded(size), got, "{size}");
        }
        assert!(stepped.rounded(u64::MAX) >= u64::MAX - 1024);
        assert!(plain.rounded(u64::MAX) >= u64::MAX - 1024);
    }
}
