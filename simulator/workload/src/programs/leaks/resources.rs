//! Resources that scenarios create and destroy: memory of every kind, and CUDA objects. A resource
//! is identified by its address or handle.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

use super::scenario_thread::ScenarioThread;
use crate::cuda::Result;
use crate::structs::{AllocationProp, ArrayDescriptor, FLOAT, PoolProps};

/// Granularity of physical memory.
const GRANULE: usize = 2 << 20;

/// Size of every registration, whatever size is requested.
pub(super) const REGISTERED: usize = 256 << 10;

/// Calls a driver function that creates something and returns its handle.
macro_rules! create {
    ($run:ident, $function:ident($($argument:expr),*)) => {{
        let mut handle = 0;
        // SAFETY: the handle is written here; other arguments live until the call returns.
        unsafe { $run.device.driver.$function(&raw mut handle, $($argument),*) }?;
        Ok(handle)
    }};
}

/// Defines functions that destroy something by its handle.
macro_rules! ends {
    ($($name:ident = $function:ident($handle:ident $(, $argument:expr)*);)*) => {
        $(
            pub(super) fn $name(run: &ScenarioThread, $handle: u64) -> Result<()> {
                // SAFETY: the scenario created this resource, and nothing uses it anymore.
                unsafe { run.device.driver.$function($handle $(, $argument)*) }
            }
        )*
    };
}

ends! {
    end_plain = cuMemFree_v2(handle);
    end_async = cuMemFreeAsync(handle, 0);
    end_physical = cuMemRelease(handle);
    end_array = cuArrayDestroy(handle);
    end_stream = cuStreamDestroy_v2(handle);
    end_event = cuEventDestroy_v2(handle);
    end_graph = cuGraphDestroy(handle);
    end_exec = cuGraphExecDestroy(handle);
    end_module = cuModuleUnload(handle);
    end_library = cuLibraryUnload(handle);
    end_pool = cuMemPoolDestroy(handle);
    end_context = cuCtxDestroy_v2(handle);
}

pub(super) fn plain(run: &ScenarioThread, bytes: usize) -> Result<u64> {
    run.device.alloc(bytes)
}

pub(super) fn stream_ordered(run: &ScenarioThread, bytes: usize) -> Result<u64> {
    create!(run, cuMemAllocAsync(bytes, 0))
}

/// Allocates from a pool of the program.
pub(super) fn pooled(run: &ScenarioThread, pool: u64, bytes: usize) -> Result<u64> {
    create!(run, cuMemAllocFromPoolAsync(bytes, pool, 0))
}

pub(super) fn managed(run: &ScenarioThread, bytes: usize) -> Result<u64> {
    create!(run, cuMemAllocManaged(bytes, 1))
}

pub(super) fn pinned(run: &ScenarioThread, bytes: usize) -> Result<u64> {
    let mut pointer: *mut c_void = null_mut();
    // SAFETY: the pointer is valid for writing.
    unsafe { run.device.driver.cuMemAllocHost_v2(&raw mut pointer, bytes) }?;
    Ok(pointer as u64)
}

pub(super) fn end_pinned(run: &ScenarioThread, pointer: u64) -> Result<()> {
    // SAFETY: the driver allocated this memory and nothing uses it.
    unsafe { run.device.driver.cuMemFreeHost(pointer as *mut c_void) }
}

/// Registers memory of the program: whole pages, because other memory on a page could also be
/// registered.
pub(super) fn registered(run: &ScenarioThread, _bytes: usize) -> Result<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice.
    let start = unsafe { libc::mmap(null_mut(), REGISTERED, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        // The same error as from the driver.
        return run.device.alloc(usize::MAX / 2);
    }
    // SAFETY: the range was just mapped, and stays mapped while it is registered.
    unsafe { run.device.driver.cuMemHostRegister_v2(start, REGISTERED, 0) }?;
    Ok(start as u64)
}

