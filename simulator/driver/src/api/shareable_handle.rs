//! Shareable physical memory: file descriptors that represent it, and multicast objects.
//!
//! A descriptor is a small memory file that describes the memory, so any process that receives it
//! can import it. Unlike a real one it does not keep the memory alive.

use std::ffi::c_int;
use std::fs::File;
use std::io::Write;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::os::unix::fs::FileExt;

use crate::abi::{Code, CuDevice, Handle, InParam, OutParam, Outcome, plain};
use crate::api::vmm::{AllocationProp, Backing};
use crate::entry::exports;
use crate::oracle::MemoryKind;
use crate::state;
use crate::state::arena::BLOCK_BYTES;

exports! {
    call cuMemExportToShareableHandle(shareable: OutParam<i32>, handle: Handle, handle_type: c_int,
        flags: u64) = export;
    alloc cuMemImportFromShareableHandle(handle: OutParam<Handle>, shareable: u64,
        handle_type: c_int) = import;
    call cuMulticastCreate(handle: OutParam<Handle>, prop: InParam<MulticastProp>) = multicast_create;
    call cuMulticastAddDevice(handle: Handle, device: CuDevice) = multicast_add_device;
    call cuMulticastBindMem(handle: Handle, offset: usize, memory: Handle, memory_offset: usize,
        bytes: usize, flags: u64) = multicast_bind;
    call cuMulticastUnbind(handle: Handle, device: CuDevice, offset: usize, bytes: usize) =
        multicast_unbind;
    call cuMulticastGetGranularity(bytes: OutParam<usize>, prop: InParam<MulticastProp>, option: c_int) =
        multicast_granularity;
}

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const FILE_DESCRIPTOR: c_int = 1;
const MAGIC: [u8; 8] = *b"VSIMFD01";
const TICKET: usize = 32;

/// `CUmulticastObjectProp`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MulticastProp {
    devices: u32,
    bytes: usize,
    handle_types: u64,
    flags: u64,
}
plain!(MulticastProp);

fn export(shareable: OutParam<i32>, handle: Handle, handle_type: c_int, flags: u64) -> Outcome {
    shareable.check()?;
    let state = state::running()?;
    let (_, physical) = state.physical(handle)?;
    if flags != 0 || handle_type != FILE_DESCRIPTOR || physical.prop.handle_types & handle_type == 0
    {
        return Err(Code::InvalidValue);
    }
    let Backing::Memory { owner } = physical.backing else { return Err(Code::InvalidValue) };
    let device = state.owner(owner)?.device.map_or(u64::MAX, |device| device as u64);
    // SAFETY: the name is a zero-terminated string; the kernel creates a new descriptor.
    let descriptor = unsafe { libc::memfd_create(c"simulated-gpu-memory".as_ptr(), 0) };
    if descriptor < 0 {
        return Err(Code::Unknown);
    }
    // SAFETY: the descriptor is new, and nothing else owns it.
    let mut file = unsafe { File::from_raw_fd(descriptor) };
    let mut ticket = [0_u8; TICKET];
    ticket[..8].copy_from_slice(&MAGIC);
    ticket[8..16].copy_from_slice(&physical.bytes.to_le_bytes());
    ticket[16..24].copy_from_slice(&device.to_le_bytes());
    ticket[24..32].copy_from_slice(&u64::from(std::process::id()).to_le_bytes());
    file.write_all(&ticket).map_err(|_| Code::Unknown)?;
    shareable.set(file.into_raw_fd())
}

/// Returns bytes and device of the memory that a descriptor represents.
fn read_ticket(descriptor: c_int) -> Option<(u64, Option<usize>)> {
    // SAFETY: the program promises that this descriptor is open; a wrong one makes the read fail.
    // The file is never closed here, so the descriptor still belongs to the program.
    let file = std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
    let mut ticket = [0_u8; TICKET];
    file.read_exact_at(&mut ticket, 0).ok()?;
    let number = |at: usize| Some(u64::from_le_bytes(ticket.get(at..at + 8)?.try_into().ok()?));
    if ticket.get(..8)? != MAGIC {
        return None;
    }
    Some((number(8)?, usize::try_from(number(16)?).ok().filter(|device| *device < 64)))
}

fn import(handle: OutParam<Handle>, shareable: u64, handle_type: c_int) -> Outcome {
    handle.check()?;
    let mut state = state::running()?;
    let descriptor = c_int::try_from(shareable).ok().filter(|fd| *fd >= 0);
    if handle_type != FILE_DESCRIPTOR {
        return Err(Code::InvalidValue);
    }
    let (bytes, device) = descriptor.and_then(read_ticket).ok_or(Code::InvalidValue)?;
    let owner = state.owners.common(MemoryKind::Imported, device);
    state.opened(owner, bytes)?;
    let prop = AllocationProp::of_device(device, FILE_DESCRIPTOR);
    handle.set(state.open_physical(bytes, Backing::Memory { owner }, prop))
}

fn multicast_create(handle: OutParam<Handle>, prop: InParam<MulticastProp>) -> Outcome {
    handle.check()?;
    let prop = prop.get()?;
    let bytes = prop.bytes as u64;
    let mut state = state::running()?;
    if prop.devices == 0 || bytes == 0 || !bytes.is_multiple_of(BLOCK_BYTES) {
        return Err(Code::InvalidValue);
    }
    handle.set(state.open_physical(bytes, Backing::Multicast, AllocationProp::of_device(None, 0)))
}

/// Fails unless the handle is that of a multicast object.
fn check_multicast(state: &state::DriverState, handle: Handle) -> Result<u64, Code> {
    let (_, object) = state.physical(handle)?;
    if object.backing == Backing::Multicast { Ok(object.bytes) } else { Err(Code::InvalidValue) }
}

fn multicast_add_device(handle: Handle, device: CuDevice) -> Outcome {
    let state = state::running()?;
    state.device(device)?;
    check_multicast(&state, handle).map(|_| ())
}

fn multicast_bind(
    handle: Handle,
    offset: usize,
    memory: Handle,
    memory_offset: usize,
    bytes: usize,
    _flags: u64,
) -> Outcome {
    let state = state::running()?;
    let size = check_multicast(&state, handle)?;
    let (_, physical) = state.physical(memory)?;
    let fits = |offset: usize, size: u64| {
        offset.checked_add(bytes).is_some_and(|end| end as u64 <= size && bytes > 0)
    };
    let is_memory = matches!(physical.backing, Backing::Memory { .. });
    let valid = is_memory && fits(offset, size) && fits(memory_offset, physical.bytes);
    if valid { Ok(()) } else { Err(Code::InvalidValue) }
}

fn multicast_unbind(handle: Handle, device: CuDevice, _offset: usize, _bytes: usize) -> Outcome {
    multicast_add_device(handle, device)
}

fn multicast_granularity(
    bytes: OutParam<usize>,
    prop: InParam<MulticastProp>,
    _option: c_int,
) -> Outcome {
    drop(state::running()?);
    prop.get()?;
    bytes.set(usize::try_from(BLOCK_BYTES).unwrap_or(usize::MAX))
}
