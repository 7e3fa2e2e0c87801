//! Virtual memory management: physical memory, address ranges, and mappings.
//!
//! None of these belong to a context: physical memory lives until its last handle is released and
//! its last mapping is removed, as observed on driver 580.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};

use crate::abi::{Code, DevicePointer, Handle, InParam, OutParam, Outcome, plain};
use crate::entry::exports;
use crate::oracle::{EndReason, MemoryKind};
use crate::state::arena::BLOCK_BYTES;
use crate::state::handle::Slab;
use crate::state::{self, DriverState};

exports! {
    alloc cuMemCreate(handle: OutParam<Handle>, bytes: usize, prop: InParam<AllocationProp>, flags: u64) = create;
    free cuMemRelease(handle: Handle) = release;
    call cuMemRetainAllocationHandle(handle: OutParam<Handle>, address: u64) = retain;
    call cuMemAddressReserve(dptr: OutParam<DevicePointer>, bytes: usize, alignment: usize,
        hint: DevicePointer, flags: u64) = reserve;
    call cuMemAddressFree(dptr: DevicePointer, bytes: usize) = free_addresses;
    call cuMemMap(dptr: DevicePointer, bytes: usize, offset: usize, handle: Handle, flags: u64) =
        map;
    free cuMemUnmap(dptr: DevicePointer, bytes: usize) = unmap;
    call cuMemSetAccess(dptr: DevicePointer, bytes: usize, access: *const c_void, count: usize) =
        set_access;
    call cuMemGetAllocationGranularity(bytes: OutParam<usize>, prop: InParam<AllocationProp>, option: c_int) =
        granularity;
    call cuMemGetAllocationPropertiesFromHandle(prop: OutParam<AllocationProp>, handle: Handle) = properties;
}

/// `CUmemAllocationProp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AllocationProp {
    allocation_type: c_int,
    pub(crate) handle_types: c_int,
    location_type: c_int,
    location_id: c_int,
    security: u64,
    flags: u64,
}
plain!(AllocationProp);

impl AllocationProp {
    /// Returns the properties of memory that was not created here.
    pub(crate) fn of_device(device: Option<usize>, handle_types: c_int) -> Self {
        let location_id = device.and_then(|device| c_int::try_from(device).ok()).unwrap_or(0);
        let location_type = c_int::from(device.is_some());
        Self { allocation_type: 1, handle_types, location_type, location_id, security: 0, flags: 0 }
    }
}

/// What a handle refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Backing {
    /// Memory of an owner.
    Memory { owner: u32 },
    /// A multicast group of devices, without memory of its own.
    Multicast,
}

/// Physical memory, or a multicast object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PhysicalMemory {
    pub(crate) bytes: u64,
    pub(crate) backing: Backing,
    pub(crate) thread: u32,
    pub(crate) prop: AllocationProp,
    references: u32,
    maps: u32,
}

/// A mapping of a whole physical allocation.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    bytes: u64,
    physical: u32,
}

/// An address range that a program reserved.
#[derive(Debug)]
struct Reservation {
    bytes: u64,
    /// The larger range that it was taken from, for its alignment.
    span: (u64, u64),
    maps: BTreeMap<u64, Mapping>,
}

/// All physical memory, reservations and mappings.
pub(crate) struct VmmState {
    pub(crate) physical: Slab<PhysicalMemory>,
    reservations: BTreeMap<u64, Reservation>,
}

impl VmmState {
    pub(crate) const fn new() -> Self {
        Self { physical: Slab::new(5), reservations: BTreeMap::new() }
    }

    /// Returns the reservation that contains a whole range.
    fn reservation(&mut self, address: u64, bytes: u64) -> Option<&mut Reservation> {
        let end = address.checked_add(bytes)?;
        let (base, reservation) = self.reservations.range_mut(..=address).next_back()?;
        (end <= base + reservation.bytes).then_some(reservation)
    }

