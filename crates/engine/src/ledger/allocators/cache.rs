//! Blocks of one allocator by address, and the totals of its pools.
#![allow(clippy::cast_possible_truncation, reason = "fewer pools than 2^16")]

use std::collections::BTreeMap;
use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::leak::{always_unused, is_bounded};
use crate::model::{
    AllocationKey, Allocator, AllocatorTotals, BlockEvent, BlockOp, BlockTracking, Bytes, DeviceId,
    EndReason, Event, MemoryKind, Sampling, SamplingView, SiteId, Timestamp,
};
use crate::verdict::CacheTensors;

use super::super::driver::physical::PhysicalMemory;
use super::super::memory::allocation::{AllocationEntry, Allocations, NIL};
use super::super::process::Process;
use super::super::sites::table::{ResourceKind, SiteTable};
use super::pool::Pool;
use super::view::reserved_bytes;

/// Limit of blocks per allocator: more than any program has, and 128 MiB.
const MAX_BLOCKS: usize = 1 << 22;

/// Limit of pools per allocator.
const MAX_POOLS: usize = 256;

/// Number of segments from which those that were freed are forgotten.
const MIN_SEGMENTS: usize = 64;

/// An allocated block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CachedBlock {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) allocated_at: Timestamp,
    site: u32,
    /// Index of its pool.
    pub(super) pool: u16,
    pub(crate) sampling: Sampling,
}

impl CachedBlock {
    pub(crate) fn site(&self) -> Option<SiteId> {
        (self.site != NIL).then_some(SiteId(self.site))
    }

    /// Records its end at its site, if it counts there.
    fn finish(
        &self,
        resource: ResourceKind,
        reason: EndReason,
        at: Timestamp,
        sites: &mut SiteTable,
    ) {
        let source = (self.site(), resource);
        sites.finish_sampled(source, (self.bytes, self.sampling), self.allocated_at, reason, at);
    }
}

/// Memory that the process holds from the driver.
#[derive(Clone, Copy)]
pub(super) struct DriverMemory<'a> {
    allocations: &'a Allocations,
    physical: &'a PhysicalMemory,
}

impl<'a> DriverMemory<'a> {
    pub(super) const fn new(allocations: &'a Allocations, physical: &'a PhysicalMemory) -> Self {
        Self { allocations, physical }
    }

    /// The allocation that begins at an address.
    fn allocation(self, address: u64) -> Option<&'a AllocationEntry> {
        let slot = self.allocations.find(AllocationKey::address(address))?;
        Some(&self.allocations.slab[slot])
    }

    /// When the memory that begins at an address was allocated or mapped.
    fn since(self, address: u64) -> Option<Timestamp> {
        let allocated = self.allocation(address).map(|entry| entry.returned_at);
        allocated.or_else(|| self.physical.mapped_at(address))
    }
}

/// One allocator of a process.
#[derive(Debug)]
pub(crate) struct BlockCache {
    allocator: Allocator,
    pub(super) tracking: Option<BlockTracking>,
    pub(super) late: bool,
    pub(super) blocks: HashTable<CachedBlock>,
    hasher: DefaultHashBuilder,
    pub(super) pools: Vec<Pool>,
    /// Driver memory whose first block was seen: start address, pool and time. Such memory belongs
    /// to the pool even when all its blocks are free.
    pub(super) segments: BTreeMap<u64, (u16, Timestamp)>,
    /// Number of segments at which those that were freed are forgotten.
    sweep_at: usize,
    /// Number of blocks dropped because of a limit.
    pub(super) unlisted: u64,
    pub(super) sampling: Option<SamplingView>,
}

impl BlockCache {
    pub(super) fn new(allocator: Allocator) -> Self {
        Self {
            allocator,
            tracking: None,
            late: false,
            blocks: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            pools: Vec::new(),
            segments: BTreeMap::new(),
            sweep_at: MIN_SEGMENTS,
            unlisted: 0,
            sampling: None,
        }
    }

