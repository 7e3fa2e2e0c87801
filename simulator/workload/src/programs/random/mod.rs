//! A random program over the whole memory API.
//!
//! The choices of each thread depend only on its seed, not on other threads. Memory is passed from
//! thread to thread to be freed there. Memory that is live at the end stays live.

mod episodes;
mod illegal;
mod objects;

use std::ffi::c_int;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;

use anyhow::{anyhow, bail};

use crate::cli::{ApiArea, CommonArgs, Random};
use crate::cuda::{CudaError, Driver, Handle, OUT_OF_MEMORY, Result};
use crate::{log_error, print_line, signals};
use objects::Object;

/// The state of one thread.
struct Worker {
    driver: &'static Driver,
    random: fastrand::Rng,
    /// The primary contexts of the devices.
    contexts: Vec<Handle>,
    device: usize,
    stream: Handle,
    pool: Option<(Handle, usize)>,
    objects: Vec<Object>,
    counts: Counts,
    simulated: bool,
    only: Vec<ApiArea>,
    /// No other thread can get an address that this one frees.
    single_threaded: bool,
    illegal: bool,
    /// Failures are injected, so any call may fail.
    injected: bool,
}

/// Number of calls of a thread, by result.
#[derive(Clone, Copy, Default)]
struct Counts {
    steps: u64,
    rejected: u64,
    out_of_memory: u64,
    unexpected: u64,
}

impl Counts {
    const fn plus(self, other: Self) -> Self {
        Self {
            steps: self.steps + other.steps,
            rejected: self.rejected + other.rejected,
            out_of_memory: self.out_of_memory + other.out_of_memory,
            unexpected: self.unexpected + other.unexpected,
        }
    }
}

/// Runs the threads.
pub(crate) fn run(
    driver: &'static Driver,
    common: &CommonArgs,
    options: &Random,
) -> anyhow::Result<()> {
    driver.init()?;
    let present = driver.devices()?;
    let devices = c_int::try_from(options.devices).unwrap_or(c_int::MAX);
    if devices < 1 || devices > present {
        bail!("the driver has {present} devices, not {devices}");
    }
    let contexts = (0..devices).map(|device| driver.retain(device)).collect::<Result<Vec<_>>>()?;
    let simulated = driver.name(0)?.starts_with("Simulated");
    let injected = std::env::var_os("SIM_INJECT_FAILURES").is_some();
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..options.threads).map(|_| channel()).unzip();
    let mut senders = senders;
    // Each thread passes to the next one, and the last to the first.
    if !senders.is_empty() {
        senders.rotate_left(1);
    }
    let mut handles = Vec::new();
    for (number, (sender, receiver)) in senders.into_iter().zip(receivers).enumerate() {
        let mut worker = Worker {
            driver,
            random: fastrand::Rng::with_seed(common.seed.wrapping_mul(1_000_003) + number as u64),
            contexts: contexts.clone(),
            device: 0,
            stream: 0,
            pool: None,
            objects: Vec::new(),
            counts: Counts::default(),
            simulated,
            only: options.only.clone(),
            single_threaded: options.threads == 1,
            illegal: !options.no_illegal,
            injected,
        };
        let ops = options.ops / u64::from(options.threads);
        let builder = Builder::new().name(format!("worker-{number}"));
        handles.push(builder.spawn(move || {
            worker.run(ops, sender, &receiver)?;
            Ok::<Counts, CudaError>(worker.counts)
        })?);
    }
    let mut total = Counts::default();
    for handle in handles {
        let counts = handle.join().map_err(|_| anyhow!("a thread panicked"))??;
        total = total.plus(counts);
    }
    summary(total)
}

fn summary(counts: Counts) -> anyhow::Result<()> {
    let Counts { steps, rejected, out_of_memory, unexpected } = counts;
    print_line(&format!(
        "{steps} steps: {rejected} illegal calls rejected, {out_of_memory} out of memory, \
         {unexpected} failed otherwise"
    ));
    if unexpected > 0 && std::env::var_os("SIM_INJECT_FAILURES").is_none() {
        bail!("{unexpected} legal calls failed");
    }
    Ok(())
}

impl Worker {
    fn run(&mut self, ops: u64, sender: Sender<Object>, receiver: &Receiver<Object>) -> Result<()> {
        self.enter(0)?;
        // SAFETY: the pointer is valid for writing.
        unsafe { self.driver.cuStreamCreate(&raw mut self.stream, 1) }?;
        for _ in 0..ops {
            if signals::stopped() {
                break;
            }
            self.counts.steps += 1;
            self.step(&sender);
            // Objects from other threads are freed immediately, without a random choice.
            while let Ok(object) = receiver.try_recv() {
                self.free(object);
            }
        }
        // The rest, until the previous thread has nothing more to pass on.
        drop(sender);
        for object in receiver {
            self.free(object);
        }
        // SAFETY: the stream was created above, and nothing uses it anymore.
        unsafe { self.driver.cuStreamDestroy_v2(self.stream) }
    }

