//! The oracle: totals of allocations and memory levels.

pub(super) mod activity;
pub(super) mod json;
pub(super) mod json_activity;

use std::sync::atomic::{AtomicI64, Ordering};

use crate::abi::Code;
use crate::settings::MAX_DEVICES;

/// A memory kind, named as in the tracer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemoryKind {
    /// Linear and pitched device memory.
    Device,
    /// An array, mip-mapped or not.
    Array,
    /// Device memory of `cuMemCreate`.
    Physical,
    /// Memory of a graph.
    Graph,
    /// A stream-ordered allocation from a pool.
    Async,
    /// Managed memory.
    Managed,
    /// Page-locked host memory allocated by the driver.
    Pinned,
    /// Page-locked host memory registered by the program.
    Registered,
    /// Host memory of `cuMemCreate`.
    HostPhysical,
    /// Memory of another process or API.
    Imported,
    /// A stream-ordered allocation from a pool of host memory.
    HostAsync,
}

impl MemoryKind {
    /// Returns its name in the oracle.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Array => "array",
            Self::Physical => "physical",
            Self::Graph => "graph",
            Self::Async => "async",
            Self::Managed => "managed",
            Self::Pinned => "pinned",
            Self::Registered => "registered",
            Self::HostPhysical => "host_physical",
            Self::Imported => "imported",
            Self::HostAsync => "host_async",
        }
    }

    /// Returns whether it uses device memory.
    pub(crate) const fn takes_device_memory(self) -> bool {
        matches!(self, Self::Device | Self::Array | Self::Physical | Self::Graph)
    }
}

impl MemoryKind {
    /// Returns whether it counts as device memory held by the program. Reserves of pools and graphs
    /// beyond their allocations do not.
    pub(crate) const fn is_held(self) -> bool {
        matches!(self, Self::Device | Self::Array | Self::Physical | Self::Async)
    }
}

/// How an allocation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EndReason {
    /// The program freed it.
    Freed,
    /// Its context ended.
    Released,
}

/// Current bytes and their peak.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct CurrentAndPeak {
    pub(crate) now: u64,
    pub(crate) peak: u64,
}

impl CurrentAndPeak {
    /// Adds bytes.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.now = self.now.saturating_add(bytes);
        self.peak = self.peak.max(self.now);
    }

    /// Subtracts bytes.
    pub(crate) fn sub(&mut self, bytes: u64) {
        self.now = self.now.saturating_sub(bytes);
    }
}

/// Successful calls of functions that allocate or free, whatever their effect: an allocation, a
/// graph node, a dropped reference. Counted without a lock, because these calls are hot.
#[derive(Default)]
pub(crate) struct Calls {
    allocating: AtomicI64,
    freeing: AtomicI64,
}

/// The call counts of this process.
pub(crate) static CALLS: Calls =
    Calls { allocating: AtomicI64::new(0), freeing: AtomicI64::new(0) };

impl Calls {
    /// Counts allocating calls. A call that succeeds without an effect subtracts itself.
    pub(crate) fn add_allocating(&self, count: i64) {
        self.allocating.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts freeing calls in the same way.
    pub(crate) fn add_freeing(&self, count: i64) {
        self.freeing.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns the numbers of allocating and freeing calls.
    pub(crate) fn get(&self) -> (i64, i64) {
        (self.allocating.load(Ordering::Relaxed), self.freeing.load(Ordering::Relaxed))
    }

    /// Resets the counts in a forked child.
    pub(crate) fn reset(&self) {
        self.allocating.store(0, Ordering::Relaxed);
        self.freeing.store(0, Ordering::Relaxed);
    }
}

/// Totals of allocations, and levels of device memory.
#[derive(Default)]
pub(crate) struct Oracle {
    /// Successful allocations.
    pub(crate) allocations: u64,
    /// Allocations freed by the program.
    pub(crate) frees: u64,
    /// Allocations that ended with their context.
    pub(crate) released: u64,
    /// Allocating calls that returned an error.
    pub(crate) failed_allocations: u64,
    /// Used memory of all devices, including the reserves of pools and graphs.
    pub(crate) total: CurrentAndPeak,
    /// Used memory by device.
    pub(crate) devices: [CurrentAndPeak; MAX_DEVICES],
    /// Memory held by the program: requested and not freed.
    pub(crate) held: CurrentAndPeak,
    /// Held memory by device.
    pub(crate) held_by_device: [CurrentAndPeak; MAX_DEVICES],
}

impl Oracle {
    /// Allocates device memory, if the device has enough left.
    pub(crate) fn charge(&mut self, device: usize, bytes: u64, capacity: u64) -> Result<(), Code> {
        let level = self.devices.get_mut(device).ok_or(Code::InvalidDevice)?;
        if level.now.checked_add(bytes).is_none_or(|sum| sum > capacity) {
            return Err(Code::OutOfMemory);
        }
        level.add(bytes);
        self.total.add(bytes);
        Ok(())
    }

    /// Adds to the memory that the program holds.
    pub(crate) fn hold(&mut self, device: Option<usize>, bytes: u64) {
        if let Some(level) = device.and_then(|device| self.held_by_device.get_mut(device)) {
            level.add(bytes);
            self.held.add(bytes);
        }
    }

    /// Subtracts from the memory that the program holds.
    pub(crate) fn release(&mut self, device: Option<usize>, bytes: u64) {
        if let Some(level) = device.and_then(|device| self.held_by_device.get_mut(device)) {
            level.sub(bytes);
            self.held.sub(bytes);
        }
    }

    /// Frees device memory.
    pub(crate) fn uncharge(&mut self, device: usize, bytes: u64) {
        if let Some(level) = self.devices.get_mut(device) {
            level.sub(bytes);
            self.total.sub(bytes);
        }
    }
}
