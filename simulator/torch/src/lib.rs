//! Stands for PyTorch's `libc10_cuda.so`: a caching allocator over the CUDA driver that tells each
//! block to `libc10.so`, as the real one does. Programs call it through `sim_torch_…`.
//!
//! `SIM_TORCH_BACKEND=async` makes every tensor a stream-ordered allocation, of which `libc10.so` is
//! not told. [`sim_torch_report`] writes the truth to `torch-PID.json` in the folder `SIM_ORACLE_DIR`.

mod cache;
mod driver;

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use cache::{Cache, rounded, segment_for};
use driver::Driver;

/// `c10::Device`: two bytes, the type and the number.
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
    fn report_usage(at: *mut c_void, bytes: i64, allocated: usize, reserved: usize, on: Device);
    #[link_name = "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE"]
    fn report_refusal(bytes: i64, allocated: usize, reserved: usize, on: Device);
}

struct Caches {
    driver: Driver,
    by_device: BTreeMap<i8, Cache>,
    /// The device of each block.
    owners: BTreeMap<u64, i8>,
    asynchronous: bool,
}

fn caches() -> Option<MutexGuard<'static, Caches>> {
    static CACHES: OnceLock<Option<Mutex<Caches>>> = OnceLock::new();
    let made = CACHES.get_or_init(|| {
        Some(Mutex::new(Caches {
            driver: Driver::load()?,
            by_device: BTreeMap::new(),
            owners: BTreeMap::new(),
            asynchronous: std::env::var("SIM_TORCH_BACKEND").is_ok_and(|word| word == "async"),
        }))
    });
    Some(made.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
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
        let mut found = cache.take(request);
        if found.is_none() {
            let length = segment_for(request);
            let segment = self.driver.memory(length);
            if segment != 0 {
                cache.add(segment, length, request);
                found = cache.take(request);
            }
        }
        let on = Device { kind: CUDA, index: device };
        let Some((address, length)) = found else {
            cache.refused += 1;
            // SAFETY: the function only looks at its arguments.
            unsafe {
                report_refusal(
                    request.cast_signed(),
                    cache.allocated as usize,
                    cache.reserved as usize,
                    on,
                );
            }
            return 0;
        };
        self.owners.insert(address, device);
        alloc_found_block(cache, address, length, on);
        address
    }

    fn free(&mut self, address: u64) {
        if self.asynchronous {
            // SAFETY: the driver judges the pointer.
            unsafe { (self.driver.free_async)(address, 0) };
            return;
        }
        let Some(device) = self.owners.remove(&address) else { return };
        let cache = self.by_device.entry(device).or_default();
        let Some(length) = cache.put(address) else { return };
        let on = Device { kind: CUDA, index: device };
        let back = -length.cast_signed();
        // SAFETY: the function only looks at its arguments.
        unsafe {
            report_usage(
                address as *mut c_void,
                back,
                cache.allocated as usize,
                cache.reserved as usize,
                on,
            );
        }
    }
}

/// A frame of its own, as in PyTorch.
#[inline(never)]
fn alloc_found_block(cache: &Cache, address: u64, length: u64, on: Device) {
    // SAFETY: the function only looks at its arguments.
    unsafe {
        report_usage(
            address as *mut c_void,
            length.cast_signed(),
            cache.allocated as usize,
            cache.reserved as usize,
            on,
        );
    }
    // So that it is called, and not jumped to.
    std::hint::black_box(cache);
}

/// Memory for a tensor; 0 where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn sim_torch_malloc(device: i32, bytes: u64) -> u64 {
    let (Some(mut caches), Ok(device)) = (caches(), i8::try_from(device)) else { return 0 };
    std::hint::black_box(caches.malloc(device, bytes))
}

/// Gives the memory of a tensor back to the cache.
#[unsafe(no_mangle)]
pub extern "C" fn sim_torch_free(address: u64) {
    if let Some(mut caches) = caches() {
        caches.free(address);
    }
}

/// Makes a device the calling thread's; 0 where that does not work.
#[unsafe(no_mangle)]
pub extern "C" fn sim_torch_select(device: i32) -> i32 {
    caches().is_some_and(|caches| caches.driver.select(device)).into()
}

/// Gives unused segments back to the driver.
#[unsafe(no_mangle)]
pub extern "C" fn sim_torch_empty_cache() {
    let Some(mut caches) = caches() else { return };
    let Caches { driver, by_device, .. } = &mut *caches;
    for segment in by_device.values_mut().flat_map(Cache::empty) {
        // SAFETY: the segment is the cache's, and nothing of it is given out.
        unsafe { (driver.free)(segment) };
    }
}

/// A block of host memory, told as a profiler would have it: it is no memory of CUDA.
#[unsafe(no_mangle)]
pub extern "C" fn sim_torch_host_block(address: u64, bytes: i64) {
    let on = Device { kind: 0, index: -1 };
    // SAFETY: the function only looks at its arguments.
    unsafe { report_usage(address as *mut c_void, bytes, 0, 0, on) };
    std::hint::black_box(address);
}

/// Writes the truth down; 0 where that does not work.
#[unsafe(no_mangle)]
pub extern "C" fn sim_torch_report() -> i32 {
    let (Some(caches), Some(folder)) = (caches(), std::env::var_os("SIM_ORACLE_DIR")) else {
        return 0;
    };
    let mut text = String::from("{\"devices\":[");
    for (number, (device, cache)) in caches.by_device.iter().enumerate() {
        let unused = cache.unused();
        let comma = if number == 0 { "" } else { "," };
        let written = write!(
            text,
            "{comma}{{\"device\":{device},\"allocated\":{},\"reserved\":{},\"peak\":{},\
             \"blocks\":{},\"given\":{},\"taken\":{},\"refused\":{},\"whole\":{},\
             \"fragmented\":{},\"largest\":{}}}",
            cache.allocated,
            cache.reserved,
            cache.peak,
            cache.live(),
            cache.given,
            cache.taken,
            cache.refused,
            unused.whole,
            unused.fragmented,
            unused.largest,
        );
        if written.is_err() {
            return 0;
        }
    }
    text.push_str("]}\n");
    let path = std::path::Path::new(&folder).join(format!("torch-{}.json", std::process::id()));
    std::fs::write(path, text).is_ok().into()
}
