//! Device memory: linear, pitched and managed.

use std::ffi::{c_int, c_void};

use crate::abi::{Code, DevicePointer, OutParam, Outcome};
use crate::entry::exports;
use crate::oracle::{CALLS, EndReason, MemoryKind};
use crate::settings;
use crate::state::{self, DriverState};

exports! {
    alloc cuMemAlloc_v2(dptr: OutParam<DevicePointer>, bytes: usize) = alloc;
    alloc cuMemAllocPitch_v2(dptr: OutParam<DevicePointer>, pitch: OutParam<usize>, width: usize,
        height: usize, element: u32) = alloc_pitch;
    alloc cuMemAllocManaged(dptr: OutParam<DevicePointer>, bytes: usize, flags: u32) = alloc_managed;
    free cuMemFree_v2(dptr: DevicePointer) = free;
    call cuMemGetInfo_v2(free: OutParam<usize>, total: OutParam<usize>) = info;
    call cuMemGetAddressRange_v2(base: OutParam<DevicePointer>, size: OutParam<usize>,
        dptr: DevicePointer) = address_range;
    call cuPointerGetAttribute(data: AttributeOut, attribute: c_int, dptr: DevicePointer) =
        pointer_attribute;
}

/// Alignment of the rows of pitched memory.
const PITCH_ALIGNMENT: u64 = 512;

fn alloc(dptr: OutParam<DevicePointer>, bytes: usize) -> Outcome {
    dptr.check()?;
    let mut state = state::running()?;
    let owner = state.current()?.device_owner;
    state.cannot_be_captured()?;
    let address = open(&mut state, owner, bytes as u64)?;
    dptr.set(address)
}

fn open(state: &mut DriverState, owner: u32, bytes: u64) -> Result<u64, Code> {
    if bytes == 0 {
        return Err(Code::InvalidValue);
    }
    state.open_at_address(owner, bytes)
}

fn alloc_pitch(
    dptr: OutParam<DevicePointer>,
    pitch: OutParam<usize>,
    width: usize,
    height: usize,
    element: u32,
) -> Outcome {
    dptr.check()?;
    pitch.check()?;
    if !matches!(element, 4 | 8 | 16) {
        return Err(Code::InvalidValue);
    }
    let row = (width as u64).checked_next_multiple_of(PITCH_ALIGNMENT).ok_or(Code::OutOfMemory)?;
    let bytes = row.checked_mul(height as u64).ok_or(Code::OutOfMemory)?;
    let mut state = state::running()?;
    let owner = state.current()?.device_owner;
    state.cannot_be_captured()?;
    let address = open(&mut state, owner, bytes)?;
    pitch.set(usize::try_from(row).unwrap_or(usize::MAX))?;
    dptr.set(address)
}

fn alloc_managed(dptr: OutParam<DevicePointer>, bytes: usize, flags: u32) -> Outcome {
    dptr.check()?;
    // Attached to all streams (1) or to the host (2).
    if !matches!(flags, 1 | 2) {
        return Err(Code::InvalidValue);
    }
    let mut state = state::running()?;
    let owner = state.current()?.managed_owner;
    state.cannot_be_captured()?;
    let address = open(&mut state, owner, bytes as u64)?;
    dptr.set(address)
}

/// Frees memory by address, in any context or without one, but not in a destroyed one.
fn free(dptr: DevicePointer) -> Outcome {
    let mut state = state::running()?;
    state.current_or_none()?;
    state.cannot_be_captured()?;
    if dptr == 0 {
        CALLS.add_freeing(-1);
        return Ok(());
    }
    let Some(record) = state.arena.get(dptr) else {
        return state.free_graph_memory(dptr);
    };
    let owner = state.owner(record.owner)?;
    match owner.kind {
        MemoryKind::Device | MemoryKind::Managed => {
            state.close_at_address(dptr, EndReason::Freed);
            Ok(())
        }
        MemoryKind::Imported if !state.ipc.contains_key(&dptr) => {
            state.close_at_address(dptr, EndReason::Freed);
            Ok(())
        }
        // The free waits for the device, so the pool can shrink.
        MemoryKind::Async | MemoryKind::HostAsync => {
            state.close_in_pool(dptr, EndReason::Freed)?;
            state.synchronized(owner.device.unwrap_or(0));
            Ok(())
        }
        _ => Err(Code::InvalidValue),
    }
}

fn info(free: OutParam<usize>, total: OutParam<usize>) -> Outcome {
    let state = state::running()?;
    let device = state.current()?.device;
    let capacity = settings::get().memory;
    let free_bytes = capacity.saturating_sub(state.used(device));
    free.set(usize::try_from(free_bytes).unwrap_or(usize::MAX))?;
    total.set(usize::try_from(capacity).unwrap_or(usize::MAX))
}

/// Returns start and size of the allocation that contains an address.
fn range_of(state: &DriverState, address: u64) -> Option<(u64, u64)> {
    if let Some((base, record)) = state.arena.containing(address) {
        return Some((base, record.bytes));
    }
    state.host_range(address).map(|(base, range)| (base, range.bytes))
}

fn address_range(
    base: OutParam<DevicePointer>,
    size: OutParam<usize>,
    dptr: DevicePointer,
) -> Outcome {
    let state = state::running()?;
    state.current()?;
    let (start, bytes) = range_of(&state, dptr).ok_or(Code::NotFound)?;
    base.set_if_not_null(start);
    size.set_if_not_null(usize::try_from(bytes).unwrap_or(usize::MAX));
    Ok(())
}

/// The result pointer of `cuPointerGetAttribute`; the attribute determines its width.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct AttributeOut(OutParam<*const c_void>);

impl AttributeOut {
    fn set(self, value: u64) -> Outcome {
        self.0.set(value as *const c_void)
    }

    fn set_int(self, value: u32) -> Outcome {
        self.0.narrow::<u32>().set(value)
    }

    fn set_bool(self, value: bool) -> Outcome {
        self.0.narrow::<u8>().set(u8::from(value))
    }
}

fn pointer_attribute(data: AttributeOut, attribute: c_int, dptr: DevicePointer) -> Outcome {
    let state = state::running()?;
    let (base, bytes) = range_of(&state, dptr).ok_or(Code::InvalidValue)?;
    let found = state.arena.get(base).map(|record| record.owner);
    let host = state.host_range(dptr).map(|(_, range)| range.owner);
    let owner = state.owner(found.or(host).ok_or(Code::InvalidValue)?)?;
    let managed = owner.kind == MemoryKind::Managed;
    match attribute {
        1 => data.set(owner.context.map_or(0, |index| state.contexts.handle(index))),
        2 => data.set_int(if host.is_some() { 1 } else { 2 }),
        3 => data.set(dptr),
        4 if host.is_some() || managed => data.set(dptr),
        8 => data.set_bool(managed),
        9 => data.set_int(owner.device.and_then(|d| u32::try_from(d).ok()).unwrap_or(0)),
        11 => data.set(base),
        12 => data.set(bytes),
        13 => data.set_bool(true),
        17 => data.set(owner.pool.map_or(0, |index| state.pools.pools.handle(index))),
        _ => Err(Code::InvalidValue),
    }
}
