//! Objects that a random program allocates and frees.

use std::ffi::{c_int, c_void};

use super::Worker;
use crate::cli::ApiArea;
use crate::cuda::{Handle, Pointer, Result};
use crate::structs::{
    AccessDesc, AllocationProp, Array3dDescriptor, ArrayDescriptor, FLOAT, PoolProps,
};

const GRANULE: usize = 2 << 20;
const PAGE: usize = 4096;

/// An allocation, with the function that frees it.
pub(super) enum Object {
    /// `cuMemFree`.
    Device(Pointer),
    /// Stream-ordered memory: `cuMemFreeAsync` or `cuMemFree`.
    Async(Pointer),
    /// `cuMemFreeHost`.
    Host(usize),
    /// Registered memory of the program: address and size.
    Registered(usize, usize),
    /// `cuMemRelease`.
    Physical(Handle),
    /// Mapped physical memory whose handle was released.
    Mapped(Mapping),
    /// `cuArrayDestroy`.
    Array(Handle),
    /// `cuMipmappedArrayDestroy`.
    Mipmapped(Handle),
    /// Destroyed while memory allocated from it may be live.
    Pool(Handle),
    /// `cuDestroyExternalMemory`.
    External(Handle),
}

/// A reserved range with several mappings.
pub(super) struct Mapping {
    address: Pointer,
    pieces: usize,
    mapped: bool,
}

/// Makes a random allocation.
pub(super) fn allocate(worker: &mut Worker) -> Result<Object> {
    let bytes = worker.size();
    let area = match worker.random.u32(..100) {
        0..36 => None,
        36..41 => Some(ApiArea::Pitched),
        41..46 => Some(ApiArea::Managed),
        46..52 => Some(ApiArea::Pinned),
        52..55 => Some(ApiArea::Registered),
        55..71 => Some(ApiArea::Async),
        71..77 => Some(ApiArea::Pool),
        77..82 => Some(ApiArea::Physical),
        82..90 => Some(ApiArea::Mapped),
        90..95 => Some(ApiArea::Array),
        95..98 => Some(ApiArea::Mipmapped),
        _ => Some(ApiArea::External),
    };
    match area.filter(|area| worker.may_use(*area)) {
        Some(ApiArea::Pitched) => pitched(worker),
        Some(ApiArea::Managed) => managed(worker, bytes),
        Some(ApiArea::Pinned) => host(worker, bytes),
        Some(ApiArea::Registered) => register(worker, bytes),
        Some(ApiArea::Async) => stream_ordered(worker, bytes),
        Some(ApiArea::Pool) => from_pool(worker, bytes),
        Some(ApiArea::Physical) => physical(worker),
        Some(ApiArea::Mapped) => mapping(worker).map(Object::Mapped),
        Some(ApiArea::Array) => array(worker),
        Some(ApiArea::Mipmapped) => mipmapped(worker),
        Some(ApiArea::External) => super::episodes::external(worker, bytes),
        _ => worker.driver.alloc(bytes).map(Object::Device),
    }
}

fn pitched(worker: &mut Worker) -> Result<Object> {
    let (width, height) = (worker.random.usize(1..3000), worker.random.usize(1..300));
    let (mut pointer, mut pitch) = (0, 0);
    // SAFETY: the pointers are valid for writing.
    unsafe {
        worker.driver.cuMemAllocPitch_v2(&raw mut pointer, &raw mut pitch, width, height, 4)
    }?;
    Ok(Object::Device(pointer))
}

fn managed(worker: &mut Worker, bytes: usize) -> Result<Object> {
    let flags = worker.random.u32(1..=2);
    let mut pointer = 0;
    // SAFETY: the pointer is valid for writing.
    unsafe { worker.driver.cuMemAllocManaged(&raw mut pointer, bytes, flags) }?;
    Ok(Object::Device(pointer))
}

fn host(worker: &mut Worker, bytes: usize) -> Result<Object> {
    let flags = worker.random.u32(..4);
    let mut pointer: *mut c_void = std::ptr::null_mut();
    if flags == 0 {
        // SAFETY: the pointer is valid for writing.
        unsafe { worker.driver.cuMemAllocHost_v2(&raw mut pointer, bytes) }?;
    } else {
        // SAFETY: the pointer is valid for writing.
        unsafe { worker.driver.cuMemHostAlloc(&raw mut pointer, bytes, flags) }?;
    }
    Ok(Object::Host(pointer as usize))
}

