//! Stands in for PyTorch's `libc10_cuda.so`: a caching allocator over the CUDA driver that reports
//! each block to `libc10.so`, as the real one does. Programs call it through `sim_torch_…`.
//!
//! `SIM_TORCH_BACKEND=async` makes every tensor a stream-ordered allocation, which is not reported
//! to `libc10.so`. [`sim_torch_report`] writes the oracle to `torch-PID.json` in the directory
//! `SIM_ORACLE_DIR`.

mod cache;
mod driver;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use cache::{CachingAllocator, rounded, segment_for};
use driver::Driver;

/// `c10::Device`: two bytes, type and index.
#[repr(C)]
#[derive(Clone, Copy)]
struct Device {
    kind: i8,
    index: i8,
}

/// `c10::DeviceType::CUDA`.
const CUDA: i8 = 1;

unsafe extern "C" {
    #[link_name = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"]
    fn report_usage(at: *mut c_void, bytes: i64, allocated: usize, reserved: usize, device: Device);
    #[link_name = "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE"]
    fn report_oom(bytes: i64, allocated: usize, reserved: usize, device: Device);
}

struct Caches {
    driver: Driver,
    /// By device and pool; 0 is the common pool.
    pools: BTreeMap<(i8, u32), CachingAllocator>,
    /// Pool that tensors are allocated from, and number of private pools so far.
    pool: u32,
    private_pools: u32,
    /// The device and pool of each block.
    owners: BTreeMap<u64, (i8, u32)>,
    /// Blocks that wait for another stream when they are freed.
    waiting: BTreeSet<u64>,
    asynchronous: bool,
}

