//! Fragmentation of a framework's cache, per pool and stream: a free block only serves requests of
//! its own pool and stream.
//!
//! *Fragmentation* has many definitions, so none of the values here has that name: each has its
//! formula in its name or documentation. The most important one is how the reserved memory splits
//! up: *active* + *pending* + *releasable* + *stuck*. Releasable memory is cache; only stuck memory
//! is lost to gaps.

mod advice;
mod fit;

pub use advice::{FragmentationAdvice, Suggestion};
pub use fit::FitResult;

use std::collections::BTreeMap;

use crate::model::{
    AllocatorSettings, Block, BlockState, CachePool, DeviceId, Pid, PoolSizeClass, PoolTotals,
    Segment, StreamId,
};

/// Requests up to this size are served from small segments.
const SMALL_REQUEST: u64 = 1 << 20;
/// Size of small segments, and the unit by which expandable segments of small blocks grow.
const SMALL_PAGE: u64 = 2 << 20;
/// Size of segments for requests under [`ROUNDED_REQUEST`], and the unit by which expandable
/// segments of large blocks grow.
const LARGE_PAGE: u64 = 20 << 20;
/// Requests of at least this size get a segment of their own size.
const ROUNDED_REQUEST: u64 = 10 << 20;

/// State of all caches at one time.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct FragmentationReport {
    /// Pools, ordered by device, pool and stream.
    pub pools: Vec<PoolFragmentation>,
    /// Totals of each device's pools.
    pub devices: Vec<DeviceFragmentation>,
    /// Settings of the allocator.
    pub settings: AllocatorSettings,
    /// Recommended changes, most useful first.
    pub advice: Vec<FragmentationAdvice>,
}

/// Owner of a pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PoolOwner {
    /// A framework's cache.
    Cache(CachePool),
    /// The driver: the process, and the pool's handle, or 0 for a default pool whose handle is
    /// unknown.
    Driver(Pid, u64),
    /// The framework's cache in a recorded process, of which only totals are known.
    Recorded(Pid),
}

/// Memory of one pool for one stream. For driver pools only totals are known: values that depend on
/// single blocks are `None`.
#[derive(Clone, PartialEq, Debug)]
pub struct PoolFragmentation {
    /// Device; `None` for the host or if unknown.
    pub device: Option<DeviceId>,
    /// Owner of the pool.
    pub owner: PoolOwner,
    /// Stream.
    pub stream: Option<StreamId>,
    /// Whether some of its segments grow in place.
    pub expandable: bool,
    /// Device memory it holds; `None` if the driver did not report it.
    pub reserved_bytes: Option<u64>,
    /// Blocks held by the program: PyTorch's `allocated_bytes`. PyTorch's `active_bytes` also
    /// includes `pending_bytes`.
    pub active_bytes: u64,
    /// Bytes that the program requested for them.
    pub requested_bytes: Option<u64>,
    /// Blocks that the program freed and a stream may still use.
    pub pending_bytes: u64,
    /// Free blocks, largest first.
    pub free_blocks: Vec<u64>,
    /// Sum of the free blocks.
    pub free_bytes: u64,
    /// Largest free block; 0 if missing.
    pub largest_free_bytes: Option<u64>,
    /// Free memory that `empty_cache` returns to the device: segments without a block in use, and
    /// whole pages of expandable segments. This is cache, not fragmentation.
    pub releasable_bytes: Option<u64>,
    /// Free memory in gaps of partly used segments: usable only for requests that fit.
    pub stuck_bytes: Option<u64>,
    /// *Internal*: (active − requested) / active, the share lost to rounding.
    pub internal: Option<f64>,
    /// *External*: 1 − largest free block / free bytes.
    pub external: Option<f64>,
}

/// Totals over the pools of one device.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct DeviceFragmentation {
    /// Device; `None` for the host or if unknown.
    pub device: Option<DeviceId>,
    /// Memory held by its caches. Excludes driver pools, because a framework may allocate from
    /// them.
    pub reserved_bytes: u64,
    /// Blocks held by the program.
    pub active_bytes: u64,
    /// Bytes that the program requested for them.
    pub requested_bytes: u64,
    /// Blocks that a stream may still use.
    pub pending_bytes: u64,
    /// Free memory that `empty_cache` returns to the device.
    pub releasable_bytes: u64,
    /// Free memory in gaps.
    pub stuck_bytes: u64,
}

