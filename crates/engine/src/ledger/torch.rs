//! Blocks allocated from PyTorch's cache, by address, and the allocator's own totals. None of it is
//! included in totals of driver memory.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::analysis::leak::{Course, is_bounded};
use crate::change::How;
use crate::event::Event;
use crate::ids::{DeviceId, SiteId};
use crate::kind::Kind;
use crate::tensor::{
    Fragmentation, NoFragmentation, NoTensors, TensorCall, TensorTurn, TensorWatch,
    TorchDeviceView, TorchView,
};
use crate::units::{Bytes, Moment};
use crate::verdict::CacheTensors;

use super::allocation::NIL;
use super::process::Process;
use super::segments::{self, InUse};
use super::sites::{Held, SiteTable};
use super::totals::Sum;

/// Limit of blocks per process: more than any program has, and 128 MiB.
const KEPT: usize = 1 << 22;

/// From this number of stream-ordered allocations without a single block on, the process is assumed
/// to use PyTorch's async backend.
const ENOUGH: u64 = 16;

const TENSORS: Held = Held::Memory(Kind::Torch);

/// An allocated block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) address: u64,
    pub(super) bytes: u64,
    began: Moment,
    site: u32,
    pub(super) device: DeviceId,
}

impl Block {
    fn site(&self) -> Option<SiteId> {
        (self.site != NIL).then_some(SiteId(self.site))
    }
}

/// State of the cache on one device.
#[derive(Clone, Debug)]
struct Device {
    device: DeviceId,
    allocated: u64,
    reserved: u64,
    peak: u64,
    peak_at: Moment,
    /// Allocated bytes over time.
    level: Course,
    seen: Sum,
    blocks: u64,
    allocations: u64,
    frees: u64,
    unknown_taken: u64,
    refused: u64,
}

impl Device {
    fn new(device: DeviceId) -> Self {
        Self {
            device,
            allocated: 0,
            reserved: 0,
            peak: 0,
            peak_at: Moment(0),
            level: Course::default(),
            seen: Sum::default(),
            blocks: 0,
            allocations: 0,
            frees: 0,
            unknown_taken: 0,
            refused: 0,
        }
    }

    fn update(&mut self, call: &TensorCall, at: Moment, start: Moment) {
        self.level.level(at - start, self.allocated, call.allocated);
        self.allocated = call.allocated;
        self.reserved = call.reserved;
        if call.allocated > self.peak {
            (self.peak, self.peak_at) = (call.allocated, at);
        }
    }

    fn add(&mut self, bytes: u64) {
        self.seen.add(bytes);
        self.blocks += 1;
    }

    fn take(&mut self, bytes: u64) {
        self.seen.take(bytes);
        self.blocks = self.blocks.saturating_sub(1);
    }
}

/// PyTorch cache of one process.
#[derive(Debug, Default)]
pub(super) struct Torch {
    watch: Option<TensorWatch>,
    blocks: HashTable<Block>,
    hasher: DefaultHashBuilder,
    /// Ordered by device.
    devices: Vec<Device>,
    /// Number of blocks dropped because of the limit.
    unlisted: u64,
}

impl Torch {
    /// Sets whether its calls are tracked.
    pub(super) fn watch(&mut self, watch: TensorWatch) {
        self.watch = Some(watch);
    }

    fn device(&mut self, device: DeviceId) -> &mut Device {
        let index = match self.devices.binary_search_by_key(&device, |one| one.device) {
            Ok(index) => index,
            Err(index) => {
                self.devices.insert(index, Device::new(device));
                index
            }
        };
        &mut self.devices[index]
    }

    fn remove(&mut self, address: u64) -> Option<Block> {
        let hash = self.hasher.hash_one(address);
        let found = self.blocks.find_entry(hash, |block| block.address == address).ok()?;
        let block = found.remove().0;
        self.device(block.device).take(block.bytes);
        Some(block)
    }

