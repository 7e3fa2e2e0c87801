//! Contexts and the memory in them.

use std::ffi::c_int;

use super::MIB;
use crate::cuda::{Driver, Handle, Result};
use crate::print_line;

/// Creates a context, which becomes current on the calling thread.
fn create(driver: &Driver, device: c_int) -> Result<Handle> {
    let mut context = 0;
    // SAFETY: the pointer is valid for writing.
    unsafe { driver.cuCtxCreate_v2(&raw mut context, 0, device) }?;
    Ok(context)
}

fn destroy(driver: &Driver, context: Handle) -> Result<()> {
    // SAFETY: the handle is that of a context created here.
    unsafe { driver.cuCtxDestroy_v2(context) }
}

fn push(driver: &Driver, context: Handle) -> Result<()> {
    // SAFETY: the handle is that of a live context.
    unsafe { driver.cuCtxPushCurrent_v2(context) }
}

fn pop(driver: &Driver) -> Result<Handle> {
    let mut context = 0;
    // SAFETY: the pointer is valid for writing.
    unsafe { driver.cuCtxPopCurrent_v2(&raw mut context) }?;
    Ok(context)
}

/// Creates and destroys contexts with memory in them. Left are 5 MiB in the first device's primary
/// context, and 7 MiB and 2 MiB in a created context of the second device.
pub(crate) fn run(driver: &'static Driver, first: c_int) -> anyhow::Result<()> {
    let second = second_device(driver, first)?;
    let kept = stacked(driver, first, second)?;
    primary(driver, first)?;
    nested(driver, second, kept)?;
    Ok(())
}

/// Initializes the driver and returns the device after `first`, if there is one.
fn second_device(driver: &Driver, first: c_int) -> Result<c_int> {
    driver.init()?;
    let count = driver.devices()?;
    if count > first + 1 {
        return Ok(first + 1);
    }
    print_line("only one device: it is used for both parts");
    Ok(first)
}

/// A stack of `depth` + 2 contexts. Left are 2,000 and 8,000 bytes in a context of the first
/// device; 1,000 and 4,000 bytes in a context of the second device are released with it.
pub(crate) fn deep(driver: &'static Driver, first: c_int, depth: u32) -> anyhow::Result<()> {
    let second = second_device(driver, first)?;
    let lower = create(driver, first)?;
    let upper = create(driver, second)?;
    for level in (0..depth).rev() {
        push(driver, if level % 2 == 0 { upper } else { lower })?;
    }
    driver.alloc(1000)?;
    pop(driver)?;
    push(driver, lower)?;
    driver.alloc(2000)?;
    pop(driver)?;
    for _ in 1..depth {
        pop(driver)?;
    }
    driver.alloc(4000)?;
    destroy(driver, upper)?;
    driver.alloc(8000)?;
    Ok(())
}

/// A context is destroyed with 4 MiB in it after another one was on top of it. The other one is
/// left, with 7 MiB and 2 MiB.
fn stacked(driver: &Driver, first: c_int, second: c_int) -> Result<Handle> {
    let lower = create(driver, first)?;
    driver.alloc(4 * MIB)?;
    let upper = create(driver, second)?;
    let freed_elsewhere = driver.alloc(6 * MIB)?;
    driver.alloc(7 * MIB)?;
    pop(driver)?;
    // The lower context is current again; memory can be freed from any context.
    let freed = driver.alloc(3 * MIB)?;
    driver.free(freed)?;
    driver.free(freed_elsewhere)?;
    push(driver, upper)?;
    driver.alloc(2 * MIB)?;
    pop(driver)?;
    destroy(driver, lower)?;
    Ok(upper)
}

/// The primary context: 10 MiB end with a reset, 11 MiB with the last release, 5 MiB are left.
fn primary(driver: &Driver, device: c_int) -> Result<()> {
    let enter = || driver.retain(device).and_then(|context| driver.set_current(context));
    enter()?;
    driver.alloc(10 * MIB)?;
    // SAFETY: takes no pointers.
    unsafe { driver.cuDevicePrimaryCtxReset_v2(device) }?;
    // SAFETY: takes no pointers.
    unsafe { driver.cuDevicePrimaryCtxRelease_v2(device) }?;
    enter()?;
    driver.alloc(11 * MIB)?;
    // SAFETY: takes no pointers.
    unsafe { driver.cuDevicePrimaryCtxRelease_v2(device) }?;
    enter()?;
    driver.alloc(5 * MIB)?;
    Ok(())
}

/// A context above another one of the same device ends with 9 MiB in it.
fn nested(driver: &Driver, device: c_int, below: Handle) -> Result<()> {
    push(driver, below)?;
    let above = create(driver, device)?;
    let freed = driver.alloc(MIB)?;
    pop(driver)?;
    driver.free(freed)?;
    push(driver, above)?;
    driver.alloc(9 * MIB)?;
    destroy(driver, above)
}