/// Computes the values of all pools, and derives advice from them.
pub fn analyze(
    segments: &[Segment],
    driver: &[PoolTotals],
    settings: &AllocatorSettings,
) -> FragmentationReport {
    let mut groups: BTreeMap<_, Vec<&Segment>> = BTreeMap::new();
    for segment in segments {
        let key = (segment.device, segment.pool, segment.stream);
        groups.entry(key).or_default().push(segment);
    }
    let mut pools: Vec<PoolFragmentation> = groups
        .into_iter()
        .map(|((device, pool, stream), segments)| cache_pool(device, pool, stream, &segments))
        .collect();
    let mut devices: BTreeMap<Option<DeviceId>, DeviceFragmentation> = BTreeMap::new();
    for pool in &pools {
        let device = devices.entry(pool.device).or_default();
        device.device = pool.device;
        add(device, pool);
    }
    pools.extend(driver.iter().map(driver_pool));
    pools.sort_by_key(|pool| (pool.device, pool.owner, pool.stream));
    let devices: Vec<DeviceFragmentation> = devices.into_values().collect();
    let advice = advice::advise(segments, &devices, settings);
    FragmentationReport { pools, devices, settings: settings.clone(), advice }
}

fn cache_pool(
    device: Option<DeviceId>,
    id: CachePool,
    stream: Option<StreamId>,
    segments: &[&Segment],
) -> PoolFragmentation {
    let mut pool = PoolFragmentation::of(device, PoolOwner::Cache(id));
    let (mut reserved, mut requested, mut releasable) = (0_u64, 0_u64, 0_u64);
    for segment in segments {
        reserved = reserved.saturating_add(segment.bytes);
        let idle = segment.blocks.iter().all(|block| block.state == BlockState::Free);
        for block in &segment.blocks {
            let sum = match block.state {
                BlockState::Allocated => &mut pool.active_bytes,
                BlockState::PendingFree => &mut pool.pending_bytes,
                BlockState::Free => &mut pool.free_bytes,
            };
            *sum = sum.saturating_add(block.bytes);
            if block.state == BlockState::Allocated {
                requested = requested.saturating_add(block.requested.min(block.bytes));
            } else if block.state == BlockState::Free {
                pool.free_blocks.push(block.bytes);
                releasable = releasable.saturating_add(releasable_of(segment, block, idle));
            }
        }
    }
    pool.free_blocks.sort_unstable_by(|one, other| other.cmp(one));
    let largest = pool.free_blocks.first().copied().unwrap_or(0);
    let (active, free) = (pool.active_bytes, pool.free_bytes);
    PoolFragmentation {
        stream,
        expandable: segments.iter().any(|segment| segment.expandable),
        reserved_bytes: Some(reserved),
        requested_bytes: Some(requested),
        largest_free_bytes: Some(largest),
        releasable_bytes: Some(releasable),
        stuck_bytes: Some(free.saturating_sub(releasable)),
        internal: Some(ratio(active.saturating_sub(requested), active)),
        external: Some(ratio(free.saturating_sub(largest), free)),
        ..pool
    }
}

/// Bytes of a free block that `empty_cache` returns to the device; an idle segment has no block in
/// use.
fn releasable_of(segment: &Segment, block: &Block, idle: bool) -> u64 {
    if idle {
        return block.bytes;
    }
    if !segment.expandable {
        return 0;
    }
    // Expandable segments are mapped and unmapped in pages, counted from the start of the segment.
    let page =
        if segment.pool.size_class == PoolSizeClass::Small { SMALL_PAGE } else { LARGE_PAGE };
    let start = block.address.saturating_sub(segment.address);
    let first = start.div_ceil(page).saturating_mul(page);
    let last = start.saturating_add(block.bytes) / page * page;
    last.saturating_sub(first).min(block.bytes)
}

fn driver_pool(totals: &PoolTotals) -> PoolFragmentation {
    PoolFragmentation {
        reserved_bytes: totals.reserved,
        active_bytes: totals.used,
        free_bytes: totals.reserved.map_or(0, |reserved| reserved.saturating_sub(totals.used)),
        ..PoolFragmentation::of(totals.device, PoolOwner::Driver(totals.pid, totals.pool))
    }
}

impl PoolFragmentation {
    /// Returns a pool of which nothing is known.
    pub const fn of(device: Option<DeviceId>, owner: PoolOwner) -> Self {
        Self {
            device,
            owner,
            stream: None,
            expandable: false,
            reserved_bytes: None,
            active_bytes: 0,
            requested_bytes: None,
            pending_bytes: 0,
            free_blocks: Vec::new(),
            free_bytes: 0,
            largest_free_bytes: None,
            releasable_bytes: None,
            stuck_bytes: None,
            internal: None,
            external: None,
        }
    }
}

fn add(device: &mut DeviceFragmentation, pool: &PoolFragmentation) {
    let sum = |to: &mut u64, bytes: Option<u64>| *to = to.saturating_add(bytes.unwrap_or(0));
    sum(&mut device.reserved_bytes, pool.reserved_bytes);
    sum(&mut device.active_bytes, Some(pool.active_bytes));
    sum(&mut device.requested_bytes, pool.requested_bytes);
    sum(&mut device.pending_bytes, Some(pool.pending_bytes));
    sum(&mut device.releasable_bytes, pool.releasable_bytes);
    sum(&mut device.stuck_bytes, pool.stuck_bytes);
}

/// Ratio from 0 to 1; 0 if `all` is 0.
fn ratio(some: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { (some as f64 / all as f64).clamp(0.0, 1.0) }
}