fn caches() -> Option<MutexGuard<'static, Caches>> {
    static CACHES: OnceLock<Option<Mutex<Caches>>> = OnceLock::new();
    let caches = CACHES.get_or_init(|| {
        Some(Mutex::new(Caches {
            driver: Driver::load()?,
            pools: BTreeMap::new(),
            pool: 0,
            private_pools: 0,
            owners: BTreeMap::new(),
            waiting: BTreeSet::new(),
            asynchronous: std::env::var("SIM_TORCH_BACKEND").is_ok_and(|word| word == "async"),
        }))
    });
    Some(caches.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Caches {
    fn malloc(&mut self, device: i8, bytes: u64) -> u64 {
        if self.asynchronous {
            let mut pointer = 0;
            // SAFETY: the pointer is valid for writing.
            let code = unsafe { (self.driver.alloc_async)(&raw mut pointer, bytes as usize, 0) };
            return if code == 0 { pointer } else { 0 };
        }
        let request = rounded(bytes);
        let key = (device, self.pool);
        let cache = self.pools.entry(key).or_default();
        let mut found = cache.allocate(request);
        if found.is_none() {
            let length = segment_for(request);
            let segment = self.driver.memory(length);
            if segment != 0 {
                cache.add(segment, length, request);
                found = cache.allocate(request);
            }
        }
        let c10_device = Device { kind: CUDA, index: device };
        let Some((address, length)) = found else {
            cache.ooms += 1;
            let (allocated, reserved) = self.totals(device);
            // SAFETY: the function only reads its arguments.
            unsafe { report_oom(request.cast_signed(), allocated, reserved, c10_device) };
            return 0;
        };
        self.owners.insert(address, key);
        alloc_found_block(self.totals(device), address, length, c10_device);
        address
    }

    /// Returns the allocated and reserved bytes of a device, in all pools.
    fn totals(&self, device: i8) -> (usize, usize) {
        let own = self.pools.iter().filter(|((other, _), _)| *other == device);
        own.fold((0, 0), |(allocated, reserved), (_, cache)| {
            (allocated + cache.allocated as usize, reserved + cache.reserved as usize)
        })
    }

    fn free(&mut self, address: u64) {
        if self.asynchronous {
            // SAFETY: the driver checks the pointer.
            unsafe { (self.driver.free_async)(address, 0) };
            return;
        }
        let Some(key) = self.owners.remove(&address) else { return };
        let waits = self.waiting.remove(&address);
        let cache = self.pools.entry(key).or_default();
        let freed = if waits { cache.retire_block(address) } else { cache.free_block(address) };
        let Some(length) = freed else { return };
        let c10_device = Device { kind: CUDA, index: key.0 };
        let (allocated, reserved) = self.totals(key.0);
        let freed = -length.cast_signed();
        // SAFETY: the function only reads its arguments.
        unsafe { report_usage(address as *mut c_void, freed, allocated, reserved, c10_device) };
    }
}

/// A separate frame, as in PyTorch.
#[inline(never)]
fn alloc_found_block(totals: (usize, usize), address: u64, length: u64, device: Device) {
    let (allocated, reserved) = totals;
    let length = length.cast_signed();
    // SAFETY: the function only reads its arguments.
    unsafe { report_usage(address as *mut c_void, length, allocated, reserved, device) };
    // Prevents a tail call, which would drop this frame.
    std::hint::black_box(totals);
}

/// Allocates a tensor; returns 0 if that fails.
#[unsafe(no_mangle)]
pub extern "C" fn sim_torch_malloc(device: i32, bytes: u64) -> u64 {
    let (Some(mut caches), Ok(device)) = (caches(), i8::try_from(device)) else { return 0 };
    std::hint::black_box(caches.malloc(device, bytes))
}

/// Frees a tensor; its memory returns to the cache.
#[unsafe(no_mangle)]
pub extern "C" fn sim_torch_free(address: u64) {
    if let Some(mut caches) = caches() {
        caches.free(address);
    }
}

/// Makes a device current on the calling thread; returns 0 if that fails.
#[unsafe(no_mangle)]
pub extern "C" fn sim_torch_select(device: i32) -> i32 {
    caches().is_some_and(|caches| caches.driver.select(device)).into()
}

/// Allocates tensors from a new private pool from now on, as the capture of a graph does.
#[unsafe(no_mangle)]
pub extern "C" fn sim_torch_begin_pool() {
    if let Some(mut caches) = caches() {
        caches.private_pools += 1;
        caches.pool = caches.private_pools;
    }
}

/// Allocates tensors from the common pool again.
#[unsafe(no_mangle)]
pub extern "C" fn sim_torch_end_pool() {
    if let Some(mut caches) = caches() {
        caches.pool = 0;
    }
}

/// Lets a block wait for another stream when it is freed: it is not used again until
/// [`sim_torch_streams_finished`].
#[unsafe(no_mangle)]
pub extern "C" fn sim_torch_wait_for_stream(address: u64) {
    if let Some(mut caches) = caches() {
        caches.waiting.insert(address);
    }
}

/// Makes freed blocks that waited for a stream available.
#[unsafe(no_mangle)]
pub extern "C" fn sim_torch_streams_finished() {
    if let Some(mut caches) = caches() {
        caches.pools.values_mut().for_each(CachingAllocator::finish);
    }
}

/// Returns unused segments to the driver.
#[unsafe(no_mangle)]
pub extern "C" fn sim_torch_empty_cache() {
    let Some(mut caches) = caches() else { return };
    let Caches { driver, pools, .. } = &mut *caches;
    let common = pools.iter_mut().filter(|((_, pool), _)| *pool == 0).map(|(_, cache)| cache);
    for segment in common.flat_map(CachingAllocator::empty) {
        // SAFETY: the segment belongs to the cache and has no allocated blocks.
        unsafe { (driver.free)(segment) };
    }
}

/// Reports a block of host memory like a profiler hook: it is not CUDA memory.
#[unsafe(no_mangle)]
pub extern "C" fn sim_torch_host_block(address: u64, bytes: i64) {
    let c10_device = Device { kind: 0, index: -1 };
    // SAFETY: the function only reads its arguments.
    unsafe { report_usage(address as *mut c_void, bytes, 0, 0, c10_device) };
    std::hint::black_box(address);
}

/// Writes the oracle; returns 0 if that fails.
#[unsafe(no_mangle)]
pub extern "C" fn sim_torch_report() -> i32 {
    let (Some(caches), Some(dir)) = (caches(), std::env::var_os("SIM_ORACLE_DIR")) else {
        return 0;
    };
    let mut text = String::from("{\"devices\":[");
    let common = caches.pools.iter().filter(|((_, pool), _)| *pool == 0);
    for (number, ((device, _), cache)) in common.enumerate() {
        let unused = cache.unused();
        let comma = if number == 0 { "" } else { "," };
        let written = write!(
            text,
            "{comma}{{\"device\":{device},\"allocated\":{},\"reserved\":{},\"peak\":{},\
             \"blocks\":{},\"allocations\":{},\"frees\":{},\"ooms\":{},\"whole\":{},\
             \"fragmented\":{},\"largest\":{}}}",
            cache.allocated,
            cache.reserved,
            cache.peak,
            cache.live(),
            cache.allocations,
            cache.frees,
            cache.ooms,
            unused.whole_segments,
            unused.fragmented,
            unused.largest,
        );
        if written.is_err() {
            return 0;
        }
    }
    text.push_str("]}\n");
    let path = std::path::Path::new(&dir).join(format!("torch-{}.json", std::process::id()));
    std::fs::write(path, text).is_ok().into()
}
