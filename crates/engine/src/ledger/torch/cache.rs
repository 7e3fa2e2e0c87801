//! Blocks allocated from PyTorch's cache, by address, and the allocator's own totals. None of it is
//! included in totals of driver memory.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::leak::{GrowthHistory, always_unused, is_bounded};
use crate::model::{
    Bytes, CacheFragmentation, DeviceId, EndReason, Event, FragmentationUnknown, MemoryKind,
    SiteId, TensorEvent, TensorOp, TensorTracking, TensorsUnavailable, Timestamp, TorchDeviceView,
    TorchView,
};
use crate::verdict::CacheTensors;

use super::super::memory::allocation::NIL;
use super::super::memory::totals::ByteSum;
use super::super::process::Process;
use super::super::sites::table::{ResourceKind, SiteTable};
use super::segments::{self, SegmentUsage};

/// Limit of blocks per process: more than any program has, and 128 MiB.
const MAX_BLOCKS: usize = 1 << 22;

/// From this number of stream-ordered allocations without a single block on, the process is assumed
/// to use PyTorch's async backend.
const MIN_ASYNC_ALLOCATIONS: u64 = 16;

const TENSORS: ResourceKind = ResourceKind::Memory(MemoryKind::Torch);

/// An allocated block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorBlock {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) allocated_at: Timestamp,
    site: u32,
    pub(crate) device: DeviceId,
}

impl TensorBlock {
    pub(crate) fn site(&self) -> Option<SiteId> {
        (self.site != NIL).then_some(SiteId(self.site))
    }
}

/// State of the cache on one device.
#[derive(Clone, Debug, Default)]
struct TorchDevice {
    device: DeviceId,
    allocated: u64,
    reserved: u64,
    peak: u64,
    peak_at: Timestamp,
    /// Allocated bytes over time, and reserved bytes that no tensor uses.
    level: GrowthHistory,
    unused: GrowthHistory,
    tracked: ByteSum,
    blocks: u64,
    allocations: u64,
    frees: u64,
    unmatched_frees: u64,
    ooms_total: u64,
}

impl TorchDevice {
    fn update(&mut self, call: &TensorEvent, at: Timestamp, start: Timestamp) {
        self.level.level(at - start, self.allocated, call.allocated);
        let after = call.reserved.saturating_sub(call.allocated);
        self.unused.level(at - start, self.reserved.saturating_sub(self.allocated), after);
        self.allocated = call.allocated;
        self.reserved = call.reserved;
        if call.allocated > self.peak {
            (self.peak, self.peak_at) = (call.allocated, at);
        }
    }

    fn add(&mut self, bytes: u64) {
        self.tracked.add(bytes);
        self.blocks += 1;
    }

    fn subtract(&mut self, bytes: u64) {
        self.tracked.subtract(bytes);
        self.blocks = self.blocks.saturating_sub(1);
    }
}

/// PyTorch cache of one process.
#[derive(Debug, Default)]
pub(crate) struct TorchCache {
    tracking: Option<TensorTracking>,
    late: bool,
    blocks: HashTable<TensorBlock>,
    hasher: DefaultHashBuilder,
    /// Ordered by device.
    devices: Vec<TorchDevice>,
    /// Number of blocks dropped because of the limit.
    unlisted: u64,
}

impl TorchCache {
    /// Forgets all blocks, whose frees are no longer seen.
    fn clear(&mut self, at: Timestamp, sites: &mut SiteTable) {
        for block in self.blocks.drain() {
            let source = (block.site(), TENSORS);
            sites.finish(source, block.bytes, block.allocated_at, EndReason::Released, at);
        }
        self.devices.clear();
    }

    fn device(&mut self, device: DeviceId) -> &mut TorchDevice {
        let index = match self.devices.binary_search_by_key(&device, |one| one.device) {
            Ok(index) => index,
            Err(index) => {
                self.devices.insert(index, TorchDevice { device, ..TorchDevice::default() });
                index
            }
        };
        &mut self.devices[index]
    }

