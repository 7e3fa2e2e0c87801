//! Memory pools and stream-ordered allocations.
//!
//! A pool allocates chunks from its device and returns them at a synchronization, down to its
//! release threshold, as observed on driver 580. Pools belong to the process, not to a context:
//! neither the end of a context nor a reset of the primary one affects them.

use std::ffi::c_int;

use crate::abi::{Code, CuDevice, DevicePointer, Handle, InParam, OutParam, Outcome, plain};
use crate::api::objects::ObjectKind;
use crate::api::stream::StreamTarget;
use crate::entry::exports;
use crate::oracle::{CALLS, CurrentAndPeak, EndReason, MemoryKind};
use crate::settings::MAX_DEVICES;
use crate::state::handle::Slab;
use crate::state::owner::Owner;
use crate::state::{self, DriverState};

exports! {
    alloc cuMemAllocAsync(dptr: OutParam<DevicePointer>, bytes: usize, stream: Handle) = alloc;
    alloc cuMemAllocAsync_ptsz(dptr: OutParam<DevicePointer>, bytes: usize, stream: Handle) = alloc;
    alloc cuMemAllocFromPoolAsync(dptr: OutParam<DevicePointer>, bytes: usize, pool: Handle,
        stream: Handle) = alloc_from;
    alloc cuMemAllocFromPoolAsync_ptsz(dptr: OutParam<DevicePointer>, bytes: usize, pool: Handle,
        stream: Handle) = alloc_from;
    free cuMemFreeAsync(dptr: DevicePointer, stream: Handle) = free;
    free cuMemFreeAsync_ptsz(dptr: DevicePointer, stream: Handle) = free;
    call cuMemPoolCreate(pool: OutParam<Handle>, props: InParam<PoolProps>) = create;
    call cuMemPoolDestroy(pool: Handle) = destroy;
    call cuMemPoolTrimTo(pool: Handle, keep: usize) = trim_to;
    call cuMemPoolSetAttribute(pool: Handle, attribute: c_int, value: InParam<u64>) = set_attribute;
    call cuMemPoolGetAttribute(pool: Handle, attribute: c_int, value: OutParam<u64>) = get_attribute;
    call cuDeviceGetDefaultMemPool(pool: OutParam<Handle>, device: CuDevice) = get_default;
    call cuDeviceGetMemPool(pool: OutParam<Handle>, device: CuDevice) = get_current;
    call cuDeviceSetMemPool(device: CuDevice, pool: Handle) = set_current;
}

/// Unit in which pools allocate device memory.
const CHUNK_BYTES: u64 = 32 << 20;

/// The used fields of `CUmemPoolProps`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PoolProps {
    pub(crate) allocation_type: c_int,
    handle_types: c_int,
    pub(crate) location_type: c_int,
    pub(crate) location_id: c_int,
    security: u64,
    max_size: u64,
    reserved: [u64; 7],
}
plain!(PoolProps);

/// A pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool {
    /// Device, or none for a pool of host memory.
    pub(crate) device: Option<usize>,
    /// Memory that it holds.
    pub(crate) reserved: CurrentAndPeak,
    /// Part of it that is allocated.
    pub(crate) used: CurrentAndPeak,
    /// Freed since the last synchronization: it cannot leave the pool yet.
    pending: u64,
    threshold: u64,
    max_size: u64,
    is_default: bool,
    /// Destroyed by the program, but kept for its live allocations.
    pub(crate) destroyed: bool,
    owner: u32,
}

/// All pools.
pub(crate) struct Pools {
    pub(crate) pools: Slab<Pool>,
    defaults: [Option<u32>; MAX_DEVICES],
    current: [Option<u32>; MAX_DEVICES],
}

impl Pools {
    pub(crate) const fn new() -> Self {
        let none = [None; MAX_DEVICES];
        Self { pools: Slab::new(4), defaults: none, current: none }
    }
}

impl DriverState {
    fn open_pool(&mut self, device: Option<usize>, max_size: u64, is_default: bool) -> u32 {
        let kind = if device.is_some() { MemoryKind::Async } else { MemoryKind::HostAsync };
        let none = Owner { kind, device, context: None, pool: None, live: 0 };
        let owner = self.owners.add(none);
        let key = self.pools.pools.insert(Pool {
            device,
            reserved: CurrentAndPeak::default(),
            used: CurrentAndPeak::default(),
            pending: 0,
            threshold: 0,
            max_size,
            is_default,
            destroyed: false,
            owner,
        });
        if let Some(owner) = self.owners.get_mut(owner) {
            owner.pool = Some(key.index);
        }
        key.index
    }

    fn default_pool(&mut self, device: usize) -> Result<u32, Code> {
        let known = *self.pools.defaults.get(device).ok_or(Code::InvalidDevice)?;
        if let Some(pool) = known {
            return Ok(pool);
        }
        let pool = self.open_pool(Some(device), 0, true);
        if let Some(slot) = self.pools.defaults.get_mut(device) {
            *slot = Some(pool);
        }
        Ok(pool)
    }

