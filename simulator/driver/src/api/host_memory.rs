//! Page-locked host memory: allocated by the driver, or registered by the program.

use std::ffi::c_void;

use crate::abi::{Code, DevicePointer, OutParam, Outcome};
use crate::entry::exports;
use crate::oracle::{CALLS, EndReason, MemoryKind};
use crate::state::{self, DriverState};

exports! {
    alloc cuMemAllocHost(pointer: OutParam<*const c_void>, bytes: u32) = alloc_v1;
    alloc cuMemAllocHost_v2(pointer: OutParam<*const c_void>, bytes: usize) = alloc;
    alloc cuMemHostAlloc(pointer: OutParam<*const c_void>, bytes: usize, flags: u32) = alloc_flags;
    alloc cuMemHostRegister(pointer: u64, bytes: usize, flags: u32) = register;
    alloc cuMemHostRegister_v2(pointer: u64, bytes: usize, flags: u32) = register;
    free cuMemHostUnregister(pointer: u64) = unregister;
    free cuMemFreeHost(pointer: u64) = free;
    call cuMemHostGetDevicePointer_v2(dptr: OutParam<DevicePointer>, pointer: u64, flags: u32) =
        device_pointer;
}

/// A range of page-locked host memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostRange {
    pub(crate) bytes: u64,
    pub(crate) thread: u32,
    pub(crate) owner: u32,
}

impl DriverState {
    /// Returns the range that contains an address.
    pub(crate) fn host_range(&self, address: u64) -> Option<(u64, HostRange)> {
        let (base, range) = self.host.range(..=address).next_back()?;
        (address - base < range.bytes).then_some((*base, *range))
    }

    fn open_host(&mut self, kind: MemoryKind, address: u64, bytes: u64) -> Outcome {
        let context = self.current()?;
        let owner = match kind {
            MemoryKind::Registered => context.registered_owner,
            _ => context.pinned_owner,
        };
        self.opened(owner, bytes)?;
        self.host.insert(address, HostRange { bytes, thread: state::thread(), owner });
        Ok(())
    }

    /// Removes a range, and unmaps it if the driver allocated it.
    pub(crate) fn close_host(&mut self, address: u64, end: EndReason) {
        let Some(range) = self.host.remove(&address) else { return };
        if self.owner(range.owner).is_ok_and(|owner| owner.kind == MemoryKind::Pinned) {
            unmap(address, range.bytes);
        }
        self.closed(range.owner, range.bytes, end);
    }
}

fn alloc_v1(pointer: OutParam<*const c_void>, bytes: u32) -> Outcome {
    alloc(pointer, bytes as usize)
}

fn alloc(pointer: OutParam<*const c_void>, bytes: usize) -> Outcome {
    pointer.check()?;
    let mut state = state::running()?;
    state.current()?;
    state.cannot_be_captured()?;
    if bytes == 0 {
        CALLS.add_allocating(-1);
        return pointer.set(std::ptr::null());
    }
    let memory = map(bytes).ok_or(Code::OutOfMemory)?;
    state.open_host(MemoryKind::Pinned, memory as u64, bytes as u64)?;
    pointer.set(memory)
}

fn alloc_flags(pointer: OutParam<*const c_void>, bytes: usize, flags: u32) -> Outcome {
    // Portable, mapped for devices, write-combined.
    if flags & !7 != 0 {
        return Err(Code::InvalidValue);
    }
    alloc(pointer, bytes)
}

fn register(pointer: u64, bytes: usize, flags: u32) -> Outcome {
    let mut state = state::running()?;
    state.current()?;
    state.cannot_be_captured()?;
    let bytes = bytes as u64;
    // Portable, mapped for devices, I/O memory, read-only.
    if pointer == 0 || bytes == 0 || flags & !15 != 0 {
        return Err(Code::InvalidValue);
    }
    let end = pointer.checked_add(bytes).ok_or(Code::InvalidValue)?;
    let before = state.host.range(..end).next_back();
    if before.is_some_and(|(base, range)| base + range.bytes > pointer) {
        return Err(Code::AlreadyRegistered);
    }
    state.open_host(MemoryKind::Registered, pointer, bytes)
}

fn close(pointer: u64, kind: MemoryKind, unknown: Code) -> Outcome {
    let mut state = state::running()?;
    state.current_or_none()?;
    state.cannot_be_captured()?;
    let (base, range) = state.host_range(pointer).ok_or(unknown)?;
    if base != pointer || state.owner(range.owner)?.kind != kind {
        return Err(Code::InvalidValue);
    }
    state.close_host(pointer, EndReason::Freed);
    Ok(())
}

fn unregister(pointer: u64) -> Outcome {
    if pointer == 0 {
        return Err(Code::InvalidValue);
    }
    close(pointer, MemoryKind::Registered, Code::NotRegistered)
}

fn free(pointer: u64) -> Outcome {
    if pointer == 0 {
        drop(state::running()?);
        CALLS.add_freeing(-1);
        return Ok(());
    }
    close(pointer, MemoryKind::Pinned, Code::InvalidValue)
}

fn device_pointer(dptr: OutParam<DevicePointer>, pointer: u64, flags: u32) -> Outcome {
    let state = state::running()?;
    state.current()?;
    if flags != 0 || state.host_range(pointer).is_none() {
        return Err(Code::InvalidValue);
    }
    // Host and devices share one address space.
    dptr.set(pointer)
}

fn map(bytes: usize) -> Option<*const c_void> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    (memory != libc::MAP_FAILED).then_some(memory.cast_const())
}

fn unmap(address: u64, bytes: u64) {
    let Ok(bytes) = usize::try_from(bytes) else { return };
    // SAFETY: the range came from `map` and its entry was just removed, so it is unmapped once; a
    // program that still uses it uses freed memory, as with the real driver.
    unsafe { libc::munmap(address as *mut c_void, bytes) };
}
