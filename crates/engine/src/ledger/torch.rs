//! Blocks that PyTorch's cache gave out, by address, and what it says of itself. Nothing of it is a
//! part of any sum of the driver's memory.

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

/// Blocks of a process that are kept: more than any program has, and 128 MiB.
const KEPT: usize = 1 << 22;

/// Stream-ordered allocations without a single block, from which on the cache is taken for unused.
const ENOUGH: u64 = 16;

const TENSORS: Held = Held::Memory(Kind::Torch);

/// A block that is given out.
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

/// What is known of one device.
#[derive(Clone, Debug)]
struct Device {
    device: DeviceId,
    allocated: u64,
    reserved: u64,
    peak: u64,
    peak_at: Moment,
    /// What was allocated over time.
    level: Course,
    seen: Sum,
    blocks: u64,
    given: u64,
    taken: u64,
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
            given: 0,
            taken: 0,
            unknown_taken: 0,
            refused: 0,
        }
    }

    fn tell(&mut self, call: &TensorCall, at: Moment, start: Moment) {
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

/// The cache of one process.
#[derive(Debug, Default)]
pub(super) struct Torch {
    watch: Option<TensorWatch>,
    blocks: HashTable<Block>,
    hasher: DefaultHashBuilder,
    /// In the order of their numbers.
    devices: Vec<Device>,
    /// Blocks that there was no room for.
    unlisted: u64,
}

impl Torch {
    /// Whether its calls can be seen.
    pub(super) fn watch(&mut self, watch: TensorWatch) {
        self.watch = Some(watch);
    }

    fn device(&mut self, device: DeviceId) -> &mut Device {
        let place = match self.devices.binary_search_by_key(&device, |one| one.device) {
            Ok(place) => place,
            Err(place) => {
                self.devices.insert(place, Device::new(device));
                place
            }
        };
        &mut self.devices[place]
    }

    fn remove(&mut self, address: u64) -> Option<Block> {
        let hash = self.hasher.hash_one(address);
        let found = self.blocks.find_entry(hash, |block| block.address == address).ok()?;
        let block = found.remove().0;
        self.device(block.device).take(block.bytes);
        Some(block)
    }

    /// Keeps a block, if there is room.
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

    /// A block is there no more.
    fn end(&mut self, address: u64, how: How, at: Moment, sites: &mut SiteTable) -> bool {
        let Some(block) = self.remove(address) else { return false };
        sites.finish((block.site(), TENSORS), block.bytes, block.began, how, at);
        true
    }

    fn note(&mut self, event: &Event, call: &TensorCall, sites: &mut SiteTable) {
        let at = event.at;
        self.device(call.device).tell(call, at, sites.start());
        match call.what {
            TensorTurn::Began { address, bytes, site } => {
                // Its end was lost: nothing is given out twice.
                self.end(address, How::Replaced, at, sites);
                self.device(call.device).given += 1;
                let (device, number) = (call.device, site.map_or(NIL, |site| site.0));
                if self.insert(Block { address, bytes, began: at, site: number, device }) {
                    sites.begin_on(device, (site, TENSORS), bytes, at);
                }
            }
            TensorTurn::Ended { address, .. } => {
                let known = self.end(address, How::Freed, at, sites);
                let device = self.device(call.device);
                device.taken += 1;
                device.unknown_taken += u64::from(!known);
            }
            TensorTurn::Refused { .. } => self.device(call.device).refused += 1,
        }
    }

    /// What the cache of a device holds and no tensor uses.
    pub(super) fn unused(&self, device: DeviceId, process: &Process) -> Option<Bytes> {
        let found = self.devices.iter().find(|one| one.device == device)?;
        Some(Bytes(held(found, process).saturating_sub(found.allocated)))
    }

    /// What tensors of a device did, or of the only one where the device is not known; without
    /// figures of their growth and of that of the cache.
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

    /// What a snapshot shows of it.
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
    /// The cache gave out a block, or took one back.
    pub(super) fn tensor(&mut self, event: &Event, call: &TensorCall) {
        let Self { torch, sites, .. } = self;
        torch.get_or_insert_default().note(event, call, sites);
    }
}

/// Without a call of the cache: whether the driver is asked for every tensor.
fn driver_allocates(sites: &SiteTable) -> Option<NoTensors> {
    let rows = sites.rows().iter().filter(|row| row.held == Held::Memory(Kind::Async));
    let calls = rows.fold(0_u64, |sum, row| sum.saturating_add(row.allocations));
    (calls >= ENOUGH).then_some(NoTensors::DriverAllocates)
}

/// The allocator tells nobody when it gives segments back to the driver. It cannot hold more than the
/// driver has given out, which is known where all of it was seen.
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
        given_total: device.given,
        taken_total: device.taken,
        unknown_taken: device.unknown_taken,
        refused: device.refused,
        fragmentation: fragmentation(device, reserved, in_use),
    }
}

/// Segments without a block look like any other memory of the process: what they are together
/// follows from what the allocator says that it holds.
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
    let own = own.ok().and_then(|place| in_use.get(place).copied());
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
