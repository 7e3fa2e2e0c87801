//! Stands in for PyTorch's `libc10_cuda.so`: a caching allocator over the CUDA driver that reports
//! each block to `libc10.so`, as the real one does. Programs call it through `sim_torch_…`.
//!
//! `SIM_TORCH_BACKEND=async` makes every tensor a stream-ordered allocation, which is not reported
//! to `libc10.so`. [`sim_torch_report`] writes the oracle to `torch-PID.json` in the directory
//! `SIM_ORACLE_DIR`.

mod cache;
mod driver;

use std::collections::BTreeMap;
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
    by_device: BTreeMap<i8, CachingAllocator>,
    /// The device of each block.
    owners: BTreeMap<u64, i8>,
    asynchronous: bool,
}

fn caches() -> Option<MutexGuard<'static, Caches>> {
    static CACHES: OnceLock<Option<Mutex<Caches>>> = OnceLock::new();
    let caches = CACHES.get_or_init(|| {
        Some(Mutex::new(Caches {
            driver: Driver::load()?,
            by_device: BTreeMap::new(),
            owners: BTreeMap::new(),
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
        let cache = self.by_device.entry(device).or_default();
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
            // SAFETY: the function only reads its arguments.
            unsafe {
                report_oom(
                    request.cast_signed(),
                    cache.allocated as usize,
                    cache.reserved as usize,
                    c10_device,
                );
            }
            return 0;
        };
        self.owners.insert(address, device);
        alloc_found_block(cache, address, length, c10_device);
        address
    }

    fn free(&mut self, address: u64) {
        if self.asynchronous {
            // SAFETY: the driver checks the pointer.
            unsafe { (self.driver.free_async)(address, 0) };
            return;
        }
        let Some(device) = self.owners.remove(&address) else { return };
        let cache = self.by_device.entry(device).or_default();
        let Some(length) = cache.free_block(address) else { return };
        let c10_device = Device { kind: CUDA, index: device };
        let freed = -length.cast_signed();
        // SAFETY: the function only reads its arguments.
        unsafe {
            report_usage(
                address as *mut c_void,
                freed,
                cache.allocated as usize,
                cache.reserved as usize,
                c10_device,
            );
        }
    }
}

/// A separate frame, as in PyTorch.
#[inline(never)]
fn alloc_found_block(cache: &CachingAllocator, address: u64, length: u64, device: Device) {
    // SAFETY: the function only reads its arguments.
    unsafe {
        report_usage(
            address as *mut c_void,
            length.cast_signed(),
            cache.allocated as usize,
            cache.reserved as usize,
            device,
        );
    }
    // Prevents a tail call, which would drop this frame.
    std::hint::black_box(cache);
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

/// Returns unused segments to the driver.
#[unsafe(no_mangle)]
pub extern "C" fn sim_torch_empty_cache() {
    let Some(mut caches) = caches() else { return };
    let Caches { driver, by_device, .. } = &mut *caches;
    for segment in by_device.values_mut().flat_map(CachingAllocator::empty) {
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
    for (number, (device, cache)) in caches.by_device.iter().enumerate() {
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
