//! Copies and fills. Device memory has no contents here, so that they only check their pointers.

use std::ffi::c_void;

use crate::abi::{Code, DevicePointer, Handle, Outcome};
use crate::entry::exports;
use crate::state::{self, State};

exports! {
    call cuMemcpy(to: u64, from: u64, bytes: usize) = copy;
    call cuMemcpy_ptds(to: u64, from: u64, bytes: usize) = copy;
    call cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Handle) = copy_async;
    call cuMemcpyAsync_ptsz(to: u64, from: u64, bytes: usize, stream: Handle) = copy_async;
    call cuMemcpyHtoD_v2(to: DevicePointer, from: *const c_void, bytes: usize) = to_device;
    call cuMemcpyHtoD_v2_ptds(to: DevicePointer, from: *const c_void, bytes: usize) = to_device;
    call cuMemcpyHtoDAsync_v2(to: DevicePointer, from: *const c_void, bytes: usize,
        stream: Handle) = to_device_async;
    call cuMemcpyHtoDAsync_v2_ptsz(to: DevicePointer, from: *const c_void, bytes: usize,
        stream: Handle) = to_device_async;
    call cuMemcpyDtoH_v2(to: *mut c_void, from: DevicePointer, bytes: usize) = to_host;
    call cuMemcpyDtoH_v2_ptds(to: *mut c_void, from: DevicePointer, bytes: usize) = to_host;
    call cuMemcpyDtoHAsync_v2(to: *mut c_void, from: DevicePointer, bytes: usize,
        stream: Handle) = to_host_async;
    call cuMemcpyDtoHAsync_v2_ptsz(to: *mut c_void, from: DevicePointer, bytes: usize,
        stream: Handle) = to_host_async;
    call cuMemcpyDtoD_v2(to: DevicePointer, from: DevicePointer, bytes: usize) = on_device;
    call cuMemcpyDtoD_v2_ptds(to: DevicePointer, from: DevicePointer, bytes: usize) = on_device;
    call cuMemcpyDtoDAsync_v2(to: DevicePointer, from: DevicePointer, bytes: usize,
        stream: Handle) = on_device_async;
    call cuMemcpyDtoDAsync_v2_ptsz(to: DevicePointer, from: DevicePointer, bytes: usize,
        stream: Handle) = on_device_async;
    call cuMemsetD8_v2(to: DevicePointer, value: u8, bytes: usize) = fill;
    call cuMemsetD8Async(to: DevicePointer, value: u8, bytes: usize, stream: Handle) =
        fill_async;
    call cuMemsetD32_v2(to: DevicePointer, value: u32, words: usize) = fill_words;
}

impl State {
    /// Fails unless a whole range lies in one allocation that devices can reach.
    fn check_range(&self, address: u64, bytes: usize) -> Outcome {
        let bytes = bytes as u64;
        let holds = |base: u64, size: u64| {
            address.checked_add(bytes).is_some_and(|end| end <= base.saturating_add(size))
        };
        let in_arena = self.arena.containing(address).map(|(base, record)| (base, record.bytes));
        let in_graph = || {
            let (base, memory) = self.graphs.memory.range(..=address).next_back()?;
            memory.in_use.then_some((*base, memory.bytes))
        };
        let on_host = || self.host_range(address).map(|(base, range)| (base, range.bytes));
        let found = in_arena.or_else(on_host).or_else(in_graph);
        let good = match found {
            Some((base, size)) => holds(base, size),
            None => self.vmm.is_mapped(address, bytes),
        };
        if good { Ok(()) } else { Err(Code::InvalidValue) }
    }
}

/// Checks a copy: a stream where there is one, and the ranges on devices.
fn check(stream: Option<Handle>, ranges: &[u64], bytes: usize) -> Outcome {
    let mut state = state::running()?;
    match stream {
        Some(stream) => drop(state.stream(stream)?),
        None => drop(state.current()?),
    }
    if bytes == 0 {
        return Ok(());
    }
    ranges.iter().try_for_each(|address| state.check_range(*address, bytes))
}

/// Host memory may be on either side of a copy that does not say which side is which.
fn copy(_to: u64, _from: u64, bytes: usize) -> Outcome {
    check(None, &[], bytes)
}

fn copy_async(_to: u64, _from: u64, bytes: usize, stream: Handle) -> Outcome {
    check(Some(stream), &[], bytes)
}

fn to_device(to: DevicePointer, _from: *const c_void, bytes: usize) -> Outcome {
    check(None, &[to], bytes)
}

fn to_device_async(
    to: DevicePointer,
    _from: *const c_void,
    bytes: usize,
    stream: Handle,
) -> Outcome {
    check(Some(stream), &[to], bytes)
}

fn to_host(_to: *mut c_void, from: DevicePointer, bytes: usize) -> Outcome {
    check(None, &[from], bytes)
}

fn to_host_async(_to: *mut c_void, from: DevicePointer, bytes: usize, stream: Handle) -> Outcome {
    check(Some(stream), &[from], bytes)
}

fn on_device(to: DevicePointer, from: DevicePointer, bytes: usize) -> Outcome {
    check(None, &[to, from], bytes)
}

fn on_device_async(
    to: DevicePointer,
    from: DevicePointer,
    bytes: usize,
    stream: Handle,
) -> Outcome {
    check(Some(stream), &[to, from], bytes)
}

fn fill(to: DevicePointer, _value: u8, bytes: usize) -> Outcome {
    check(None, &[to], bytes)
}

fn fill_async(to: DevicePointer, _value: u8, bytes: usize, stream: Handle) -> Outcome {
    check(Some(stream), &[to], bytes)
}

fn fill_words(to: DevicePointer, _value: u32, words: usize) -> Outcome {
    check(None, &[to], words.checked_mul(4).ok_or(Code::InvalidValue)?)
}
