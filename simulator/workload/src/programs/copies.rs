//! Copies and memsets, each with a distinct size.

use std::ffi::{c_int, c_void};

use crate::cli::Copies;
use crate::cuda::{Device, Driver, Handle, NOT_FOUND, Pointer, Result};
use crate::structs::{
    ArrayDescriptor, Copy2d, Copy3d, CopyAttributes, CopyEndpoint, FLOAT, Side2d, Side3d,
    VolumeCopy, VolumeOperand,
};
use crate::{print_line, signals};

const KIB: usize = 1 << 10;
/// Size of every buffer.
const BUFFER: usize = 256 * KIB;
/// Width of pitched memory in bytes, and its rows.
const WIDTH: usize = 1000;
const ROWS: usize = 64;
/// Elements of a row of the array, four bytes each; it has as many rows.
const SIDE: usize = 64;

/// Memory to copy from and to.
struct Buffers {
    driver: &'static Driver,
    stream: Handle,
    context: Handle,
    first: Pointer,
    second: Pointer,
    managed: Pointer,
    pinned: *mut c_void,
    pageable: Vec<u8>,
    pitched: Pointer,
    pitch: usize,
    array: Handle,
    /// An array with one row.
    row: Handle,
    /// Memory of another device if there is one, and its context.
    peer: Pointer,
    peer_context: Handle,
}

/// Returns a host pointer as a number.
fn number(pointer: *mut c_void) -> Pointer {
    pointer as Pointer
}

impl Buffers {
    fn new(device: Device, ordinal: c_int) -> Result<Self> {
        let driver = device.driver;
        let peer_ordinal = if driver.devices()? > ordinal + 1 { ordinal + 1 } else { ordinal };
        let peer_context = driver.retain(peer_ordinal)?;
        driver.set_current(peer_context)?;
        let peer = driver.alloc(BUFFER)?;
        device.enter()?;
        let (mut stream, mut managed, mut pinned) = (0, 0, std::ptr::null_mut());
        let (mut pitched, mut pitch, mut array, mut row) = (0, 0, 0, 0);
        let descriptor = ArrayDescriptor { width: SIDE, height: SIDE, format: FLOAT, channels: 1 };
        let flat = ArrayDescriptor { width: 1024, height: 0, ..descriptor };
        // SAFETY: all pointers are valid for writing, or point to descriptors.
        unsafe {
            driver.cuStreamCreate(&raw mut stream, 0)?;
            driver.cuMemAllocManaged(&raw mut managed, BUFFER, 1)?;
            driver.cuMemAllocHost_v2(&raw mut pinned, BUFFER)?;
            driver.cuMemAllocPitch_v2(&raw mut pitched, &raw mut pitch, WIDTH, ROWS, 4)?;
            driver.cuArrayCreate_v2(&raw mut array, &raw const descriptor)?;
            driver.cuArrayCreate_v2(&raw mut row, &raw const flat)?;
        }
        Ok(Self {
            driver,
            stream,
            context: device.context,
            first: device.alloc(BUFFER)?,
            second: device.alloc(BUFFER)?,
            managed,
            pinned,
            pageable: vec![0; BUFFER],
            pitched,
            pitch,
            array,
            row,
            peer,
            peer_context,
        })
    }

    fn pageable(&mut self) -> *mut c_void {
        self.pageable.as_mut_ptr().cast()
    }

    /// Copies by functions that name the direction. Asynchronous ones use pinned memory, and some
    /// start in the middle of an allocation.
    fn plain(&mut self) -> Result<()> {
        let pageable = self.pageable();
        let Self { driver, stream, first, second, pinned, .. } = *self;
        // SAFETY: all ranges are in the buffers, which live until the stream is synchronized.
        unsafe {
            driver.cuMemcpyHtoD_v2(first, pageable, 64 * KIB)?;
            driver.cuMemcpyHtoD_v2_ptds(first + 100, pinned, 1000)?;
            driver.cuMemcpyHtoDAsync_v2(second + 4096, pinned, 32 * KIB, stream)?;
            driver.cuMemcpyHtoDAsync_v2_ptsz(second, pinned.wrapping_byte_add(8), 2000, 0)?;
            driver.cuMemcpyDtoH_v2(pageable, first, 16 * KIB)?;
            driver.cuMemcpyDtoH_v2_ptds(pinned, first + 64, 3000)?;
            driver.cuMemcpyDtoHAsync_v2(pinned, second, 8 * KIB, stream)?;
            driver.cuMemcpyDtoHAsync_v2_ptsz(pinned, second, 4000, 0)?;
            driver.cuMemcpyDtoD_v2(second, first, 128 * KIB)?;
            driver.cuMemcpyDtoD_v2_ptds(second + 16, first, 5000)?;
            driver.cuMemcpyDtoDAsync_v2(first, second, 96 * KIB, stream)?;
            driver.cuMemcpyDtoDAsync_v2_ptsz(first, second, 6000, 0)?;
        }
        Ok(())
    }