pub(super) fn end_registered(run: &ScenarioThread, start: u64) -> Result<()> {
    let start = start as *mut c_void;
    // SAFETY: the range was registered and nothing uses it.
    unsafe { run.device.driver.cuMemHostUnregister(start) }?;
    // SAFETY: the range was mapped by `registered`, and is no longer registered.
    unsafe { libc::munmap(start, REGISTERED) };
    Ok(())
}

pub(super) fn physical(run: &ScenarioThread, bytes: usize) -> Result<u64> {
    let prop = AllocationProp::device(run.ordinal, false);
    create!(run, cuMemCreate(bytes.next_multiple_of(GRANULE), &raw const prop, 0))
}

/// Creates physical memory and exports it, as a file descriptor that another process received.
pub(super) fn exported(run: &ScenarioThread, bytes: usize) -> Result<u64> {
    let prop = AllocationProp::device(run.ordinal, true);
    let created: Result<u64> =
        create!(run, cuMemCreate(bytes.next_multiple_of(GRANULE), &raw const prop, 0));
    let handle = created?;
    let mut descriptor: c_int = -1;
    let out = (&raw mut descriptor).cast::<c_void>();
    // SAFETY: for handle type 1 the driver writes a file descriptor, for which there is room.
    unsafe { run.device.driver.cuMemExportToShareableHandle(out, handle, 1, 0) }?;
    // SAFETY: the descriptor was created above and belongs to this program.
    unsafe { libc::close(descriptor) };
    Ok(handle)
}

/// Creates an array of this many bytes, in rows of 4 KiB.
pub(super) fn array(run: &ScenarioThread, bytes: usize) -> Result<u64> {
    let height = bytes / 4096;
    let descriptor = ArrayDescriptor { width: 1024, height, format: FLOAT, channels: 1 };
    create!(run, cuArrayCreate_v2(&raw const descriptor))
}

pub(super) fn stream(run: &ScenarioThread, _: usize) -> Result<u64> {
    // A non-blocking stream.
    create!(run, cuStreamCreate(1))
}

pub(super) fn event(run: &ScenarioThread, _: usize) -> Result<u64> {
    // Without timing, like most events.
    create!(run, cuEventCreate(2))
}

pub(super) fn graph(run: &ScenarioThread, _: usize) -> Result<u64> {
    create!(run, cuGraphCreate(0))
}

/// Instantiates a new graph, which is then destroyed.
pub(super) fn exec(run: &ScenarioThread, _: usize) -> Result<u64> {
    let graph = graph(run, 0)?;
    let created: Result<u64> = create!(run, cuGraphInstantiateWithFlags(graph, 0));
    end_graph(run, graph)?;
    created
}

pub(super) fn module(run: &ScenarioThread, _: usize) -> Result<u64> {
    create!(run, cuModuleLoadData(SOURCE.as_ptr().cast()))
}

pub(super) fn library(run: &ScenarioThread, _: usize) -> Result<u64> {
    let code = SOURCE.as_ptr().cast();
    create!(run, cuLibraryLoadData(code, null(), null(), 0, null(), null(), 0))
}

pub(super) fn pool(run: &ScenarioThread, _: usize) -> Result<u64> {
    let props = PoolProps::device(run.ordinal);
    create!(run, cuMemPoolCreate(&raw const props))
}

/// Creates a context that is not current.
pub(super) fn context(run: &ScenarioThread, _: usize) -> Result<u64> {
    let created: Result<u64> = create!(run, cuCtxCreate_v2(0, run.ordinal));
    let mut popped = 0;
    // SAFETY: the pointer is valid for writing.
    unsafe { run.device.driver.cuCtxPopCurrent_v2(&raw mut popped) }?;
    created
}

/// PTX of one empty kernel, which every driver can compile.
const SOURCE: &std::ffi::CStr =
    c".version 3.0\n.target sm_30\n.address_size 64\n.visible .entry step() { ret; }\n";
