//! State of one pool of an allocator.

use crate::leak::GrowthHistory;
use crate::model::{AllocatorTotals, DeviceId, Timestamp};

use super::super::memory::totals::ByteSum;

/// A pool: one per device, or several.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool {
    pub(super) device: Option<DeviceId>,
    /// Address of the pool in the process; 0 if there is one per device.
    pub(super) address: u64,
    /// Whether its memory is host memory, which is not shown.
    pub(super) on_host: bool,
    pub(super) allocated: u64,
    /// As reported; 0 if the allocator does not pass its totals.
    pub(super) reserved: u64,
    pub(super) peak: u64,
    pub(super) peak_at: Timestamp,
    /// Allocated bytes over time, and reserved bytes that no block uses.
    pub(super) level: GrowthHistory,
    pub(super) unused: GrowthHistory,
    pub(super) tracked: ByteSum,
    pub(super) blocks: u64,
    pub(super) allocations: u64,
    pub(super) frees: u64,
    pub(super) unmatched_frees: u64,
    pub(super) ooms_total: u64,
}

impl Pool {
    /// Sets the totals at a time, and since when they are observed.
    pub(super) fn update(&mut self, to: AllocatorTotals, at: Timestamp, start: Timestamp) {
        self.level.level(at - start, self.allocated, to.allocated);
        let after = to.reserved.saturating_sub(to.allocated);
        self.unused.level(at - start, self.reserved.saturating_sub(self.allocated), after);
        self.allocated = to.allocated;
        self.reserved = to.reserved;
        if to.allocated > self.peak {
            (self.peak, self.peak_at) = (to.allocated, at);
        }
    }

    pub(super) fn add(&mut self, bytes: u64) {
        self.tracked.add(bytes);
        self.blocks += 1;
    }

    pub(super) fn subtract(&mut self, bytes: u64) {
        self.tracked.subtract(bytes);
        self.blocks = self.blocks.saturating_sub(1);
    }
}