    /// Copies whose direction is inferred from the pointers.
    fn unified(&mut self) -> Result<()> {
        let pageable = number(self.pageable());
        let Self { driver, stream, first, second, managed, .. } = *self;
        let pinned = number(self.pinned);
        // SAFETY: as in `plain`.
        unsafe {
            driver.cuMemcpy(first + 512, pageable + 3, 7000)?;
            driver.cuMemcpy(pinned + 100, second, 8000)?;
            driver.cuMemcpy(second, first + 256, 9000)?;
            driver.cuMemcpy(pageable, pinned + 200, 10_000)?;
            driver.cuMemcpy_ptds(managed + 1000, pinned, 11_000)?;
            driver.cuMemcpyAsync(managed, first, 12_000, stream)?;
            driver.cuMemcpyAsync(pinned, managed + 4096, 13_000, stream)?;
            driver.cuMemcpyAsync_ptsz(first, pinned, 14_000, 0)?;
        }
        Ok(())
    }

    /// Copies between contexts.
    fn peers(&self) -> Result<()> {
        let Self { driver, stream, context, first, peer, peer_context, pitch, .. } = *self;
        // SAFETY: as in `plain`.
        unsafe {
            driver.cuMemcpyPeer(peer, peer_context, first, context, 15_000)?;
            driver.cuMemcpyPeerAsync(first, context, peer, peer_context, 16_000, stream)?;
        }
        let from = Side3d { endpoint: CopyEndpoint::device(first), context, ..Side3d::default() };
        let to = Side3d {
            endpoint: CopyEndpoint::device(peer),
            context: peer_context,
            ..Side3d::default()
        };
        let (from, to) = (Side3d { pitch, height: 8, ..from }, Side3d { pitch, height: 8, ..to });
        let copy = Copy3d { from, to, width: 500, height: 8, depth: 3 };
        // SAFETY: as in `plain`; the descriptor lives until the calls return.
        unsafe {
            driver.cuMemcpy3DPeer(&raw const copy)?;
            driver.cuMemcpy3DPeerAsync(&raw const copy, stream)?;
        }
        Ok(())
    }

    /// Rectangles and boxes, of memory and of arrays.
    fn shaped(&mut self) -> Result<()> {
        let pageable = number(self.pageable());
        let Self { driver, stream, first, pitched, pitch, array, .. } = *self;
        let pinned = number(self.pinned);
        let side = |endpoint, pitch| Side2d { endpoint, pitch, ..Side2d::default() };
        let device = side(CopyEndpoint::device(pitched), pitch);
        let copy = |from, to, width, height| Copy2d { from, to, width, height };
        let up = copy(side(CopyEndpoint::host(pageable), WIDTH), device, WIDTH, ROWS);
        let down = copy(device, side(CopyEndpoint::host(pageable), WIDTH), 100, 10);
        let across = copy(side(CopyEndpoint::unified(first), pitch), device, 300, 20);
        let into_array = copy(device, side(CopyEndpoint::array(array), 0), 4 * SIDE, 32);
        let cuboid = |endpoint, pitch| Side3d { endpoint, pitch, height: 4, ..Side3d::default() };
        let on_device = cuboid(CopyEndpoint::device(pitched), pitch);
        let on_host = cuboid(CopyEndpoint::host(pinned), 400);
        let up_3d = Copy3d { from: on_host, to: on_device, width: 400, height: 4, depth: 5 };
        let down_3d = Copy3d { from: on_device, to: on_host, width: 200, height: 4, depth: 6 };
        // SAFETY: as in `plain`; the descriptors live until the calls return.
        unsafe {
            driver.cuMemcpy2D_v2(&raw const up)?;
            driver.cuMemcpy2DUnaligned_v2(&raw const down)?;
            driver.cuMemcpy2DAsync_v2(&raw const across, stream)?;
            driver.cuMemcpy2D_v2(&raw const into_array)?;
            driver.cuMemcpy3D_v2(&raw const up_3d)?;
            driver.cuMemcpy3DAsync_v2(&raw const down_3d, stream)?;
        }
        Ok(())
    }

    /// Rows of arrays.
    fn arrays(&self) -> Result<()> {
        let Self { driver, stream, first, pinned, row, .. } = *self;
        // SAFETY: as in `plain`; the array's row has 4096 bytes.
        unsafe {
            driver.cuMemcpyDtoA_v2(row, 0, first, 4096)?;
            driver.cuMemcpyAtoD_v2(first, row, 96, 4000)?;
            driver.cuMemcpyHtoA_v2(row, 0, pinned, 3900)?;
            driver.cuMemcpyHtoAAsync_v2(row, 0, pinned, 3800, stream)?;
            driver.cuMemcpyAtoH_v2(pinned, row, 0, 3700)?;
            driver.cuMemcpyAtoHAsync_v2(pinned, row, 0, 3600, stream)?;
            driver.cuMemcpyAtoA_v2(row, 0, row, 2048, 1024)?;
        }
        Ok(())
    }