    /// Returns whether a whole range is mapped.
    pub(crate) fn is_mapped(&self, address: u64, bytes: u64) -> bool {
        let Some(end) = address.checked_add(bytes) else { return false };
        let Some((_, reservation)) = self.reservations.range(..=address).next_back() else {
            return false;
        };
        let mut reached = address;
        while reached < end {
            let map = reservation.maps.range(..=reached).next_back();
            match map {
                Some((base, map)) if base + map.bytes > reached => reached = base + map.bytes,
                _ => return false,
            }
        }
        true
    }

    /// Returns the physical memory that is mapped at an address.
    fn physical_at(&self, address: u64) -> Option<u32> {
        let (_, reservation) = self.reservations.range(..=address).next_back()?;
        let (base, map) = reservation.maps.range(..=address).next_back()?;
        (address - base < map.bytes).then_some(map.physical)
    }
}

impl DriverState {
    /// Adds physical memory and returns its handle.
    pub(crate) fn open_physical(
        &mut self,
        bytes: u64,
        backing: Backing,
        prop: AllocationProp,
    ) -> Handle {
        let thread = state::thread();
        let physical = PhysicalMemory { bytes, backing, thread, prop, references: 1, maps: 0 };
        let key = self.vmm.physical.insert(physical);
        self.vmm.physical.handle(key.index)
    }

    /// Returns the physical memory of a handle that is still valid.
    pub(crate) fn physical(&self, handle: Handle) -> Result<(u32, PhysicalMemory), Code> {
        let key = self.vmm.physical.find(handle).ok_or(Code::InvalidValue)?;
        let physical = *self.vmm.physical.get(key.index).ok_or(Code::InvalidValue)?;
        if physical.references == 0 { Err(Code::InvalidValue) } else { Ok((key.index, physical)) }
    }

    /// Frees physical memory without handles and mappings.
    fn end_if_unused(&mut self, index: u32) {
        let Some(physical) = self.vmm.physical.get(index).copied() else { return };
        if physical.references > 0 || physical.maps > 0 {
            return;
        }
        self.vmm.physical.remove(index);
        if let Backing::Memory { owner } = physical.backing {
            self.closed(owner, physical.bytes, EndReason::Freed);
        }
    }
}

fn create(
    handle: OutParam<Handle>,
    bytes: usize,
    prop: InParam<AllocationProp>,
    flags: u64,
) -> Outcome {
    handle.check()?;
    let prop = prop.get()?;
    let bytes = bytes as u64;
    let mut state = state::running()?;
    if bytes == 0 || !bytes.is_multiple_of(BLOCK_BYTES) || flags != 0 || prop.allocation_type != 1 {
        return Err(Code::InvalidValue);
    }
    // On a device (1), on the host (2), or on a node of the host (3, 4).
    let (kind, device) = match prop.location_type {
        1 => (MemoryKind::Physical, Some(state.device(prop.location_id)?)),
        2..=4 => (MemoryKind::HostPhysical, None),
        _ => return Err(Code::InvalidValue),
    };
    let owner = state.owners.common(kind, device);
    state.opened(owner, bytes)?;
    handle.set(state.open_physical(bytes, Backing::Memory { owner }, prop))
}

fn release(handle: Handle) -> Outcome {
    let mut state = state::running()?;
    let (index, _) = state.physical(handle)?;
    if let Some(physical) = state.vmm.physical.get_mut(index) {
        physical.references -= 1;
    }
    state.end_if_unused(index);
    Ok(())
}

fn retain(handle: OutParam<Handle>, address: u64) -> Outcome {
    handle.check()?;
    let mut state = state::running()?;
    let index = state.vmm.physical_at(address).ok_or(Code::InvalidValue)?;
    if let Some(physical) = state.vmm.physical.get_mut(index) {
        physical.references += 1;
    }
    handle.set(state.vmm.physical.handle(index))
}