    fn remove(&mut self, address: u64) -> Option<TensorBlock> {
        let hash = self.hasher.hash_one(address);
        let found = self.blocks.find_entry(hash, |block| block.address == address).ok()?;
        let block = found.remove().0;
        self.device(block.device).subtract(block.bytes);
        Some(block)
    }

    /// Adds a block, unless the limit is reached.
    fn insert(&mut self, block: TensorBlock) -> bool {
        if self.blocks.len() >= MAX_BLOCKS {
            self.unlisted += 1;
            return false;
        }
        let Self { blocks, hasher, .. } = self;
        let hash = hasher.hash_one(block.address);
        blocks.insert_unique(hash, block, |block| hasher.hash_one(block.address));
        self.device(block.device).add(block.bytes);
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
        sites.finish((block.site(), TENSORS), block.bytes, block.allocated_at, reason, at);
        true
    }

    fn observe(&mut self, event: &Event, call: &TensorEvent, sites: &mut SiteTable) {
        let at = event.time;
        self.device(call.device).update(call, at, sites.start());
        match call.op {
            TensorOp::Allocated { address, bytes, site } => {
                // Its free was lost: an allocated block is never returned again.
                self.end(address, EndReason::Replaced, at, sites);
                self.device(call.device).allocations += 1;
                let (device, number) = (call.device, site.map_or(NIL, |site| site.0));
                if self.insert(TensorBlock {
                    address,
                    bytes,
                    allocated_at: at,
                    site: number,
                    device,
                }) {
                    sites.begin_on(device, (site, TENSORS), bytes, at);
                }
            }
            TensorOp::Freed { address, .. } => {
                let known = self.end(address, EndReason::Freed, at, sites);
                let device = self.device(call.device);
                device.frees += 1;
                device.unmatched_frees += u64::from(!known);
            }
            TensorOp::OutOfMemory { .. } => self.device(call.device).ooms_total += 1,
        }
    }

    /// Bytes that tensors use on all devices.
    pub(crate) fn allocated_bytes(&self) -> Bytes {
        let devices = self.devices.iter();
        Bytes(devices.fold(0, |sum, device| device.allocated.saturating_add(sum)))
    }

    /// Live blocks that were allocated after a time.
    pub(crate) fn blocks_since(&self, begin: Timestamp) -> impl Iterator<Item = &TensorBlock> {
        self.blocks.iter().filter(move |block| block.allocated_at > begin)
    }

    /// Memory of the cache on a device that no tensor uses.
    pub(crate) fn unused_bytes(&self, device: DeviceId, process: &Process) -> Option<Bytes> {
        let found = self.devices.iter().find(|one| one.device == device)?;
        Some(Bytes(reserved_bytes(found, process).saturating_sub(found.allocated)))
    }

