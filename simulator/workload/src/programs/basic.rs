//! Short programs on one thread.

use std::ffi::c_void;

use super::MIB;
use crate::cli::Leak3;
use crate::cuda::Device;
use crate::signals;

/// Makes three allocations and two frees: one is left.
pub(crate) fn leak3(device: Device, options: &Leak3) -> anyhow::Result<()> {
    let first = device.alloc(8 * MIB)?;
    let _leaked = device.alloc(8 * MIB)?;
    let third = device.alloc(8 * MIB)?;
    if !signals::sleep_ms(options.work_ms) {
        return Ok(());
    }
    device.free(first)?;
    device.free(third)?;
    signals::sleep_ms(options.wait_ms);
    Ok(())
}

/// Makes one allocation of each kind. Device, managed and one pinned allocation are left.
pub(crate) fn kinds(device: Device) -> anyhow::Result<()> {
    let driver = device.driver;
    let _device = device.alloc(4 * MIB)?;

    let (mut pitched, mut pitch) = (0, 0);
    // SAFETY: the pointers are valid for writing.
    unsafe { driver.cuMemAllocPitch_v2(&raw mut pitched, &raw mut pitch, 1000, 100, 4) }?;

    let mut managed = 0;
    // SAFETY: the pointer is valid for writing.
    unsafe { driver.cuMemAllocManaged(&raw mut managed, 2 * MIB, 1) }?;

    let mut pinned: *mut c_void = std::ptr::null_mut();
    // SAFETY: the pointer is valid for writing.
    unsafe { driver.cuMemAllocHost_v2(&raw mut pinned, MIB) }?;
    let mut mapped: *mut c_void = std::ptr::null_mut();
    // SAFETY: the pointer is valid for writing.
    unsafe { driver.cuMemHostAlloc(&raw mut mapped, 3 * MIB, 2) }?;

    let mut own = vec![0_u8; MIB];
    let start = own.as_mut_ptr().cast::<c_void>();
    // SAFETY: the range belongs to the vector, which lives until it is unregistered.
    unsafe { driver.cuMemHostRegister_v2(start, MIB, 0) }?;

    device.free(pitched)?;
    // SAFETY: the driver allocated this memory and nothing uses it.
    unsafe { driver.cuMemFreeHost(pinned) }?;
    // SAFETY: the range was registered above.
    unsafe { driver.cuMemHostUnregister(start) }?;
    Ok(())
}