    pub(super) const fn allocator(&self) -> Allocator {
        self.allocator
    }

    const fn resource(&self) -> ResourceKind {
        ResourceKind::Memory(self.allocator.kind())
    }

    pub(super) fn set_tracking(
        &mut self,
        tracking: BlockTracking,
        late: bool,
        at: Timestamp,
        sites: &mut SiteTable,
    ) {
        self.tracking = Some(tracking);
        if tracking == BlockTracking::Active {
            self.late |= late;
        } else {
            self.clear(at, sites);
        }
    }

    /// Forgets all blocks, whose frees are no longer seen.
    fn clear(&mut self, at: Timestamp, sites: &mut SiteTable) {
        let resource = self.resource();
        for block in self.blocks.drain() {
            block.finish(resource, EndReason::Released, at, sites);
        }
        self.pools.clear();
        self.segments.clear();
    }

    /// Index of the pool of a call; `None` if there are too many.
    fn pool(&mut self, call: &BlockEvent) -> Option<usize> {
        let is_same = |one: &Pool| {
            one.address == call.pool && (call.device.is_none() || one.device == call.device)
        };
        if let Some(index) = self.pools.iter().position(is_same) {
            return Some(index);
        }
        let new = Pool { device: call.device, address: call.pool, ..Pool::default() };
        if self.pools.len() < MAX_POOLS {
            self.pools.push(new);
            return Some(self.pools.len() - 1);
        }
        // A pool that ended has no blocks.
        let unused = self.pools.iter().position(|one| one.blocks == 0)?;
        self.pools[unused] = new;
        self.segments.retain(|_, (pool, _)| usize::from(*pool) != unused);
        Some(unused)
    }

    fn remove(&mut self, address: u64) -> Option<CachedBlock> {
        let hash = self.hasher.hash_one(address);
        let found = self.blocks.find_entry(hash, |block| block.address == address).ok()?;
        let block = found.remove().0;
        if let Some(pool) = self.pools.get_mut(usize::from(block.pool)) {
            pool.subtract(block.bytes);
        }
        Some(block)
    }

    /// Adds a block, unless the limit is reached.
    fn insert(&mut self, block: CachedBlock) -> bool {
        if self.blocks.len() >= MAX_BLOCKS {
            self.unlisted += 1;
            return false;
        }
        let Self { blocks, hasher, .. } = self;
        let hash = hasher.hash_one(block.address);
        blocks.insert_unique(hash, block, |block| hasher.hash_one(block.address));
        if let Some(pool) = self.pools.get_mut(usize::from(block.pool)) {
            pool.add(block.bytes);
        }
        true
    }

    /// Removes a block.
    fn end(
        &mut self,
        address: u64,
        reason: EndReason,
        at: Timestamp,
        sites: &mut SiteTable,
    ) -> bool {
        let Some(block) = self.remove(address) else { return false };
        block.finish(self.resource(), reason, at, sites);
        true
    }

    pub(super) fn observe(
        &mut self,
        event: &Event,
        call: &BlockEvent,
        memory: DriverMemory<'_>,
        sites: &mut SiteTable,
    ) {
        let at = event.time;
        let Some(index) = self.pool(call) else {
            self.unlisted += 1;
            return;
        };
        if let BlockOp::Allocated { address, .. } = call.op {
            self.find_segment(address, index, at, memory);
        }
        if self.pools[index].on_host {
            return;
        }
        match call.op {
            BlockOp::Allocated { address, bytes, site, sampling } => {
                // Its free was lost: an allocated block is never returned again.
                self.end(address, EndReason::Replaced, at, sites);
                self.pools[index].allocations += 1;
                self.note_sampling(sampling, at);
                let (pool, number) = (index as u16, site.map_or(NIL, |site| site.0));
                let allocated_at = at;
                let block =
                    CachedBlock { address, bytes, allocated_at, site: number, pool, sampling };
                if self.insert(block) {
                    let source = (site, self.resource());
                    sites.begin_sampled(self.pools[index].device, source, (bytes, sampling), at);
                }
            }
            BlockOp::Freed { address, .. } => {
                let known = self.end(address, EndReason::Freed, at, sites);
                let pool = &mut self.pools[index];
                pool.frees += 1;
                pool.unmatched_frees += u64::from(!known);
            }
            BlockOp::OutOfMemory { .. } => self.pools[index].ooms_total += 1,
        }
        let pool = &mut self.pools[index];
        let own = AllocatorTotals { allocated: pool.tracked.bytes().0, reserved: pool.reserved };
        pool.update(call.totals.unwrap_or(own), at, sites.start());
    }

