//! What a framework's caching allocator does with the memory that it took from the driver. An
//! annotation: nothing of it is ever added to the driver's bytes.

use crate::ids::{DeviceId, SiteId};

/// The allocator of PyTorch gave out a block or took one back, with its own sums after that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TensorCall {
    /// What happened.
    pub what: TensorTurn,
    /// The device as the process counts them.
    pub device: DeviceId,
    /// All blocks that are given out on that device, as the allocator counts them.
    pub allocated: u64,
    /// All memory that it holds of the device.
    pub reserved: u64,
}

/// What happened to a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TensorTurn {
    /// It was given out.
    Began {
        /// Where it lies.
        address: u64,
        /// How long it is, as the allocator rounds it.
        bytes: u64,
        /// Where in the program.
        site: Option<SiteId>,
    },
    /// It was taken back.
    Ended {
        /// Where it lies.
        address: u64,
        /// How long it is.
        bytes: u64,
    },
    /// There was no memory for one.
    Refused {
        /// What was asked for.
        bytes: u64,
        /// Where in the program.
        site: Option<SiteId>,
    },
}