    /// Tensors of a device, or of the only one if the device is unknown; without growth rates.
    pub(crate) fn tensors(
        &self,
        device: Option<DeviceId>,
        process: &Process,
        at: Timestamp,
    ) -> Option<CacheTensors> {
        let found = match (device, &self.devices[..]) {
            (Some(device), all) => all.iter().find(|one| one.device == device)?,
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

    /// Returns the view for a snapshot.
    pub(crate) fn view(&self, process: &Process) -> TorchView {
        let losses = &process.losses;
        let in_use = segments::in_use(process, self.blocks.len(), self.blocks.iter().copied());
        TorchView {
            devices: self
                .devices
                .iter()
                .map(|device| show(device, reserved_bytes(device, process), &in_use))
                .collect(),
            lost: losses.own.tensors.saturating_add(losses.shared.tensors),
            unlisted: self.unlisted,
            late: self.late,
            reason: match self.tracking {
                Some(TensorTracking::Unavailable(reason)) => Some(reason),
                _ if self.devices.is_empty() => driver_allocates(&process.sites),
                _ => None,
            },
        }
    }
}

impl Process {
    /// Sets whether the calls of its cache are tracked, since the entry time of the event.
    pub(crate) fn set_tensor_tracking(&mut self, event: &Event, tracking: TensorTracking) {
        let Self { torch, sites, .. } = self;
        let cache = torch.get_or_insert_default();
        cache.tracking = Some(tracking);
        if tracking == TensorTracking::Active {
            // Out-of-memory errors may have come before.
            let first = self.counts.first_failed_allocation;
            cache.late |= first.is_some_and(|first| first < event.entry_time);
        } else {
            cache.clear(event.time, sites);
        }
    }

    /// Applies a call of the cache.
    pub(crate) fn apply(&mut self, event: &Event, call: &TensorEvent) {
        let Self { torch, sites, .. } = self;
        torch.get_or_insert_default().observe(event, call, sites);
    }
}

/// Without calls of the cache: whether each tensor is allocated from the driver.
fn driver_allocates(sites: &SiteTable) -> Option<TensorsUnavailable> {
    let rows =
        sites.rows().iter().filter(|row| row.resource == ResourceKind::Memory(MemoryKind::Async));
    let calls = rows.fold(0_u64, |sum, row| sum.saturating_add(row.track.allocations));
    (calls >= MIN_ASYNC_ALLOCATIONS).then_some(TensorsUnavailable::AsyncBackend)
}

/// Reserved bytes of the cache. The allocator does not report when it returns segments to the
/// driver, but it cannot hold more than the live driver memory, if all of that is known.
fn reserved_bytes(device: &TorchDevice, process: &Process) -> u64 {
    let losses = &process.losses;
    if process.before_trace || losses.own.events() > 0 || losses.shared.events() > 0 {
        return device.reserved;
    }
    let on = process.totals.devices().iter();
    let own = on.filter(|on| on.device.is_none_or(|other| other == device.device));
    let live = own.fold(ByteSum::default(), |sum, on| sum.plus(on.live));
    device.reserved.min(live.bytes().0)
}

fn show(
    device: &TorchDevice,
    reserved: u64,
    in_use: &Result<Vec<SegmentUsage>, FragmentationUnknown>,
) -> TorchDeviceView {
    TorchDeviceView {
        device: device.device,
        allocated: Bytes(device.allocated),
        reserved: Bytes(reserved),
        peak: Bytes(device.peak),
        peak_at: device.peak_at,
        blocks: device.blocks,
        tracked_bytes: device.tracked.bytes(),
        allocations_total: device.allocations,
        frees_total: device.frees,
        unmatched_frees: device.unmatched_frees,
        ooms_total: device.ooms_total,
        fragmentation: fragmentation(device, reserved, in_use),
    }
}

/// Segments without a block cannot be distinguished from other memory of the process: their total
/// follows from the reserved bytes that the allocator reports.
fn fragmentation(
    device: &TorchDevice,
    reserved: u64,
    in_use: &Result<Vec<SegmentUsage>, FragmentationUnknown>,
) -> Result<CacheFragmentation, FragmentationUnknown> {
    if device.tracked.bytes() != Bytes(device.allocated) {
        return Err(FragmentationUnknown::BlocksUnknown);
    }
    let in_use = in_use.as_ref().map_err(|reason| *reason)?;
    let own = in_use.binary_search_by_key(&device.device, |one| one.device);
    let own = own.ok().and_then(|index| in_use.get(index).copied());
    let own = own.unwrap_or_default();
    if own.unknown {
        return Err(FragmentationUnknown::SegmentsUnknown);
    }
    let used = own.free.plus(device.tracked);
    Ok(CacheFragmentation {
        releasable: ByteSum::from(reserved).minus(used).bytes(),
        fragmented: own.free.bytes(),
        largest_gap: Bytes(own.largest_gap),
    })
}
