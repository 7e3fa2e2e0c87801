//! Allocators inside a process: blocks that they hand out, by address. None of it is included in
//! totals of driver memory.

pub(super) mod cache;
mod pool;
mod segments;
mod view;

use crate::model::{Allocator, AllocatorView, BlockEvent, BlockTracking, Bytes, Event, Timestamp};

use crate::snapshot::LibraryView;

use super::process::Process;
use cache::{BlockCache, CachedBlock, DriverMemory};

/// The allocators of a process, in the order in which they were found.
#[derive(Debug, Default)]
pub(crate) struct Allocators(Vec<BlockCache>);

impl Allocators {
    fn of(&mut self, allocator: Allocator) -> &mut BlockCache {
        let index = match self.0.iter().position(|one| one.allocator() == allocator) {
            Some(index) => index,
            None => {
                self.0.push(BlockCache::new(allocator));
                self.0.len() - 1
            }
        };
        &mut self.0[index]
    }

    /// The cache of PyTorch, if the process has one.
    pub(crate) fn torch(&self) -> Option<&BlockCache> {
        self.0.iter().find(|one| one.allocator() == Allocator::PyTorch)
    }

    /// Bytes that blocks of all allocators use.
    pub(crate) fn allocated_bytes(&self) -> Bytes {
        self.0
            .iter()
            .fold(Bytes(0), |sum, one| Bytes(sum.0.saturating_add(one.allocated_bytes().0)))
    }

    /// Whether the process has an allocator.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The block at an address.
    pub(crate) fn block(&self, address: u64) -> Option<&CachedBlock> {
        self.0.iter().find_map(|one| one.block(address))
    }

    /// Live blocks that were allocated after a time.
    pub(crate) fn blocks_since(
        &self,
        begin: Timestamp,
    ) -> impl Iterator<Item = (Allocator, &CachedBlock)> {
        let all = self.0.iter();
        all.flat_map(move |one| one.blocks_since(begin).map(|block| (one.allocator(), block)))
    }

    /// Returns the views for a snapshot.
    pub(crate) fn views(&self, process: &Process, libraries: &[LibraryView]) -> Vec<AllocatorView> {
        self.0.iter().map(|one| one.view(process, libraries)).collect()
    }
}

impl Process {
    /// Sets whether the blocks of an allocator are tracked, since the entry time of the event.
    pub(crate) fn set_block_tracking(
        &mut self,
        event: &Event,
        allocator: Allocator,
        tracking: BlockTracking,
    ) {
        // Out-of-memory errors may have come before; and blocks, if there was driver memory.
        let counts = &self.counts;
        let first = match allocator.reports_totals() {
            true => counts.first_failed_allocation,
            false => counts.first_allocation,
        };
        let late = first.is_some_and(|first| first < event.entry_time)
            || !allocator.reports_totals() && self.before_trace;
        let Self { allocators, sites, .. } = self;
        allocators.of(allocator).set_tracking(tracking, late, event.time, sites);
    }

    /// Applies a call of an allocator.
    pub(crate) fn apply_block(&mut self, event: &Event, call: &BlockEvent) {
        let Self { allocators, sites, allocations, physical, .. } = self;
        let memory = DriverMemory::new(allocations, physical);
        allocators.of(call.allocator).observe(event, call, memory, sites);
    }
}
