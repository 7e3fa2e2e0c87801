//! Programs that make many calls or allocations of one kind.

use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::MIB;
use crate::cli::{Hold, HoldKind, Oom, Spam, Throughput};
use crate::cuda::{Device, OUT_OF_MEMORY, Pointer, Result};
use crate::structs::{Array3dDescriptor, ArrayDescriptor, FLOAT};
use crate::{print_line, signals};

/// Events between two reads of the clock, at full speed.
const CLOCK_CHECK_EVENTS: u64 = 256;

/// Makes allocations and frees, one after another.
struct Spammer {
    device: Device,
    bytes: usize,
    ratio: f64,
    /// Number of frees that are due, including a fraction.
    due: f64,
    pending: Option<Pointer>,
    allocations: u64,
    frees: u64,
}

impl Spammer {
    /// Makes one event.
    fn event(&mut self) -> crate::cuda::Result<()> {
        if let Some(pointer) = self.pending.take() {
            self.device.free(pointer)?;
            self.frees += 1;
            return Ok(());
        }
        let pointer = self.device.alloc(self.bytes)?;
        self.allocations += 1;
        self.due += self.ratio;
        if self.due >= 1.0 {
            self.due -= 1.0;
            self.pending = Some(pointer);
        }
        Ok(())
    }

    const fn events(&self) -> u64 {
        self.allocations + self.frees
    }
}

/// Makes events at a rate, or as fast as possible.
pub(crate) fn spam(device: Device, options: &Spam) -> anyhow::Result<()> {
    let mut spammer = Spammer {
        device,
        bytes: options.allocate_size,
        ratio: options.free_ratio.clamp(0.0, 1.0),
        due: 0.0,
        pending: None,
        allocations: 0,
        frees: 0,
    };
    let limit = options.count.unwrap_or(u64::MAX);
    let duration = Duration::from_secs_f64(options.duration.max(0.0));
    let start = Instant::now();
    let mut full = false;
    'time: loop {
        let elapsed = start.elapsed();
        if elapsed >= duration || spammer.events() >= limit || signals::stopped() {
            break;
        }
        let target = match options.throughput {
            Throughput::Max => spammer.events() + CLOCK_CHECK_EVENTS,
            Throughput::PerSecond(rate) => events_until(rate, elapsed),
        };
        while spammer.events() < target.min(limit) {
            match spammer.event() {
                Ok(()) => {}
                Err(error) if error.code == OUT_OF_MEMORY => {
                    full = true;
                    break 'time;
                }
                Err(error) => return Err(error.into()),
            }
        }
        if options.throughput != Throughput::Max {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    if let Some(pointer) = spammer.pending.take() {
        spammer.device.free(pointer)?;
        spammer.frees += 1;
    }
    let rate = if seconds > 0.0 { spammer.events() as f64 / seconds } else { 0.0 };
    print_line(&format!(
        "{} events in {seconds:.3} s: {rate:.0} events/s ({} allocations, {} frees){}",
        spammer.events(),
        spammer.allocations,
        spammer.frees,
        if full { ", stopped because the device is full" } else { "" },
    ));
    Ok(())
}

/// Returns the number of events that are due now.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a conversion from floating point saturates, as intended"
)]
fn events_until(rate: f64, elapsed: Duration) -> u64 {
    (rate * elapsed.as_secs_f64()) as u64 + 1
}

fn hold_one(device: Device, kind: HoldKind, bytes: usize) -> Result<()> {
    let driver = device.driver;
    let (width, height, depth) = (bytes / 16, 0, 0);
    let (format, channels, flags, padding) = (FLOAT, 4, 0, 0);
    let flat = ArrayDescriptor { width, height, format, channels };
    let deep = Array3dDescriptor { width, height, depth, format, channels, flags, padding };
    let (mut handle, mut pitch) = (0, 0);
    let out = &raw mut handle;
    // SAFETY: the pointers are valid for writing and for reading.
    unsafe {
        match kind {
            HoldKind::Device => driver.cuMemAlloc_v2(out, bytes),
            HoldKind::Pitched => driver.cuMemAllocPitch_v2(out, &raw mut pitch, 16, bytes / 16, 4),
            HoldKind::Array => driver.cuArrayCreate_v2(out, &raw const flat),
            HoldKind::Mipmapped => driver.cuMipmappedArrayCreate(out, &raw const deep, 8),
        }
    }
}

/// Makes live allocations, then waits.
pub(crate) fn hold(device: Device, options: &Hold) -> anyhow::Result<()> {
    for i in 0..options.count {
        let bytes = options.size + if options.distinct { i } else { 0 };
        let result = hold_one(device, options.kind, bytes);
        result.with_context(|| format!("at allocation {}", i + 1))?;
        if signals::stopped() {
            return Ok(());
        }
    }
    print_line("ready");
    signals::sleep_ms(options.wait_ms);
    Ok(())
}

/// Fills the device.
pub(crate) fn oom(device: Device, options: &Oom) -> anyhow::Result<()> {
    let mut count = 0_u64;
    while !signals::stopped() {
        match device.alloc(options.chunk_mb * MIB) {
            Ok(_) => count += 1,
            Err(error) if error.code == OUT_OF_MEMORY => {
                print_line(&format!(
                    "{error} after {count} allocations of {} MiB: {} MiB in all",
                    options.chunk_mb,
                    count * options.chunk_mb as u64
                ));
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    signals::sleep_ms(options.wait_ms);
    Ok(())
}
