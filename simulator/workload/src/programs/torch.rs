//! Programs that use the simulated PyTorch allocator like training does. The functions that
//! allocate tensors are never inlined, so that each is a separate allocation site.

use std::ffi::{CStr, c_void};
use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context, bail};

use crate::cli::{AllocatorArgs, CommonArgs, TorchSpam};
use crate::{print_line, signals};

macro_rules! functions {
    ($($field:ident $name:literal ($($ty:ty),*) -> $result:ty;)*) => {
        /// The functions of the allocator.
        pub(crate) struct Cache {
            $($field: unsafe extern "C" fn($($ty),*) -> $result,)*
        }

        impl Cache {
            fn find(library: *mut c_void) -> anyhow::Result<Self> {
                Ok(Self {
                    $($field: {
                        // SAFETY: the library is never unloaded, and the name is zero-terminated.
                        let symbol = unsafe { libc::dlsym(library, $name.as_ptr()) };
                        // SAFETY: null becomes `None`; any other is the function with that name,
                        // with the prototype that is declared here.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                Option<unsafe extern "C" fn($($ty),*) -> $result>,
                            >(symbol)
                        }
                        .context("libc10_cuda.so is not the simulated one")?
                    },)*
                })
            }
        }
    };
}

functions! {
    select c"sim_torch_select" (i32) -> i32;
    malloc c"sim_torch_malloc" (i32, u64) -> u64;
    free c"sim_torch_free" (u64) -> ();
    empty c"sim_torch_empty_cache" () -> ();
    begin_pool c"sim_torch_begin_pool" () -> ();
    end_pool c"sim_torch_end_pool" () -> ();
    wait c"sim_torch_wait_for_stream" (u64) -> ();
    finished c"sim_torch_streams_finished" () -> ();
    host_block c"sim_torch_host_block" (u64, i64) -> ();
    report c"sim_torch_report" () -> i32;
}

fn open(name: &CStr, flags: i32) -> anyhow::Result<*mut c_void> {
    // SAFETY: loads a library by name; its constructors do nothing.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | flags) };
    if library.is_null() {
        bail!("cannot load {}; set LD_LIBRARY_PATH to its directory", name.to_string_lossy());
    }
    Ok(library)
}

/// Returns whether the allocator's libraries can be loaded.
pub(crate) fn is_available() -> bool {
    open(c"libc10.so", libc::RTLD_GLOBAL).and_then(|_| open(c"libc10_cuda.so", 0)).is_ok()
}

/// Functions of the allocator that tracers probe.
const PROBED: [&CStr; 2] = [
    c"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE",
    c"_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE",
];

/// Returns whether the first instructions of a function have a breakpoint or a jump.
fn has_probe(code: [u32; 4]) -> bool {
    if cfg!(target_arch = "aarch64") {
        /// `brk`, as the kernel writes it for uprobes.
        const BREAK: u32 = 0xd420_00a0;
        return code.into_iter().any(|word| word == BREAK || word >> 26 == 0b101);
    }
    let bytes = code[..2].iter().flat_map(|word| word.to_le_bytes());
    bytes.into_iter().any(|byte| matches!(byte, 0xcc | 0xe9))
}

/// Time in which a tracer attaches a program to a probe that is in the code already, as it does with
/// single probes. Nothing in this process shows when that is done.
const ATTACH_MS: u64 = 500;

/// Waits until the code of the probed functions has been changed by a tracer.
fn wait_probed() -> anyhow::Result<()> {
    for name in PROBED {
        // SAFETY: the name is zero-terminated.
        let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.cast::<u8>();
        anyhow::ensure!(!function.is_null(), "{name:?} not found");
        let is_probed = || {
            // SAFETY: the code of a function is readable, and longer than this.
            let code = [0, 1, 2, 3]
                .map(|word| unsafe { function.cast::<u32>().add(word).read_unaligned() });
            has_probe(code)
        };
        while !is_probed() {
            if !signals::sleep_ms(5) {
                bail!("stopped before {name:?} was probed");
            }
        }
    }
    signals::sleep_ms(ATTACH_MS);
    Ok(())
}

impl Cache {
    pub(crate) fn load(device: i32) -> anyhow::Result<Self> {
        open(c"libc10.so", libc::RTLD_GLOBAL)?;
        let cache = Self::find(open(c"libc10_cuda.so", 0)?)?;
        // SAFETY: a plain call.
        if unsafe { (cache.select)(device) } == 0 {
            bail!("the driver cannot be initialized");
        }
        if std::env::var_os("SIM_WAIT_PROBED").is_some() {
            wait_probed()?;
        }
        Ok(cache)
    }

    #[inline(never)]
    pub(crate) fn tensor(&self, device: i32, bytes: u64) -> anyhow::Result<u64> {
        // SAFETY: a plain call.
        let address = unsafe { (self.malloc)(device, bytes) };
        if address == 0 {
            bail!("out of memory for a tensor of {bytes} bytes");
        }
        Ok(black_box(address))
    }

    /// Allocates tensors from a new private pool from now on, as the capture of a graph does.
    pub(crate) fn begin_pool(&self) {
        // SAFETY: a plain call.
        unsafe { (self.begin_pool)() };
    }