fn reserve(
    dptr: OutParam<DevicePointer>,
    bytes: usize,
    alignment: usize,
    _hint: DevicePointer,
    flags: u64,
) -> Outcome {
    dptr.check()?;
    let (bytes, alignment) = (bytes as u64, alignment as u64);
    let mut state = state::running()?;
    let aligned = alignment == 0 || alignment.is_power_of_two();
    if bytes == 0 || !bytes.is_multiple_of(BLOCK_BYTES) || !aligned || flags != 0 {
        return Err(Code::InvalidValue);
    }
    let extra = if alignment > BLOCK_BYTES { alignment } else { 0 };
    let span = bytes.checked_add(extra).ok_or(Code::OutOfMemory)?;
    let start = state.arena.reserve(span).ok_or(Code::OutOfMemory)?;
    let address = start.next_multiple_of(alignment.max(1));
    let reservation = Reservation { bytes, span: (start, span), maps: BTreeMap::new() };
    state.vmm.reservations.insert(address, reservation);
    dptr.set(address)
}

fn free_addresses(dptr: DevicePointer, bytes: usize) -> Outcome {
    let mut state = state::running()?;
    let reservation = state.vmm.reservations.get(&dptr).ok_or(Code::InvalidValue)?;
    if reservation.bytes != bytes as u64 || !reservation.maps.is_empty() {
        return Err(Code::InvalidValue);
    }
    let (start, span) = reservation.span;
    state.vmm.reservations.remove(&dptr);
    state.arena.release(start, span);
    Ok(())
}

fn map(dptr: DevicePointer, bytes: usize, offset: usize, handle: Handle, flags: u64) -> Outcome {
    let mut state = state::running()?;
    let bytes = bytes as u64;
    let (index, physical) = state.physical(handle)?;
    if flags != 0 || bytes == 0 || !dptr.is_multiple_of(BLOCK_BYTES) {
        return Err(Code::InvalidValue);
    }
    // Current drivers map whole handles only.
    if offset != 0 || bytes != physical.bytes {
        return Err(Code::NotSupported);
    }
    let reservation = state.vmm.reservation(dptr, bytes).ok_or(Code::InvalidValue)?;
    let before = reservation.maps.range(..dptr + bytes).next_back();
    if before.is_some_and(|(base, map)| base + map.bytes > dptr) {
        return Err(Code::InvalidValue);
    }
    reservation.maps.insert(dptr, Mapping { bytes, physical: index });
    if let Some(physical) = state.vmm.physical.get_mut(index) {
        physical.maps += 1;
    }
    Ok(())
}

fn unmap(dptr: DevicePointer, bytes: usize) -> Outcome {
    let mut state = state::running()?;
    let bytes = bytes as u64;
    if bytes == 0 {
        return Err(Code::InvalidValue);
    }
    let reservation = state.vmm.reservation(dptr, bytes).ok_or(Code::InvalidValue)?;
    let end = dptr + bytes;
    // A range may contain several mappings and holes between them, but not a part of a mapping.
    let partly = |(base, map): (&u64, &Mapping)| *base < dptr || base + map.bytes > end;
    let touching = || {
        let range = reservation.maps.range(..end);
        range.filter(|(base, map)| *base + map.bytes > dptr)
    };
    if touching().any(partly) {
        return Err(Code::InvalidValue);
    }
    let unmapped: Vec<(u64, u32)> = touching().map(|(base, map)| (*base, map.physical)).collect();
    for (base, _) in &unmapped {
        reservation.maps.remove(base);
    }
    for (_, index) in unmapped {
        if let Some(physical) = state.vmm.physical.get_mut(index) {
            physical.maps -= 1;
        }
        state.end_if_unused(index);
    }
    Ok(())
}

fn set_access(dptr: DevicePointer, bytes: usize, _access: *const c_void, _count: usize) -> Outcome {
    let mut state = state::running()?;
    state.vmm.reservation(dptr, bytes as u64).ok_or(Code::InvalidValue)?;
    state.vmm.physical_at(dptr).ok_or(Code::InvalidValue)?;
    Ok(())
}

fn granularity(bytes: OutParam<usize>, prop: InParam<AllocationProp>, _option: c_int) -> Outcome {
    drop(state::running()?);
    prop.get()?;
    bytes.set(usize::try_from(BLOCK_BYTES).unwrap_or(usize::MAX))
}

fn properties(prop: OutParam<AllocationProp>, handle: Handle) -> Outcome {
    let (_, physical) = state::running()?.physical(handle)?;
    prop.set(physical.prop)
}