    fn current_pool(&mut self, device: usize) -> Result<u32, Code> {
        match self.pools.current.get(device).copied().flatten() {
            Some(pool) => Ok(pool),
            None => self.default_pool(device),
        }
    }

    fn pool(&self, handle: Handle) -> Result<u32, Code> {
        let key = self.pools.pools.find(handle).ok_or(Code::InvalidValue)?;
        let pool = self.pools.pools.get(key.index).ok_or(Code::InvalidValue)?;
        if pool.destroyed { Err(Code::InvalidValue) } else { Ok(key.index) }
    }

    fn open_in_pool(&mut self, index: u32, bytes: u64) -> Result<u64, Code> {
        let pool = *self.pools.pools.get(index).ok_or(Code::InvalidValue)?;
        let needed = pool.used.now.checked_add(bytes).ok_or(Code::OutOfMemory)?;
        if pool.max_size != 0 && needed > pool.max_size {
            return Err(Code::OutOfMemory);
        }
        let target = needed.checked_next_multiple_of(CHUNK_BYTES).ok_or(Code::OutOfMemory)?;
        let growth = target.saturating_sub(pool.reserved.now);
        if let Some(device) = pool.device {
            self.charge(device, growth)?;
        }
        let Ok(address) = self.open_at_address(pool.owner, bytes) else {
            if let Some(device) = pool.device {
                self.uncharge(device, growth);
            }
            return Err(Code::OutOfMemory);
        };
        if let Some(pool) = self.pools.pools.get_mut(index) {
            pool.reserved.add(growth);
            pool.used.add(bytes);
            pool.pending = pool.pending.min(pool.reserved.now - pool.used.now);
        }
        Ok(address)
    }

    /// Ends a stream-ordered allocation. Its memory stays in the pool for now.
    pub(crate) fn close_in_pool(&mut self, address: u64, end: EndReason) -> Outcome {
        let record = self.close_at_address(address, end).ok_or(Code::InvalidValue)?;
        let index = self.owner(record.owner)?.pool.ok_or(Code::Unknown)?;
        let pool = self.pools.pools.get_mut(index).ok_or(Code::Unknown)?;
        pool.used.sub(record.bytes);
        pool.pending += record.bytes;
        if pool.destroyed && pool.used.now == 0 {
            self.shrink(index, 0);
            self.pools.pools.remove(index);
            self.owners.remove(record.owner);
        }
        Ok(())
    }

    /// Returns memory to the device, down to a target size.
    fn shrink(&mut self, index: u32, target: u64) {
        let Some(pool) = self.pools.pools.get_mut(index) else { return };
        let excess = pool.reserved.now.saturating_sub(target);
        pool.reserved.sub(excess);
        if let Some(device) = pool.device {
            self.uncharge(device, excess);
        }
    }

    /// Applies a synchronization: freed memory above the threshold returns to the device.
    pub(crate) fn synchronized(&mut self, device: usize) {
        let pools: Vec<(u32, u64)> = self
            .pools
            .pools
            .iter()
            .filter(|(_, pool)| pool.device.is_none_or(|other| other == device))
            .map(|(index, pool)| {
                let threshold = pool.threshold / CHUNK_BYTES * CHUNK_BYTES;
                (index, threshold.max(pool.used.now.next_multiple_of(CHUNK_BYTES)))
            })
            .collect();
        for (index, target) in pools {
            self.shrink(index, target);
            if let Some(pool) = self.pools.pools.get_mut(index) {
                pool.pending = 0;
            }
        }
    }
}

fn alloc_in(
    dptr: OutParam<DevicePointer>,
    bytes: usize,
    pool: Option<Handle>,
    stream: Handle,
) -> Outcome {
    dptr.check()?;
    let mut state = state::running()?;
    let StreamTarget { device, capture } = state.stream(stream)?;
    let pool = pool.map(|pool| state.pool(pool)).transpose()?;
    if bytes == 0 {
        CALLS.add_allocating(-1);
        return dptr.set(0);
    }
    let bytes = bytes as u64;
    if let Some(graph) = capture {
        let of = pool.and_then(|pool| state.pools.pools.get(pool)).and_then(|pool| pool.device);
        let (_, address) = state.add_alloc_node(graph, of.unwrap_or(device), bytes)?;
        return dptr.set(address);
    }
    let pool = match pool {
        Some(pool) => pool,
        None => state.current_pool(device)?,
    };
    let address = state.open_in_pool(pool, bytes)?;
    dptr.set(address)
}

fn alloc(dptr: OutParam<DevicePointer>, bytes: usize, stream: Handle) -> Outcome {
    alloc_in(dptr, bytes, None, stream)
}

fn alloc_from(
    dptr: OutParam<DevicePointer>,
    bytes: usize,
    pool: Handle,
    stream: Handle,
) -> Outcome {
    alloc_in(dptr, bytes, Some(pool), stream)
}

