//! The account of what the driver was asked for.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::abi::Code;
use crate::settings::MAX_DEVICES;

/// The sort of memory; the words are the tracer's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Plain and pitched device memory.
    Device,
    /// An array, mip-mapped or not.
    Array,
    /// What `cuMemCreate` takes of a device.
    Physical,
    /// A graph's memory.
    Graph,
    /// A stream-ordered allocation, inside a pool.
    Async,
    /// Managed memory.
    Managed,
    /// Page-locked host memory of the driver.
    Pinned,
    /// Page-locked host memory of the program.
    Registered,
    /// What `cuMemCreate` takes of the host.
    HostPhysical,
    /// Somebody else's memory.
    Imported,
    /// A stream-ordered allocation from a pool of host memory.
    HostAsync,
}

impl Kind {
    /// The word in the account.
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

    /// Whether the device loses these bytes.
    pub(crate) const fn takes_device_memory(self) -> bool {
        matches!(self, Self::Device | Self::Array | Self::Physical | Self::Graph)
    }
}

impl Kind {
    /// Whether the program holds device memory by it. What pools and graphs keep beyond what is
    /// allocated from them is not the program's.
    pub(crate) const fn is_held(self) -> bool {
        matches!(self, Self::Device | Self::Array | Self::Physical | Self::Async)
    }
}

/// How an allocation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// The program freed it.
    Freed,
    /// Its context ended.
    Released,
}

/// Bytes now, and the most there ever were.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Level {
    pub(crate) now: u64,
    pub(crate) peak: u64,
}

impl Level {
    /// Goes up.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.now = self.now.saturating_add(bytes);
        self.peak = self.peak.max(self.now);
    }

    /// Goes down.
    pub(crate) fn sub(&mut self, bytes: u64) {
        self.now = self.now.saturating_sub(bytes);
    }
}

/// Successful calls of functions that allocate or free, whatever came of them: an allocation, a node
/// of a graph, one reference less. Counted without a lock, for these calls are hot.
#[derive(Default)]
pub(crate) struct Calls {
    allocating: AtomicI64,
    freeing: AtomicI64,
}

/// Those of this process.
pub(crate) static CALLS: Calls =
    Calls { allocating: AtomicI64::new(0), freeing: AtomicI64::new(0) };

impl Calls {
    /// Counts allocating calls. A call that is about to succeed without doing anything subtracts itself.
    pub(crate) fn add_allocating(&self, count: i64) {
        self.allocating.fetch_add(count, Ordering::Relaxed);
    }

    /// The same for freeing calls.
    pub(crate) fn add_freeing(&self, count: i64) {
        self.freeing.fetch_add(count, Ordering::Relaxed);
    }

    /// Allocating and freeing calls so far.
    pub(crate) fn get(&self) -> (i64, i64) {
        (self.allocating.load(Ordering::Relaxed), self.freeing.load(Ordering::Relaxed))
    }

    /// A forked child has made none.
    pub(crate) fn forget(&self) {
        self.allocating.store(0, Ordering::Relaxed);
        self.freeing.store(0, Ordering::Relaxed);
    }
}

/// Counts of calls, and levels of device memory.
#[derive(Default)]
pub(crate) struct Ledger {
    /// Allocations that succeeded.
    pub(crate) allocations: u64,
    /// Allocations that the program freed.
    pub(crate) frees: u64,
    /// Allocations that ended with their context.
    pub(crate) released: u64,
    /// Allocating calls that returned an error.
    pub(crate) failed_allocations: u64,
    /// What the devices lose, all together: the reserves of pools and graphs included.
    pub(crate) total: Level,
    /// The same by device.
    pub(crate) devices: [Level; MAX_DEVICES],
    /// What the program holds: what it asked for and did not free.
    pub(crate) held: Level,
    /// The same by device.
    pub(crate) held_by_device: [Level; MAX_DEVICES],
}

impl Ledger {
    /// Takes device memory, if the device has that much left.
    pub(crate) fn take(&mut self, device: usize, bytes: u64, capacity: u64) -> Result<(), Code> {
        let level = self.devices.get_mut(device).ok_or(Code::InvalidDevice)?;
        if level.now.checked_add(bytes).is_none_or(|sum| sum > capacity) {
            return Err(Code::OutOfMemory);
        }
        level.add(bytes);
        self.total.add(bytes);
        Ok(())
    }

    /// The program holds device memory.
    pub(crate) fn hold(&mut self, device: Option<usize>, bytes: u64) {
        if let Some(level) = device.and_then(|device| self.held_by_device.get_mut(device)) {
            level.add(bytes);
            self.held.add(bytes);
        }
    }

    /// The program holds it no longer.
    pub(crate) fn let_go(&mut self, device: Option<usize>, bytes: u64) {
        if let Some(level) = device.and_then(|device| self.held_by_device.get_mut(device)) {
            level.sub(bytes);
            self.held.sub(bytes);
        }
    }

    /// Gives device memory back.
    pub(crate) fn give(&mut self, device: usize, bytes: u64) {
        if let Some(level) = self.devices.get_mut(device) {
            level.sub(bytes);
            self.total.sub(bytes);
        }
    }
}
