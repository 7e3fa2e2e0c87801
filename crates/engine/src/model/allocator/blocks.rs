//! Events and views of allocators inside a process. They annotate driver memory: nothing of them is
//! ever added to the driver's bytes.

use crate::model::named::named_enum;
use crate::model::{Bytes, DeviceId, MemoryKind, Sampling, SamplingInterval, SiteId, Timestamp};

named_enum! {
    /// An allocator inside a process.
    pub enum Allocator {
        /// PyTorch's caching allocator.
        PyTorch => "pytorch",
        /// CuPy's memory pool.
        CuPy => "cupy",
        /// The best-fit allocator of XLA, which JAX uses.
        Xla => "xla",
        /// The memory resources of RMM.
        Rmm => "rmm",
        /// The arena of ONNX Runtime.
        OnnxRuntime => "onnxruntime",
    }
}

impl Allocator {
    /// The library that owns its driver memory.
    pub const fn library(self) -> &'static str {
        match self {
            Self::PyTorch => "PyTorch allocator",
            Self::Rmm => "RMM allocator",
            other => other.title(),
        }
    }

    /// Name for readers.
    pub const fn title(self) -> &'static str {
        match self {
            Self::PyTorch => "PyTorch",
            Self::CuPy => "CuPy",
            Self::Xla => "JAX",
            Self::Rmm => "RMM",
            Self::OnnxRuntime => "ONNX Runtime",
        }
    }

    /// What a block is called.
    pub const fn noun(self) -> &'static str {
        match self {
            Self::PyTorch => "tensor",
            Self::CuPy => "array",
            Self::Xla | Self::Rmm | Self::OnnxRuntime => "buffer",
        }
    }

    /// Kind of its blocks.
    pub const fn kind(self) -> MemoryKind {
        match self {
            Self::PyTorch => MemoryKind::Torch,
            Self::CuPy => MemoryKind::CuPy,
            Self::Xla => MemoryKind::Xla,
            Self::Rmm => MemoryKind::Rmm,
            Self::OnnxRuntime => MemoryKind::OnnxRuntime,
        }
    }

    /// Whether it passes its totals with each block. Without them, all blocks must be seen.
    pub const fn reports_totals(self) -> bool {
        matches!(self, Self::PyTorch)
    }
}

/// An allocator allocated or freed a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockEvent {
    /// The allocator.
    pub allocator: Allocator,
    /// What happened.
    pub op: BlockOp,
    /// Address of the pool in the process; 0 if there is one per device.
    pub pool: u64,
    /// Device ordinal in the process; `None` if it follows from the memory that contains the block.
    pub device: Option<DeviceId>,
    /// Totals of the allocator after that, if it passes them.
    pub totals: Option<AllocatorTotals>,
}

/// Totals of an allocator on one device, as it counts them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocatorTotals {
    /// Allocated bytes.
    pub allocated: u64,
    /// Device memory that it holds.
    pub reserved: u64,
}

impl BlockEvent {
    /// A block of PyTorch's allocator, with its totals after that.
    pub const fn pytorch(op: BlockOp, device: DeviceId, allocated: u64, reserved: u64) -> Self {
        let totals = Some(AllocatorTotals { allocated, reserved });
        Self { allocator: Allocator::PyTorch, op, pool: 0, device: Some(device), totals }
    }
}

/// What happened to a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "fields have the names of their types")]
pub enum BlockOp {
    /// The block was allocated, with a size that the allocator rounded.
    Allocated { address: u64, bytes: u64, site: Option<SiteId>, sampling: Sampling },
    /// The block was freed.
    Freed { address: u64, bytes: u64 },
    /// The allocation of this size failed: out of memory.
    OutOfMemory { bytes: u64, site: Option<SiteId> },
}

/// Whether the blocks of an allocator of a process are tracked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BlockTracking {
    /// They are tracked from here on.
    Active,
    /// They cannot be tracked.
    Unavailable(BlocksUnavailable),
}

named_enum! {
    /// Why the blocks of an allocator are unknown.
    pub enum BlocksUnavailable {
        /// The library with the allocator was found, but not the one to which it reports its blocks.
        NoLibrary => "no_library",
        /// The library has no symbol of the function that hands out blocks.
        NoSymbol => "no_symbol",
        /// The library cannot be read.
        Unreadable => "unreadable",
        /// The kernel rejected the probe, or the functions cannot be wrapped.
        AttachFailed => "attach_failed",
        /// The allocator is not used: each block is a stream-ordered allocation of the driver.
        AsyncBackend => "async_backend",
        /// Only the pools of the allocator are tracked, and it holds other memory.
        OutsidePools => "outside_pools",
        /// The memory of the process does not grow.
        NotGrowing => "not_growing",
    }
}

