//! Would a request of some size fit?

use super::{Fragmentation, LARGE_PAGE, Owner, Pool, ROUNDED_REQUEST, SMALL_PAGE, SMALL_REQUEST};
use crate::cache::{CacheSettings, Part};
use crate::ids::DeviceId;

/// What a request would need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    /// A free block is large enough.
    InFreeBlock {
        /// The smallest one that is.
        block_bytes: u64,
    },
    /// The cache has it in pieces that go back to the device, and can be taken as one.
    AfterEmptyCache {
        /// What goes back.
        releasable_bytes: u64,
    },
    /// The free bytes would do, and no free block does.
    OnlyDefragmented {
        /// All free bytes.
        free_bytes: u64,
        /// What the device has to give beside what `empty_cache` gives back.
        more_bytes: u64,
    },
    /// The device has to give more.
    NeedsMore {
        /// How much, beside what `empty_cache` gives back.
        more_bytes: u64,
    },
}

impl Pool {
    /// Whether requests of this size are served from this pool at all.
    #[must_use]
    pub fn serves(&self, bytes: u64, settings: &CacheSettings) -> bool {
        let small = settings.rounded(bytes) <= SMALL_REQUEST;
        match self.owner {
            Owner::Cache(pool) => match pool.part {
                Part::Small => small,
                Part::Large => !small,
                Part::Whole => true,
            },
            Owner::Driver(..) => true,
        }
    }

    /// What a request of this size would need of this pool and stream, with nothing but the pool's
    /// own cache to give back. `None` where blocks are not known, or other pools serve the size.
    #[must_use]
    pub fn would_fit(&self, bytes: u64, settings: &CacheSettings) -> Option<Fit> {
        self.largest_free_bytes?;
        if !self.serves(bytes, settings) {
            return None;
        }
        let releasable = self.releasable_bytes.unwrap_or(0);
        Some(fit(bytes, settings, std::slice::from_ref(&self), releasable))
    }
}

impl Fragmentation {
    /// What a request of this size would need of a device: the best of its pools, with the cache
    /// of all of them to give back. Only pools of the framework's own count, not private ones.
    #[must_use]
    pub fn would_fit(&self, device: Option<DeviceId>, bytes: u64) -> Fit {
        let of_device = self.pools.iter().filter(|pool| pool.device == device);
        let own: Vec<&Pool> = of_device
            .filter(|pool| matches!(pool.owner, Owner::Cache(cache) if cache.id == (0, 0)))
            .filter(|pool| pool.serves(bytes, &self.settings))
            .collect();
        let sums = self.devices.iter().find(|sums| sums.device == device);
        let releasable = sums.map_or(0, |sums| sums.releasable_bytes);
        fit(bytes, &self.settings, &own, releasable)
    }
}

fn fit(bytes: u64, settings: &CacheSettings, pools: &[&Pool], releasable: u64) -> Fit {
    let rounded = settings.rounded(bytes);
    let blocks = pools.iter().flat_map(|pool| {
        pool.free_blocks.iter().filter(|&&block| may_serve(block, rounded, pool, settings))
    });
    if let Some(&block_bytes) = blocks.min() {
        return Fit::InFreeBlock { block_bytes };
    }
    let expandable =
        settings.expandable_segments == Some(true) || pools.iter().any(|pool| pool.expandable);
    let segment = segment_for(rounded, expandable);
    if releasable >= segment {
        return Fit::AfterEmptyCache { releasable_bytes: releasable };
    }
    let more_bytes = segment - releasable;
    // Memory of one pool and stream serves no other: only one that has it all would do.
    let free_bytes = pools.iter().map(|pool| pool.free_bytes).max().unwrap_or(0);
    if free_bytes >= rounded {
        return Fit::OnlyDefragmented { free_bytes, more_bytes };
    }
    Fit::NeedsMore { more_bytes }
}

/// Large blocks are kept for large requests when the user set a limit.
fn may_serve(block: u64, rounded: u64, pool: &Pool, settings: &CacheSettings) -> bool {
    let kept = settings.max_split_bytes.filter(|_| !pool.expandable).is_some_and(|limit| {
        if rounded < limit { block >= limit } else { block >= rounded.saturating_add(LARGE_PAGE) }
    });
    block >= rounded && !kept
}

/// What the cache would take of the device for a request.
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