fn register(worker: &Worker, bytes: usize) -> Result<Object> {
    // Whole pages of its own: other memory on the same page could also be registered.
    let bytes = bytes.next_multiple_of(PAGE);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        // The same error as from the driver.
        return worker.driver.alloc(usize::MAX / 2).map(Object::Device);
    }
    // SAFETY: the range was just mapped, and stays mapped while it is registered.
    unsafe { worker.driver.cuMemHostRegister_v2(start, bytes, 0) }?;
    Ok(Object::Registered(start as usize, bytes))
}

fn stream_ordered(worker: &mut Worker, bytes: usize) -> Result<Object> {
    let mut pointer = 0;
    if worker.random.bool() {
        // SAFETY: the pointer is valid for writing; 0 is the default stream.
        unsafe { worker.driver.cuMemAllocAsync(&raw mut pointer, bytes, 0) }?;
    } else {
        // SAFETY: as above.
        unsafe { worker.driver.cuMemAllocAsync_ptsz(&raw mut pointer, bytes, 0) }?;
    }
    Ok(Object::Async(pointer))
}

/// Allocates from the thread's own pool, which is created at its first use and sometimes replaced.
fn from_pool(worker: &mut Worker, bytes: usize) -> Result<Object> {
    let renew = worker.random.u32(..20) == 0;
    let pool = match worker.pool {
        Some((pool, device)) if device == worker.device && !renew => pool,
        old => {
            if let Some((pool, _)) = old {
                worker.objects.push(Object::Pool(pool));
                worker.pool = None;
            }
            let props = PoolProps::device(worker.ordinal());
            let mut pool = 0;
            // SAFETY: the pointers are valid for writing and for reading.
            unsafe { worker.driver.cuMemPoolCreate(&raw mut pool, &raw const props) }?;
            worker.pool = Some((pool, worker.device));
            pool
        }
    };
    let mut pointer = 0;
    // SAFETY: the pointer is valid for writing; 0 is the default stream.
    unsafe { worker.driver.cuMemAllocFromPoolAsync(&raw mut pointer, bytes, pool, 0) }?;
    Ok(Object::Async(pointer))
}

fn create(worker: &Worker, bytes: usize, prop: &AllocationProp) -> Result<Handle> {
    let mut handle = 0;
    // SAFETY: the pointers are valid for writing and for reading.
    unsafe { worker.driver.cuMemCreate(&raw mut handle, bytes, prop, 0) }?;
    Ok(handle)
}

fn physical(worker: &mut Worker) -> Result<Object> {
    let bytes = worker.random.usize(1..5) * GRANULE;
    let on_host = worker.random.u32(..4) == 0;
    let prop = if on_host {
        AllocationProp::host()
    } else {
        AllocationProp::device(worker.ordinal(), false)
    };
    create(worker, bytes, &prop).map(Object::Physical)
}

/// Maps pieces of physical memory next to each other in a reserved range; only the mappings keep
/// them alive.
fn mapping(worker: &mut Worker) -> Result<Mapping> {
    let pieces = worker.random.usize(1..5);
    let driver = worker.driver;
    let mut address = 0;
    // SAFETY: the pointer is valid for writing.
    unsafe { driver.cuMemAddressReserve(&raw mut address, pieces * GRANULE, 0, 0, 0) }?;
    let mut mapping = Mapping { address, pieces: 0, mapped: true };
    for piece in 0..pieces {
        let at = address + (piece * GRANULE) as u64;
        let result = create(worker, GRANULE, &AllocationProp::device(worker.ordinal(), false));
        let Ok(handle) = result else { break };
        // SAFETY: the range was reserved above and nothing is mapped there.
        let mapped = unsafe { driver.cuMemMap(at, GRANULE, 0, handle, 0) };
        // SAFETY: the handle was created above.
        unsafe { driver.cuMemRelease(handle) }?;
        mapped?;
        mapping.pieces += 1;
    }
    if mapping.pieces > 0 {
        let access = AccessDesc { location_type: 1, location_id: worker.ordinal(), flags: 3 };
        let bytes = mapping.pieces * GRANULE;
        // SAFETY: one description, of the range mapped above.
        unsafe { driver.cuMemSetAccess(address, bytes, &raw const access, 1) }?;
    }
    if worker.random.u32(..4) == 0 && mapping.pieces > 0 {
        let mut handle = 0;
        // SAFETY: the pointer is valid for writing, and the address is mapped.
        unsafe { driver.cuMemRetainAllocationHandle(&raw mut handle, address) }?;
        worker.objects.push(Object::Physical(handle));
    }
    // The unmapped rest is not used: a range is freed as a whole.
    mapping.pieces = pieces;
    Ok(mapping)
}