    /// Copies with attributes: all copies of a batch have the same direction.
    fn with_attributes(&self) -> Result<()> {
        let Self { driver, stream, first, second, .. } = *self;
        let pinned = number(self.pinned);
        let mut attributes = CopyAttributes { order: 1, ..CopyAttributes::default() };
        let attributes = &raw mut attributes;
        let (mut indices, mut failed) = ([0_usize], 0_usize);
        let index = indices.as_mut_ptr();
        let (mut to, mut from) = ([first, second + 8192], [pinned, pinned + 4096]);
        let mut sizes = [1500_usize, 2500];
        let (t, f, s) = (to.as_mut_ptr(), from.as_mut_ptr(), sizes.as_mut_ptr());
        // SAFETY: as in `plain`; the arrays have the given length and live until the calls return.
        unsafe {
            let failed = &raw mut failed;
            if_supported(
                driver.cuMemcpyBatchAsync(t, f, s, 2, attributes, index, 1, failed, stream),
            )?;
        }
        let (mut to, mut from) = ([second], [first]);
        let (t, f) = (to.as_mut_ptr(), from.as_mut_ptr());
        // SAFETY: as above.
        unsafe {
            if_supported(driver.cuMemcpyBatchAsync_v2(t, f, s, 1, attributes, index, 1, stream))?;
            if_supported(
                driver.cuMemcpyWithAttributesAsync(pinned, second, 3500, attributes, stream),
            )?;
        }
        let operand = |pointer| VolumeOperand { kind: 1, pointer, ..VolumeOperand::default() };
        let volume = |to, from, extent| {
            let (to, from) = (operand(to), operand(from));
            VolumeCopy { to, from, extent, order: 1, flags: 0 }
        };
        let list = [volume(first, pinned, [10, 5, 4]), volume(second, pinned + 4096, [7, 3, 2])];
        let mut failed = 0_usize;
        // SAFETY: as above.
        unsafe {
            let failed = &raw mut failed;
            if_supported(driver.cuMemcpy3DBatchAsync(2, list.as_ptr(), failed, 0, stream))?;
            if_supported(driver.cuMemcpy3DBatchAsync_v2(1, list.as_ptr(), 0, stream))?;
        }
        Ok(())
    }

    /// Memsets with values of each width.
    fn memsets(&self) -> Result<()> {
        let Self { driver, stream, first, pitched, pitch, .. } = *self;
        // SAFETY: as in `plain`.
        unsafe {
            driver.cuMemsetD8_v2(first, 1, 1000)?;
            driver.cuMemsetD8Async(first + 1, 1, 1001, stream)?;
            driver.cuMemsetD2D8_v2(pitched, pitch, 1, 100, 3)?;
            driver.cuMemsetD2D8Async(pitched, pitch, 1, 101, 3, stream)?;
            driver.cuMemsetD16_v2(first, 2, 1000)?;
            driver.cuMemsetD16Async(first + 2, 2, 1001, stream)?;
            driver.cuMemsetD2D16_v2(pitched, pitch, 2, 100, 3)?;
            driver.cuMemsetD2D16Async(pitched, pitch, 2, 101, 3, stream)?;
            driver.cuMemsetD32_v2(first, 4, 1000)?;
            driver.cuMemsetD32Async(first + 4, 4, 1001, stream)?;
            driver.cuMemsetD2D32_v2(pitched, pitch, 4, 100, 3)?;
            driver.cuMemsetD2D32Async(pitched, pitch, 4, 101, 3, stream)?;
        }
        Ok(())
    }
}

/// Accepts a missing function: only new drivers have it.
fn if_supported(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.code == NOT_FOUND => {
            print_line(&error.to_string());
            Ok(())
        }
        other => other,
    }
}

/// Copies and sets memory with every function, as often as requested.
pub(crate) fn run(device: Device, ordinal: c_int, options: &Copies) -> anyhow::Result<()> {
    let mut buffers = Buffers::new(device, ordinal)?;
    for _ in 0..options.iterations {
        buffers.plain()?;
        buffers.unified()?;
        buffers.peers()?;
        buffers.shaped()?;
        buffers.arrays()?;
        buffers.with_attributes()?;
        buffers.memsets()?;
        if signals::stopped() || (options.pause_ms > 0 && !signals::sleep_ms(options.pause_ms)) {
            break;
        }
    }
    device.driver.synchronize()?;
    Ok(())
}
