//! Views of the allocators for snapshots.

use crate::model::{
    Allocator, AllocatorPoolView, AllocatorView, BlockTracking, BlocksUnavailable, Bytes,
    CacheFragmentation, DeviceId, FragmentationUnknown, MemoryKind,
};

use crate::snapshot::LibraryView;

use super::super::memory::totals::ByteSum;
use super::super::process::Process;
use super::super::sites::table::{ResourceKind, SiteTable};
use super::cache::BlockCache;
use super::pool::Pool;
use super::segments::{self, SegmentUsage};

/// From this number of stream-ordered allocations without a single block on, the process is assumed
/// to use PyTorch's async backend.
const MIN_ASYNC_ALLOCATIONS: u64 = 16;

impl BlockCache {
    /// Returns the view for a snapshot.
    pub(super) fn view(&self, process: &Process, libraries: &[LibraryView]) -> AllocatorView {
        let losses = &process.losses;
        let usage = segments::usage(process, self);
        let mut pools: Vec<_> = self
            .pools
            .iter()
            .enumerate()
            .filter(|(_, pool)| !pool.on_host)
            .map(|(index, pool)| self.pool_view(index, pool, process, &usage))
            .collect();
        pools.sort_by_key(|pool| (pool.device.is_none(), pool.device, pool.pool));
        let is_torch = self.allocator() == Allocator::PyTorch;
        let reason = match self.tracking {
            Some(BlockTracking::Unavailable(reason)) => Some(reason),
            _ if is_torch && self.pools.is_empty() => driver_allocates(&process.sites),
            _ => None,
        };
        let own = libraries.iter().find(|one| *one.library == *self.allocator().library());
        let own = own.map(|own| (own.live_allocations, own.live_bytes));
        let own = own.filter(|(count, _)| *count > 0);
        let (reason, opaque) = match (reason, self.allocator()) {
            (Some(reason), _) => (Some(reason), own.filter(|_| hides_blocks(reason))),
            (None, Allocator::Rmm) => {
                let opaque = own.and_then(|own| outside_pools(own, usage.as_deref().ok()?));
                (opaque.map(|_| BlocksUnavailable::OutsidePools), opaque)
            }
            (None, _) => (None, None),
        };
        AllocatorView {
            pools,
            lost: losses.own.tensors.saturating_add(losses.shared.tensors),
            unlisted: self.unlisted,
            late: self.late,
            reason,
            opaque,
            allocator: self.allocator(),
            sampling: self.sampling,
        }
    }

    fn pool_view(
        &self,
        index: usize,
        pool: &Pool,
        process: &Process,
        usage: &Result<Vec<SegmentUsage>, FragmentationUnknown>,
    ) -> AllocatorPoolView {
        let own = usage.as_ref().map(|all| all.get(index).copied().unwrap_or_default());
        let reserved = match (self.allocator().reports_totals(), own) {
            (true, _) => reserved_bytes(pool, process),
            (false, Ok(own)) => own.held.bytes().0.max(pool.allocated),
            (false, Err(_)) => pool.allocated,
        };
        AllocatorPoolView {
            device: pool.device.or_else(|| only_device(process)),
            pool: pool.address,
            allocated: Bytes(pool.allocated),
            reserved: Bytes(reserved),
            peak: Bytes(pool.peak),
            peak_at: pool.peak_at,
            blocks: pool.blocks,
            tracked_bytes: pool.tracked.bytes(),
            allocations_total: pool.allocations,
            frees_total: pool.frees,
            unmatched_frees: pool.unmatched_frees,
            ooms_total: pool.ooms_total,
            fragmentation: own.map_err(|reason| *reason).and_then(|own| {
                if pool.tracked.bytes() != Bytes(pool.allocated)
                    || pool.unmatched_frees > 0 && !self.allocator().reports_totals()
                {
                    return Err(FragmentationUnknown::BlocksUnknown);
                }
                fragmentation(pool, reserved, own)
            }),
        }
    }
}

/// Returns number and bytes of the allocations of RMM's library that are not memory of its pools.
fn outside_pools(all: (u64, Bytes), pools: &[SegmentUsage]) -> Option<(u64, Bytes)> {
    let (count, bytes) = pools.iter().fold(all, |(count, bytes), pool| {
        let rest = bytes.0.saturating_sub(pool.held.bytes().0);
        (count.saturating_sub(pool.segments), Bytes(rest))
    });
    (count > 0 && bytes > Bytes(0)).then_some((count, bytes))
}

/// Whether the inside of the allocator's memory is not visible.
fn hides_blocks(reason: BlocksUnavailable) -> bool {
    !matches!(reason, BlocksUnavailable::AsyncBackend | BlocksUnavailable::NotGrowing)
}

/// The device of a process that uses one.
fn only_device(process: &Process) -> Option<DeviceId> {
    match process.totals.devices() {
        [only] => only.device,
        _ => None,
    }
}

/// Without calls of PyTorch's cache: whether each tensor is allocated from the driver.
fn driver_allocates(sites: &SiteTable) -> Option<BlocksUnavailable> {
    let rows =
        sites.rows().iter().filter(|row| row.resource == ResourceKind::Memory(MemoryKind::Async));
    let calls = rows.fold(0_u64, |sum, row| sum.saturating_add(row.track.allocations));
    (calls >= MIN_ASYNC_ALLOCATIONS).then_some(BlocksUnavailable::AsyncBackend)
}

/// Reserved bytes as reported. The allocator does not report when it returns segments to the driver,
/// but it cannot hold more than the live driver memory, if all of that is known.
pub(super) fn reserved_bytes(pool: &Pool, process: &Process) -> u64 {
    let losses = &process.losses;
    if process.before_trace || losses.own.events() > 0 || losses.shared.events() > 0 {
        return pool.reserved;
    }
    let on = process.totals.devices().iter();
    let own = on.filter(|on| on.device.is_none() || on.device == pool.device);
    let live = own.fold(ByteSum::default(), |sum, on| sum.plus(on.live));
    pool.reserved.min(live.bytes().0)
}

/// Segments without a block cannot always be distinguished from other memory of the process: their
/// total follows from the reserved bytes.
fn fragmentation(
    pool: &Pool,
    reserved: u64,
    own: SegmentUsage,
) -> Result<CacheFragmentation, FragmentationUnknown> {
    if own.unknown {
        return Err(FragmentationUnknown::SegmentsUnknown);
    }
    let used = own.free.plus(pool.tracked);
    Ok(CacheFragmentation {
        releasable: ByteSum::from(reserved).minus(used).bytes(),
        fragmented: own.free.bytes(),
        largest_gap: Bytes(own.largest_gap),
    })
}