fn array(worker: &mut Worker) -> Result<Object> {
    let (width, height) = (worker.random.usize(1..512), worker.random.usize(0..512));
    let depth = if worker.random.bool() && height > 0 { worker.random.usize(0..8) } else { 0 };
    let mut array = 0;
    if depth == 0 {
        let descriptor = ArrayDescriptor { width, height, format: FLOAT, channels: 2 };
        // SAFETY: the pointers are valid for writing and for reading.
        unsafe { worker.driver.cuArrayCreate_v2(&raw mut array, &raw const descriptor) }?;
    } else {
        let descriptor = volume(width, height, depth);
        // SAFETY: as above.
        unsafe { worker.driver.cuArray3DCreate_v2(&raw mut array, &raw const descriptor) }?;
    }
    Ok(Object::Array(array))
}

const fn volume(width: usize, height: usize, depth: usize) -> Array3dDescriptor {
    Array3dDescriptor { width, height, depth, format: FLOAT, channels: 1, flags: 0, padding: 0 }
}

fn mipmapped(worker: &mut Worker) -> Result<Object> {
    let (width, height) = (worker.random.usize(8..512), worker.random.usize(8..512));
    let levels = worker.random.u32(1..4);
    let descriptor = volume(width, height, 0);
    let mut array = 0;
    let driver = worker.driver;
    // SAFETY: the pointers are valid for writing and for reading.
    unsafe { driver.cuMipmappedArrayCreate(&raw mut array, &raw const descriptor, levels) }?;
    let mut level = 0;
    // SAFETY: the pointer is valid for writing.
    unsafe { driver.cuMipmappedArrayGetLevel(&raw mut level, array, levels - 1) }?;
    Ok(Object::Mipmapped(array))
}

impl Object {
    /// Frees it. After an error it still exists.
    pub(super) fn free(&mut self, worker: &mut Worker) -> Result<()> {
        let driver = worker.driver;
        match self {
            Self::Device(pointer) => driver.free(*pointer),
            Self::Async(pointer) => free_async(worker, *pointer),
            // SAFETY: the driver allocated this memory and nothing uses it.
            Self::Host(pointer) => unsafe { driver.cuMemFreeHost(*pointer as *mut c_void) },
            Self::Registered(start, bytes) => {
                let start = *start as *mut c_void;
                // SAFETY: the range was registered and nothing uses it.
                unsafe { driver.cuMemHostUnregister(start) }?;
                // SAFETY: the range was mapped by `register`, and is no longer registered.
                unsafe { libc::munmap(start, *bytes) };
                Ok(())
            }
            // SAFETY: the handle is this object's, as are those below.
            Self::Physical(handle) => unsafe { driver.cuMemRelease(*handle) },
            Self::Mapped(mapping) => mapping.free(worker),
            // SAFETY: as above.
            Self::Array(array) => unsafe { driver.cuArrayDestroy(*array) },
            // SAFETY: as above.
            Self::Mipmapped(array) => unsafe { driver.cuMipmappedArrayDestroy(*array) },
            // SAFETY: as above.
            Self::Pool(pool) => unsafe { driver.cuMemPoolDestroy(*pool) },
            // SAFETY: as above.
            Self::External(memory) => unsafe { driver.cuDestroyExternalMemory(*memory) },
        }
    }

    /// Returns the device pointer of linear memory.
    pub(super) const fn pointer(&self) -> Option<Pointer> {
        match self {
            Self::Device(pointer) | Self::Async(pointer) => Some(*pointer),
            _ => None,
        }
    }
}

/// Frees with one of several functions. The choice depends on the address, not on the seed: another
/// thread may free it.
fn free_async(worker: &Worker, pointer: Pointer) -> Result<()> {
    let driver = worker.driver;
    match (pointer >> 9) % 4 {
        0 => driver.free(pointer),
        // SAFETY: device memory is not memory of this program; 0 is the default stream.
        1 => unsafe { driver.cuMemFreeAsync_ptsz(pointer, 0) },
        // SAFETY: as above.
        _ => unsafe { driver.cuMemFreeAsync(pointer, 0) },
    }
}

impl Mapping {
    fn free(&mut self, worker: &Worker) -> Result<()> {
        let driver = worker.driver;
        let bytes = self.pieces * GRANULE;
        if self.mapped {
            // SAFETY: the range contains whole mappings, and nothing uses them.
            unsafe { driver.cuMemUnmap(self.address, bytes) }?;
            self.mapped = false;
        }
        // SAFETY: the range was reserved as a whole, and nothing is mapped there anymore.
        unsafe { driver.cuMemAddressFree(self.address, bytes) }
    }
}

/// Creates physical device memory that can be exported.
pub(super) fn shareable(worker: &Worker, device: c_int) -> Result<Handle> {
    create(worker, GRANULE, &AllocationProp::device(device, true))
}
