//! Whether a request of a given size would fit.

use super::{
    FragmentationReport, LARGE_PAGE, PoolFragmentation, PoolOwner, ROUNDED_REQUEST, SMALL_PAGE,
    SMALL_REQUEST,
};
use crate::model::{AllocatorSettings, DeviceId, PoolSizeClass};

/// What a request would need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FitResult {
    /// A free block is large enough.
    InFreeBlock {
        /// Size of the smallest one that fits.
        block_bytes: u64,
    },
    /// `empty_cache` returns enough memory to the device for a new segment.
    AfterEmptyCache {
        /// Memory that `empty_cache` returns.
        releasable_bytes: u64,
    },
    /// There are enough free bytes, but no free block is large enough.
    OnlyDefragmented {
        /// Free bytes.
        free_bytes: u64,
        /// Device memory needed in addition to what `empty_cache` returns.
        more_bytes: u64,
    },
    /// More device memory is needed.
    NeedsMore {
        /// Device memory needed in addition to what `empty_cache` returns.
        more_bytes: u64,
    },
}

impl PoolFragmentation {
    /// Whether requests of this size are served from this pool.
    fn serves(&self, bytes: u64, settings: &AllocatorSettings) -> bool {
        let small = settings.rounded(bytes) <= SMALL_REQUEST;
        match self.owner {
            PoolOwner::Cache(pool) => match pool.size_class {
                PoolSizeClass::Small => small,
                PoolSizeClass::Large => !small,
                PoolSizeClass::Whole => true,
            },
            PoolOwner::Driver(..) | PoolOwner::Recorded(_) => true,
        }
    }
}

impl FragmentationReport {
    /// Returns what a request of this size would need from a device: the best of its pools, if the
    /// cache of all of them can be emptied. Private pools are not considered.
    pub fn would_fit(&self, device: Option<DeviceId>, bytes: u64) -> FitResult {
        let of_device = self.pools.iter().filter(|pool| pool.device == device);
        let own: Vec<&PoolFragmentation> = of_device
            .filter(|pool| matches!(pool.owner, PoolOwner::Cache(cache) if cache.id == (0, 0)))
            .filter(|pool| pool.serves(bytes, &self.settings))
            .collect();
        let totals = self.devices.iter().find(|totals| totals.device == device);
        let releasable = totals.map_or(0, |totals| totals.releasable_bytes);
        fit(bytes, &self.settings, &own, releasable)
    }
}

fn fit(
    bytes: u64,
    settings: &AllocatorSettings,
    pools: &[&PoolFragmentation],
    releasable: u64,
) -> FitResult {
    let rounded = settings.rounded(bytes);
    let blocks = pools.iter().flat_map(|pool| {
        pool.free_blocks.iter().filter(|&&block| may_serve(block, rounded, pool, settings))
    });
    if let Some(&block_bytes) = blocks.min() {
        return FitResult::InFreeBlock { block_bytes };
    }
    let expandable =
        settings.expandable_segments == Some(true) || pools.iter().any(|pool| pool.expandable);
    let segment = segment_for(rounded, expandable);
    if releasable >= segment {
        return FitResult::AfterEmptyCache { releasable_bytes: releasable };
    }
    let more_bytes = segment - releasable;
    // A request is served from one pool and stream, so their free memory cannot be combined.
    let free_bytes = pools.iter().map(|pool| pool.free_bytes).max().unwrap_or(0);
    if free_bytes >= rounded {
        return FitResult::OnlyDefragmented { free_bytes, more_bytes };
    }
    FitResult::NeedsMore { more_bytes }
}

/// With a split limit, the allocator keeps large blocks for large requests.
fn may_serve(
    block: u64,
    rounded: u64,
    pool: &PoolFragmentation,
    settings: &AllocatorSettings,
) -> bool {
    let is_reserved = settings.max_split_bytes.filter(|_| !pool.expandable).is_some_and(|limit| {
        if rounded < limit { block >= limit } else { block >= rounded.saturating_add(LARGE_PAGE) }
    });
    block >= rounded && !is_reserved
}

/// Device memory that the cache would allocate for a request.
fn segment_for(rounded: u64, expandable: bool) -> u64 {
    let pages_of = |page: u64| rounded.div_ceil(page).saturating_mul(page);
    if rounded <= SMALL_REQUEST {
        SMALL_PAGE
    } else if expandable {
        pages_of(LARGE_PAGE)
    } else if rounded < ROUNDED_REQUEST {
        LARGE_PAGE
    } else {
        pages_of(SMALL_PAGE)
    }
}