    fn note_sampling(&mut self, sampling: Sampling, at: Timestamp) {
        let Some(interval) = sampling.interval() else { return };
        let state = self.sampling.get_or_insert(SamplingView { since: at, interval, skipped: 0 });
        state.interval = state.interval.max(interval);
        state.skipped += u64::from(matches!(sampling, Sampling::Skipped(_)));
    }

    /// Notes the driver memory that begins at the address of a block: a pool hands out the beginning
    /// of new memory first. Without totals of the allocator, memory is assigned to a pool by that.
    fn find_segment(&mut self, address: u64, pool: usize, at: Timestamp, memory: DriverMemory<'_>) {
        if self.allocator.reports_totals() || self.segments.contains_key(&address) {
            return;
        }
        if memory.since(address).is_none() {
            return;
        }
        if let Some(entry) = memory.allocation(address) {
            let own = &mut self.pools[pool];
            if !entry.kind.takes_device_memory() {
                own.on_host |= own.blocks == 0 && entry.kind != MemoryKind::Managed;
                return;
            }
            own.device = own.device.or(entry.device());
        }
        if self.segments.len() >= self.sweep_at {
            self.segments.retain(|start, (_, seen)| {
                memory.since(*start).is_some_and(|since| since <= *seen)
            });
            self.sweep_at = self.segments.len().saturating_mul(2).max(MIN_SEGMENTS);
        }
        self.segments.insert(address, (pool as u16, at));
    }

    /// Bytes that blocks use on all devices.
    pub(crate) fn allocated_bytes(&self) -> Bytes {
        Bytes(self.pools.iter().fold(0, |sum, pool| pool.allocated.saturating_add(sum)))
    }

    /// The block at an address.
    pub(super) fn block(&self, address: u64) -> Option<&CachedBlock> {
        self.blocks.find(self.hasher.hash_one(address), |block| block.address == address)
    }

    /// Live blocks that were allocated after a time.
    pub(crate) fn blocks_since(&self, begin: Timestamp) -> impl Iterator<Item = &CachedBlock> {
        self.blocks.iter().filter(move |block| block.allocated_at > begin)
    }

    /// Memory of the cache on a device that no block uses.
    pub(crate) fn unused_bytes(&self, device: DeviceId, process: &Process) -> Option<Bytes> {
        let found = self.pools.iter().find(|one| one.device == Some(device))?;
        Some(Bytes(reserved_bytes(found, process).saturating_sub(found.allocated)))
    }

    /// Tensors of a device, or of the only one if the device is unknown; without growth rates.
    pub(crate) fn tensors(
        &self,
        device: Option<DeviceId>,
        process: &Process,
        at: Timestamp,
    ) -> Option<CacheTensors> {
        let found = match (device, &self.pools[..]) {
            (Some(_), all) => all.iter().find(|one| one.device == device)?,
            (None, [only]) => only,
            (None, _) => return None,
        };
        let now = at - process.sites.start();
        let unused = found.reserved.saturating_sub(found.allocated);
        Some(CacheTensors {
            live: found.allocated,
            peak: found.peak,
            cache: reserved_bytes(found, process),
            growth_per_hour: 0,
            cache_growth_per_hour: 0,
            bounded: is_bounded(&found.level, now, found.allocated),
            unused: always_unused(&found.unused, now, unused),
            failed_captures: process.graphs.failed_captures,
            during_capture: false,
        })
    }
}
