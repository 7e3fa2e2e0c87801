//! What a framework's caching allocator does with the memory that it took from the driver. An
//! annotation: nothing of it is ever added to the driver's bytes.

use crate::ids::{DeviceId, SiteId};
use crate::units::{Bytes, Moment};

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

impl TensorCall {
    /// Tells where in the program it was.
    pub const fn set_site(&mut self, at: Option<SiteId>) {
        match &mut self.what {
            TensorTurn::Began { site, .. } | TensorTurn::Refused { site, .. } => *site = at,
            TensorTurn::Ended { .. } => {}
        }
    }
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

/// Whether the blocks of a process's cache are seen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TensorWatch {
    /// They are, from here on.
    Begun,
    /// They are not.
    Impossible(NoTensors),
}

/// Why nothing is known of a process's tensors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum NoTensors {
    /// `libc10_cuda.so` is there, and no `libc10.so` beside it.
    NoLibrary,
    /// `libc10.so` does not export the function that the cache tells its blocks to.
    NoFunction,
    /// `libc10.so` cannot be read.
    Unreadable,
    /// The kernel refused the probe.
    Refused,
    /// The cache is not used: every tensor is a stream-ordered allocation of the driver.
    DriverAllocates,
}

impl NoTensors {
    /// Every reason.
    pub const ALL: [Self; 5] =
        [Self::NoLibrary, Self::NoFunction, Self::Unreadable, Self::Refused, Self::DriverAllocates];

    /// The word for it in JSON and files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoLibrary => "no_library",
            Self::NoFunction => "no_symbol",
            Self::Unreadable => "unreadable",
            Self::Refused => "attach_failed",
            Self::DriverAllocates => "async_backend",
        }
    }

    /// The reason in words, with what to do.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::NoLibrary => {
                "libc10_cuda.so is loaded without libc10.so: renamed or statically linked PyTorch \
                 builds are not supported"
            }
            Self::NoFunction => {
                "libc10.so does not export reportMemoryUsageToProfiler: unsupported PyTorch build"
            }
            Self::Unreadable => "libc10.so is not readable; run as root",
            Self::Refused => "cannot attach a probe to libc10.so",
            Self::DriverAllocates => {
                "PyTorch uses cudaMallocAsync: tensors are listed as stream-ordered allocations"
            }
        }
    }
}

/// What PyTorch's cache does with the memory of one process. An annotation: no sum of the driver's
/// memory has a part of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TorchView {
    /// By device.
    pub devices: Vec<TorchDeviceView>,
    /// Records of blocks that were not delivered.
    pub lost: u64,
    /// Blocks that were not kept for lack of room.
    pub unlisted: u64,
    /// Why nothing is known.
    pub reason: Option<NoTensors>,
}

impl TorchView {
    /// Whether every block that is given out is known, and nothing else is taken for one.
    #[must_use]
    pub fn exact(&self) -> bool {
        self.lost == 0
            && self.unlisted == 0
            && self.reason.is_none()
            && self.devices.iter().all(|device| device.allocated == device.seen_bytes)
    }
}

/// The same of one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TorchDeviceView {
    /// The device as the process counts them.
    pub device: DeviceId,
    /// What is given out, as the allocator told with its last call.
    pub allocated: Bytes,
    /// What it holds of the device, as it told then; less where the driver's memory of the process is
    /// less by now.
    pub reserved: Bytes,
    /// The most that was given out, of all that it told.
    pub peak: Bytes,
    /// When that was.
    pub peak_at: Moment,
    /// Blocks that were seen to be given out, and not taken back.
    pub blocks: u64,
    /// How much these are: less than `allocated` where some were given out before the trace.
    pub seen_bytes: Bytes,
    /// Blocks that were given out in the trace.
    pub given_total: u64,
    /// Blocks that were taken back.
    pub taken_total: u64,
    /// Of those: that were never seen to be given out.
    pub unknown_taken: u64,
    /// Requests that there was no memory for.
    pub refused: u64,
    /// What lies unused.
    pub fragmentation: Result<Fragmentation, NoFragmentation>,
}

impl TorchDeviceView {
    /// What it holds and nobody uses.
    #[must_use]
    pub const fn cached(&self) -> Bytes {
        Bytes(self.reserved.0.saturating_sub(self.allocated.0))
    }
}

/// How unused memory of a cache lies in its segments, which it has from the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fragmentation {
    /// In segments without a block: `torch.cuda.empty_cache()` gives them back.
    pub whole: Bytes,
    /// Beside blocks, in segments that stay as long as those do.
    pub fragmented: Bytes,
    /// The longest unused piece of a segment that has blocks: what fits without new memory.
    pub largest_gap: Bytes,
}

/// Why it is not known how unused memory lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum NoFragmentation {
    /// Blocks were given out that are not known: before the trace, or by a lost record.
    BlocksUnseen,
    /// Blocks lie in memory that was not seen to be allocated.
    SegmentsUnseen,
    /// There are too many blocks to look at all of them for each report.
    TooMany,
}

impl NoFragmentation {
    /// The word for it in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BlocksUnseen => "blocks_unknown",
            Self::SegmentsUnseen => "segments_unknown",
            Self::TooMany => "too_many_blocks",
        }
    }

    /// The reason in a few words.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::BlocksUnseen => "some blocks are unknown",
            Self::SegmentsUnseen => "memory from before the trace",
            Self::TooMany => "too many blocks",
        }
    }
}
