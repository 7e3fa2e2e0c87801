//! Events and views of a framework's caching allocator. They annotate driver memory: nothing of
//! them is ever added to the driver's bytes.

use crate::model::named::named_enum;
use crate::model::{Bytes, DeviceId, SiteId, Timestamp};

/// PyTorch's allocator allocated or freed a block; with its own totals after that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TensorEvent {
    /// What happened.
    pub op: TensorOp,
    /// Device ordinal in the process.
    pub device: DeviceId,
    /// Allocated bytes on that device, as counted by the allocator.
    pub allocated: u64,
    /// Device memory held by the allocator.
    pub reserved: u64,
}

/// What happened to a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "fields have the names of their types")]
pub enum TensorOp {
    /// The block was allocated, with a size that the allocator rounded.
    Allocated { address: u64, bytes: u64, site: Option<SiteId> },
    /// The block was freed.
    Freed { address: u64, bytes: u64 },
    /// The allocation of this size failed: out of memory.
    OutOfMemory { bytes: u64, site: Option<SiteId> },
}

/// Whether the blocks of a process's cache are tracked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TensorTracking {
    /// They are tracked from here on.
    Active,
    /// They cannot be tracked.
    Unavailable(TensorsUnavailable),
}

named_enum! {
    /// Why the tensors of a process are unknown.
    pub enum TensorsUnavailable {
        /// `libc10_cuda.so` was found, but no `libc10.so` next to it.
        NoLibrary => "no_library",
        /// `libc10.so` does not export the function to which the cache reports its blocks.
        NoSymbol => "no_symbol",
        /// `libc10.so` cannot be read.
        Unreadable => "unreadable",
        /// The kernel rejected the probe.
        AttachFailed => "attach_failed",
        /// The cache is not used: each tensor is a stream-ordered allocation of the driver.
        AsyncBackend => "async_backend",
        /// The memory of the process does not grow.
        NotGrowing => "not_growing",
    }
}

impl TensorsUnavailable {
    /// Reason in words, with a suggestion.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::NoLibrary => {
                "libc10_cuda.so is loaded without libc10.so: renamed or statically linked PyTorch \
                 builds are not supported"
            }
            Self::NoSymbol => {
                "libc10.so does not export reportMemoryUsageToProfiler: unsupported PyTorch build"
            }
            Self::Unreadable => "libc10.so is not readable; run as root",
            Self::AttachFailed => "cannot attach a probe to libc10.so",
            Self::AsyncBackend => {
                "PyTorch uses cudaMallocAsync: tensors are listed as stream-ordered allocations"
            }
            Self::NotGrowing => {
                "they are tracked while the memory of the process grows; --torch tracks them always"
            }
        }
    }
}

/// PyTorch's cache in one process. This annotates driver memory: it is not included in any total of
/// it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TorchView {
    /// State by device.
    pub devices: Vec<TorchDeviceView>,
    /// Lost records of blocks.
    pub lost: u64,
    /// Blocks dropped because the limit was reached.
    pub unlisted: u64,
    /// An allocation failed before the probes of the PyTorch library were attached: out-of-memory
    /// errors may be missing.
    pub late: bool,
    /// Why nothing is known.
    pub reason: Option<TensorsUnavailable>,
}

impl TorchView {
    /// Whether all allocated blocks are known, and no others are listed.
    pub fn is_exact(&self) -> bool {
        self.lost == 0
            && self.unlisted == 0
            && !self.late
            && self.reason.is_none()
            && self.devices.iter().all(|device| device.allocated == device.tracked_bytes)
    }
}

/// PyTorch's cache on one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TorchDeviceView {
    /// Device ordinal in the process.
    pub device: DeviceId,
    /// Allocated bytes, as last reported by the allocator.
    pub allocated: Bytes,
    /// Device memory held by the allocator, as last reported; less if the live driver memory of the
    /// process is smaller now.
    pub reserved: Bytes,
    /// Peak of the reported allocated bytes.
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

impl TorchDeviceView {
    /// Memory that it holds and no tensor uses.
    pub const fn cached(&self) -> Bytes {
        Bytes(self.reserved.0.saturating_sub(self.allocated.0))
    }
}

/// Layout of a cache's unused memory in its segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheFragmentation {
    /// In segments without a block: `torch.cuda.empty_cache()` frees them.
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