    fn enter(&mut self, device: usize) -> Result<()> {
        let context = self.contexts.get(device).copied().unwrap_or(0);
        self.driver.set_current(context)?;
        self.device = device;
        Ok(())
    }

    /// Returns whether the driver supports an area of the API, and the program should use it.
    fn may_use(&self, area: ApiArea) -> bool {
        let is_supported = match area {
            // A real driver needs memory of a real API, and more than one device.
            ApiArea::External | ApiArea::Multicast => self.simulated,
            // In combination with all the rest they crashed a real driver (580.159), for an unknown
            // reason; alone they work.
            ApiArea::Context | ApiArea::Green => self.simulated || !self.only.is_empty(),
            _ => true,
        };
        is_supported && (self.only.is_empty() || self.only.contains(&area))
    }

    /// Returns the ordinal of the device.
    fn ordinal(&self) -> c_int {
        c_int::try_from(self.device).unwrap_or(0)
    }

    fn step(&mut self, sender: &Sender<Object>) {
        match self.random.u32(..100) {
            0..40 => self.allocate(),
            40..76 => self.free_one(),
            76..80 => self.pass_on(sender),
            80..84 => self.switch_device(),
            84..88 => self.synchronize_or_trim(),
            88..94 => self.episode(),
            _ if self.illegal => self.make_illegal_call(),
            _ => self.allocate(),
        }
    }

    /// Counts the result of a call, and returns its value if it succeeded.
    fn count_result<T>(&mut self, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) if error.code == OUT_OF_MEMORY => {
                self.counts.out_of_memory += 1;
                None
            }
            Err(error) => {
                self.counts.unexpected += 1;
                if !self.injected {
                    log_error(&error.to_string());
                }
                None
            }
        }
    }

    /// Returns a random size: mostly small, sometimes several mebibytes.
    fn size(&mut self) -> usize {
        let bits = self.random.u32(0..24);
        self.random.usize(1..=1 << bits)
    }

    fn allocate(&mut self) {
        // Not much at a time: a real device and its host are shared.
        if self.objects.len() >= 400 {
            self.free_one();
        }
        let object = objects::allocate(self);
        if let Some(object) = self.count_result(object) {
            self.objects.push(object);
        }
    }

    fn free_one(&mut self) {
        if self.objects.is_empty() {
            return;
        }
        let index = self.random.usize(..self.objects.len());
        let object = self.objects.swap_remove(index);
        self.free(object);
    }

    /// Frees an object; it is kept if that fails.
    fn free(&mut self, mut object: Object) {
        let result = object.free(self);
        if self.count_result(result).is_none() {
            self.objects.push(object);
        }
    }

    fn pass_on(&mut self, sender: &Sender<Object>) {
        if self.objects.is_empty() {
            return;
        }
        let index = self.random.usize(..self.objects.len());
        let object = self.objects.swap_remove(index);
        // Each thread receives until all have sent; an object for a failed thread stays live.
        let _ = sender.send(object);
    }

    fn switch_device(&mut self) {
        let device = self.random.usize(..self.contexts.len());
        let result = self.enter(device);
        self.count_result(result);
    }

    /// Synchronizes, or trims a pool or graph memory.
    fn synchronize_or_trim(&mut self) {
        let choice = self.random.u32(..8);
        let (driver, device) = (self.driver, self.ordinal());
        let threshold = u64::from(self.random.u32(..4)) << 25;
        let result = match choice {
            // Not while another thread may be capturing a stream of the same context.
            0..3 if self.single_threaded => driver.synchronize(),
            // SAFETY: takes a handle of this thread's stream.
            0..5 => unsafe { driver.cuStreamSynchronize(self.stream) },
            // SAFETY: takes no pointers.
            5 => unsafe { driver.cuDeviceGraphMemTrim(device) },
            _ => default_pool(driver, device).and_then(|pool| {
                let mut value = threshold;
                if choice == 6 {
                    // SAFETY: the attribute is a 64-bit number, and the pointer is to one.
                    unsafe { driver.cuMemPoolSetAttribute(pool, 4, (&raw mut value).cast()) }
                } else {
                    // SAFETY: takes no pointers.
                    unsafe { driver.cuMemPoolTrimTo(pool, usize::try_from(threshold).unwrap_or(0)) }
                }
            }),
        };
        self.count_result(result);
    }
}

fn default_pool(driver: &Driver, device: c_int) -> Result<Handle> {
    let mut pool = 0;
    // SAFETY: the pointer is valid for writing.
    unsafe { driver.cuDeviceGetDefaultMemPool(&raw mut pool, device) }?;
    Ok(pool)
}