fn free(dptr: DevicePointer, stream: Handle) -> Outcome {
    let mut state = state::running()?;
    let StreamTarget { capture, .. } = state.stream(stream)?;
    if dptr == 0 {
        CALLS.add_freeing(-1);
        return Ok(());
    }
    if let Some(graph) = capture {
        return state.add_free_node(graph, dptr).map(|_| ());
    }
    let Some(record) = state.arena.get(dptr) else {
        return state.free_graph_memory(dptr);
    };
    match state.owner(record.owner)?.kind {
        MemoryKind::Async | MemoryKind::HostAsync => state.close_in_pool(dptr, EndReason::Freed),
        MemoryKind::Device | MemoryKind::Managed => {
            state.close_at_address(dptr, EndReason::Freed);
            Ok(())
        }
        _ => Err(Code::InvalidValue),
    }
}

fn create(pool: OutParam<Handle>, props: InParam<PoolProps>) -> Outcome {
    pool.check()?;
    let props = props.get()?;
    let mut state = state::running()?;
    // Pinned memory on a device (1), on the host (2), or on a node of the host (3, 4).
    let device = match (props.allocation_type, props.location_type) {
        (1, 1) => Some(state.device(props.location_id)?),
        (1, 2..=4) => None,
        _ => return Err(Code::InvalidValue),
    };
    let index = state.open_pool(device, props.max_size, false);
    state.objects.created(ObjectKind::Pool);
    pool.set(state.pools.pools.handle(index))
}

fn destroy(pool: Handle) -> Outcome {
    let mut state = state::running()?;
    let index = state.pool(pool)?;
    for current in &mut state.pools.current {
        current.take_if(|current| *current == index);
    }
    let pool = state.pools.pools.get_mut(index).ok_or(Code::InvalidValue)?;
    if pool.is_default {
        return Err(Code::InvalidValue);
    }
    pool.destroyed = true;
    let (owner, used) = (pool.owner, pool.used.now);
    state.objects.destroyed(ObjectKind::Pool);
    if used == 0 {
        state.shrink(index, 0);
        state.pools.pools.remove(index);
        state.owners.remove(owner);
    }
    Ok(())
}

fn trim_to(pool: Handle, keep: usize) -> Outcome {
    let mut state = state::running()?;
    let index = state.pool(pool)?;
    let pool = state.pools.pools.get(index).ok_or(Code::InvalidValue)?;
    let in_use = (pool.used.now + pool.pending).next_multiple_of(CHUNK_BYTES);
    let keep = (keep as u64).checked_next_multiple_of(CHUNK_BYTES).unwrap_or(u64::MAX);
    state.shrink(index, in_use.max(keep));
    Ok(())
}

fn set_attribute(pool: Handle, attribute: c_int, value: InParam<u64>) -> Outcome {
    let mut state = state::running()?;
    let index = state.pool(pool)?;
    let pool = state.pools.pools.get_mut(index).ok_or(Code::InvalidValue)?;
    match attribute {
        // Reuse policies of freed memory, which have no visible effect here.
        1..=3 => {}
        4 => pool.threshold = value.get()?,
        6 if value.get()? == 0 => pool.reserved.peak = pool.reserved.now,
        8 if value.get()? == 0 => pool.used.peak = pool.used.now,
        _ => return Err(Code::InvalidValue),
    }
    Ok(())
}

fn get_attribute(pool: Handle, attribute: c_int, value: OutParam<u64>) -> Outcome {
    let state = state::running()?;
    let pool = state.pools.pools.get(state.pool(pool)?).ok_or(Code::InvalidValue)?;
    match attribute {
        1..=3 => value.narrow::<u32>().set(1),
        4 => value.set(pool.threshold),
        5 => value.set(pool.reserved.now),
        6 => value.set(pool.reserved.peak),
        7 => value.set(pool.used.now),
        8 => value.set(pool.used.peak),
        _ => Err(Code::InvalidValue),
    }
}

fn get_default(pool: OutParam<Handle>, device: CuDevice) -> Outcome {
    let mut state = state::running()?;
    let ordinal = state.device(device)?;
    let index = state.default_pool(ordinal)?;
    pool.set(state.pools.pools.handle(index))
}

fn get_current(pool: OutParam<Handle>, device: CuDevice) -> Outcome {
    let mut state = state::running()?;
    let ordinal = state.device(device)?;
    let index = state.current_pool(ordinal)?;
    pool.set(state.pools.pools.handle(index))
}

fn set_current(device: CuDevice, pool: Handle) -> Outcome {
    let mut state = state::running()?;
    let ordinal = state.device(device)?;
    let index = state.pool(pool)?;
    if state.pools.pools.get(index).is_none_or(|pool| pool.device != Some(ordinal)) {
        return Err(Code::InvalidValue);
    }
    if let Some(current) = state.pools.current.get_mut(ordinal) {
        *current = Some(index);
    }
    Ok(())
}
