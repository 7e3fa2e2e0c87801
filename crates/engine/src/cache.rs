//! What a framework's or driver's cache holds at one moment: segments taken from the device, and
//! the blocks they are cut into. Fragmentation is judged from this.

use crate::ids::{DeviceId, SiteId, StreamId};
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