    /// Allocates tensors from the common pool again. The private pool keeps its memory.
    pub(crate) fn end_pool(&self) {
        // SAFETY: a plain call.
        unsafe { (self.end_pool)() };
    }

    /// Lets a block wait for another stream when it is freed: it is not used again until
    /// [`Self::streams_finished`].
    pub(crate) fn wait_for_stream(&self, address: u64) {
        // SAFETY: the allocator checks the address.
        unsafe { (self.wait)(address) };
    }

    /// Makes freed blocks that waited for a stream available.
    pub(crate) fn streams_finished(&self) {
        // SAFETY: a plain call.
        unsafe { (self.finished)() };
    }

    pub(crate) fn free_tensor(&self, address: u64) {
        // SAFETY: the allocator checks the address.
        unsafe { (self.free)(address) };
    }

    /// Returns unused segments to the driver.
    pub(crate) fn empty_cache(&self) {
        // SAFETY: a plain call.
        unsafe { (self.empty)() };
    }

    /// Writes the oracle, if it is requested.
    pub(crate) fn report(&self) {
        // SAFETY: a plain call.
        unsafe { (self.report)() };
    }
}

#[inline(never)]
fn weights(cache: &Cache, device: i32) -> anyhow::Result<Vec<u64>> {
    let mut tensors = Vec::new();
    for bytes in black_box([4_000_000, 12_000_000, 300_000, 4096, 100]) {
        tensors.push(cache.tensor(device, bytes)?);
    }
    Ok(tensors)
}

#[inline(never)]
fn activations(cache: &Cache, device: i32, step: u64) -> anyhow::Result<Vec<u64>> {
    let mut tensors = Vec::new();
    for bytes in black_box([50_000 + step % 7 * 9000, 700_000, 2_500_000 + step % 3 * 400_000]) {
        tensors.push(cache.tensor(device, bytes)?);
    }
    Ok(tensors)
}

#[inline(never)]
fn keep_history(cache: &Cache, device: i32, bytes: u64) -> anyhow::Result<u64> {
    black_box(cache.tensor(device, bytes))
}

/// Allocates weights that stay until the end, temporary tensors in each step, and optionally one
/// that is kept.
pub(crate) fn train(
    common: &CommonArgs,
    options: &AllocatorArgs,
    leaks: bool,
) -> anyhow::Result<()> {
    let (cache, device) = (Cache::load(common.device)?, common.device);
    let held = weights(&cache, device)?;
    if options.wait_loaded {
        print_line("ready");
        if !signals::wait_for_start() {
            return Ok(());
        }
    }
    for step in 0..options.steps {
        let used = activations(&cache, device, step)?;
        if leaks {
            keep_history(&cache, device, options.keep_bytes)?;
        }
        // SAFETY: the function only reads its arguments.
        unsafe { (cache.host_block)(0x1000 + step, 64) };
        used.into_iter().for_each(|address| cache.free_tensor(address));
        if !signals::sleep_ms(options.step_ms) {
            break;
        }
    }
    if options.refuse {
        // SAFETY: a plain call, with more bytes than any device has.
        let refused = unsafe { (cache.malloc)(device, 1 << 50) };
        anyhow::ensure!(refused == 0, "the device has no end");
    }
    if !leaks {
        held.into_iter().for_each(|address| cache.free_tensor(address));
    }
    if options.empty_cache {
        cache.empty_cache();
    }
    cache.report();
    Ok(())
}

/// Allocates and frees tensors as fast as possible, from the requested number of stacks.
pub(crate) fn spam(common: &CommonArgs, options: &TorchSpam) -> anyhow::Result<()> {
    let (cache, device) = (Cache::load(common.device)?, common.device);
    // The segment is allocated once, before the time is measured.
    let first = cache.tensor(device, 4096)?;
    for _ in 0..options.rounds.max(1) {
        let start = Instant::now();
        for pair in 0..options.pairs {
            let address = through(&cache, device, pair % options.stacks.max(1), 5)?;
            cache.free_tensor(address);
        }
        let nanos = start.elapsed().as_nanos() / u128::from(options.pairs.max(1));
        print_line(&format!("{nanos} ns per pair"));
    }
    cache.free_tensor(first);
    cache.report();
    Ok(())
}

/// Descends through one of two functions at each level: the stacks have the same depth, and differ
/// in the middle.
fn through(cache: &Cache, device: i32, stack: u64, levels: u32) -> anyhow::Result<u64> {
    if levels == 0 {
        return cache.tensor(device, 4096);
    }
    if stack >> (levels - 1) & 1 == 0 {
        left(cache, device, stack, levels - 1)
    } else {
        right(cache, device, stack, levels - 1)
    }
}

#[inline(never)]
fn left(cache: &Cache, device: i32, stack: u64, levels: u32) -> anyhow::Result<u64> {
    black_box(through(cache, device, stack, levels))
}

#[inline(never)]
fn right(cache: &Cache, device: i32, stack: u64, levels: u32) -> anyhow::Result<u64> {
    black_box(through(cache, device, black_box(stack), levels))
}