    /// Adds a block, unless the limit is reached.
    fn insert(&mut self, block: Block) -> bool {
        if self.blocks.len() >= KEPT {
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
    fn end(&mut self, address: u64, how: How, at: Moment, sites: &mut SiteTable) -> bool {
        let Some(block) = self.remove(address) else { return false };
        sites.finish((block.site(), TENSORS), block.bytes, block.began, how, at);
        true
    }

    fn observe(&mut self, event: &Event, call: &TensorCall, sites: &mut SiteTable) {
        let at = event.at;
        self.device(call.device).update(call, at, sites.start());
        match call.what {
            TensorTurn::Began { address, bytes, site } => {
                // Its free was lost: an allocated block is never returned again.
                self.end(address, How::Replaced, at, sites);
                self.device(call.device).allocations += 1;
                let (device, number) = (call.device, site.map_or(NIL, |site| site.0));
                if self.insert(Block { address, bytes, began: at, site: number, device }) {
                    sites.begin_on(device, (site, TENSORS), bytes, at);
                }
            }
            TensorTurn::Ended { address, .. } => {
                let known = self.end(address, How::Freed, at, sites);
                let device = self.device(call.device);
                device.frees += 1;
                device.unknown_taken += u64::from(!known);
            }
            TensorTurn::Refused { .. } => self.device(call.device).refused += 1,
        }
    }

    /// Memory of the cache on a device that no tensor uses.
    pub(super) fn unused(&self, device: DeviceId, process: &Process) -> Option<Bytes> {
        let found = self.devices.iter().find(|one| one.device == device)?;
        Some(Bytes(held(found, process).saturating_sub(found.allocated)))
    }

    /// Tensors of a device, or of the only one if the device is unknown; without growth rates.
    pub(super) fn tensors(
        &self,
        device: Option<DeviceId>,
        process: &Process,
        at: Moment,
    ) -> Option<CacheTensors> {
        let found = match (device, &self.devices[..]) {
            (Some(device), all) => all.iter().find(|one| one.device == device)?,
            (None, [only]) => only,
            (None, _) => return None,
        };
        Some(CacheTensors {
            live: found.allocated,
            peak: found.peak,
            cache: held(found, process),
            per_hour: 0,
            cache_per_hour: 0,
            bounded: is_bounded(&found.level, at - process.sites.start(), found.allocated),
        })
    }

    /// Returns the view for a snapshot.
    pub(super) fn view(&self, process: &Process) -> TorchView {
        let losses = &process.losses;
        let in_use = segments::in_use(process, self.blocks.len(), self.blocks.iter().copied());
        TorchView {
            devices: self
                .devices
                .iter()
                .map(|device| show(device, held(device, process), &in_use))
                .collect(),
            lost: losses.own.tensors.saturating_add(losses.shared.tensors),
            unlisted: self.unlisted,
            reason: match self.watch {
                Some(TensorWatch::Impossible(reason)) => Some(reason),
                _ if self.devices.is_empty() => driver_allocates(&process.sites),
                _ => None,
            },
        }
    }
}

impl Process {
    /// Applies a call of the cache.
    pub(super) fn tensor(&mut self, event: &Event, call: &TensorCall) {
        let Self { torch, sites, .. } = self;
        torch.get_or_insert_default().observe(event, call, sites);
    }
}

/// Without calls of the cache: whether each tensor is allocated from the driver.
fn driver_allocates(sites: &SiteTable) -> Option<NoTensors> {
    let rows = sites.rows().iter().filter(|row| row.held == Held::Memory(Kind::Async));
    let calls = rows.fold(0_u64, |sum, row| sum.saturating_add(row.allocations));
    (calls >= ENOUGH).then_some(NoTensors::DriverAllocates)
}

/// Reserved bytes of the cache. The allocator does not report when it returns segments to the
/// driver, but it cannot hold more than the live driver memory, if all of that is known.
fn held(device: &Device, process: &Process) -> u64 {
    let losses = &process.losses;
    if process.before_trace || losses.own.events() > 0 || losses.shared.events() > 0 {
        return device.reserved;
    }
    let on = process.totals.devices().iter();
    let own = on.filter(|on| on.device.is_none_or(|other| other == device.device));
    let live = own.fold(Sum::default(), |sum, on| sum.plus(on.live));
    device.reserved.min(live.bytes().0)
}

fn show(
    device: &Device,
    reserved: u64,
    in_use: &Result<Vec<InUse>, NoFragmentation>,
) -> TorchDeviceView {
    TorchDeviceView {
        device: device.device,
        allocated: Bytes(device.allocated),
        reserved: Bytes(reserved),
        peak: Bytes(device.peak),
        peak_at: device.peak_at,
        blocks: device.blocks,
        seen_bytes: device.seen.bytes(),
        given_total: device.allocations,
        taken_total: device.frees,
        unknown_taken: device.unknown_taken,
        refused: device.refused,
        fragmentation: fragmentation(device, reserved, in_use),
    }
}

/// Segments without a block cannot be distinguished from other memory of the process: their total
/// follows from the reserved bytes that the allocator reports.
fn fragmentation(
    device: &Device,
    reserved: u64,
    in_use: &Result<Vec<InUse>, NoFragmentation>,
) -> Result<Fragmentation, NoFragmentation> {
    if device.seen.bytes() != Bytes(device.allocated) {
        return Err(NoFragmentation::BlocksUnseen);
    }
    let in_use = in_use.as_ref().map_err(|reason| *reason)?;
    let own = in_use.binary_search_by_key(&device.device, |one| one.device);
    let own = own.ok().and_then(|index| in_use.get(index).copied());
    let own = own.unwrap_or_else(|| InUse::none(device.device));
    if own.unknown {
        return Err(NoFragmentation::SegmentsUnseen);
    }
    let used = own.free.plus(device.seen);
    Ok(Fragmentation {
        whole: Sum::from(reserved).minus(used).bytes(),
        fragmented: own.free.bytes(),
        largest_gap: Bytes(own.largest_gap),
    })
}