impl BlocksUnavailable {
    /// Reason in words, with a suggestion.
    pub const fn reason(self, allocator: Allocator) -> &'static str {
        match (self, allocator) {
            (Self::NoLibrary, _) => {
                "libc10_cuda.so is loaded without libc10.so: renamed or statically linked PyTorch \
                 builds are not supported"
            }
            (Self::NoSymbol, Allocator::PyTorch) => {
                "libc10.so does not export reportMemoryUsageToProfiler: unsupported PyTorch build"
            }
            (Self::NoSymbol, Allocator::OnnxRuntime) => {
                "published builds have no symbols of the arena"
            }
            (Self::NoSymbol, Allocator::Rmm) => {
                "builds before 26.6 have no symbols of the functions of its pools"
            }
            (Self::NoSymbol, _) => "this build has no symbols of the allocator",
            (Self::Unreadable, _) => "its library is not readable; run as root",
            (Self::AttachFailed, _) => "cannot trace the functions of its library",
            (Self::AsyncBackend, _) => {
                "PyTorch uses cudaMallocAsync: tensors are listed as stream-ordered allocations"
            }
            (Self::OutsidePools, _) => {
                "only pools are tracked, not arenas, fixed-size resources and single allocations"
            }
            (Self::NotGrowing, _) => {
                "they are tracked while the memory of the process grows; --allocators tracks them \
                 always"
            }
        }
    }
}

/// An allocator in one process. This annotates driver memory: it is not included in any total of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllocatorView {
    /// The allocator.
    pub allocator: Allocator,
    /// State by device and pool.
    pub pools: Vec<AllocatorPoolView>,
    /// Lost records of blocks.
    pub lost: u64,
    /// Blocks dropped because the limit was reached.
    pub unlisted: u64,
    /// The probes were attached after the first use: out-of-memory errors, and blocks of an allocator
    /// that does not pass its totals, may be missing.
    pub late: bool,
    /// Why nothing is known.
    pub reason: Option<BlocksUnavailable>,
    /// Driver memory that the library of the allocator holds, if its blocks are unknown: number of
    /// allocations and bytes.
    pub opaque: Option<(u64, Bytes)>,
    /// Set if call stacks were sampled: values by site are estimates.
    pub sampling: Option<SamplingView>,
}

/// Sampling of the call stacks of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SamplingView {
    /// When it began.
    pub since: Timestamp,
    /// Largest interval.
    pub interval: SamplingInterval,
    /// Number of blocks without a stack, for which others stand.
    pub skipped: u64,
}

impl AllocatorView {
    /// A view without blocks.
    pub const fn empty(allocator: Allocator) -> Self {
        Self {
            allocator,
            pools: Vec::new(),
            lost: 0,
            unlisted: 0,
            late: false,
            reason: None,
            opaque: None,
            sampling: None,
        }
    }

    /// Whether all allocated blocks are known, and no others are listed.
    pub fn is_exact(&self) -> bool {
        self.lost == 0
            && self.unlisted == 0
            && !self.late
            && self.reason.is_none()
            && self.pools.iter().all(|pool| pool.allocated == pool.tracked_bytes)
    }
}

/// A pool of an allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocatorPoolView {
    /// Device ordinal in the process, if known.
    pub device: Option<DeviceId>,
    /// Address of the pool in the process; 0 if there is one per device.
    pub pool: u64,
    /// Allocated bytes, as last reported by the allocator, or of all known blocks.
    pub allocated: Bytes,
    /// Device memory held by the allocator: as last reported, or less if the live driver memory of
    /// the process is smaller now; without a report, driver memory that has contained blocks.
    pub reserved: Bytes,
    /// Peak of the allocated bytes.
    pub peak: Bytes,
    /// When the peak was reached.
    pub peak_at: Timestamp,
    /// Blocks that were seen to be allocated and not freed.
    pub blocks: u64,
    /// Their size: less than `allocated` if some were allocated before the trace.
    pub tracked_bytes: Bytes,
    /// Blocks allocated during the trace.
    pub allocations_total: u64,
    /// Blocks freed.
    pub frees_total: u64,
    /// Of those: whose allocation was not seen.
    pub unmatched_frees: u64,
    /// Out-of-memory errors.
    pub ooms_total: u64,
    /// Layout of the unused memory.
    pub fragmentation: Result<CacheFragmentation, FragmentationUnknown>,
}

impl AllocatorPoolView {
    /// Memory that it holds and no block uses.
    pub const fn cached(&self) -> Bytes {
        Bytes(self.reserved.0.saturating_sub(self.allocated.0))
    }
}

/// Layout of a cache's unused memory in its segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheFragmentation {
    /// In segments without a block, which the allocator can return to the driver
    /// (`torch.cuda.empty_cache()`).
    pub releasable: Bytes,
    /// In segments with blocks, which stay as long as those blocks.
    pub fragmented: Bytes,
    /// Largest gap in a segment with blocks: the largest request that fits without new memory.
    pub largest_gap: Bytes,
}

named_enum! {
    /// Why the layout of unused memory is unknown.
    pub enum FragmentationUnknown {
        /// There are unknown blocks: from before the trace, or with a lost record.
        BlocksUnknown => "blocks_unknown",
        /// There are blocks in memory whose allocation was not seen.
        SegmentsUnknown => "segments_unknown",
        /// There are too many blocks to scan for each report.
        TooMany => "too_many_blocks",
    }
}

impl FragmentationUnknown {
    /// Reason in a few words.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::BlocksUnknown => "some blocks are unknown",
            Self::SegmentsUnknown => "memory from before the trace",
            Self::TooMany => "too many blocks",
        }
    }
}
