//! Sizes of arrays from their descriptors. The driver may use more for tiling.

use super::call::CallRecord;
use crate::wire;

/// `CUDA_ARRAY3D_SPARSE` and `CUDA_ARRAY3D_DEFERRED_MAPPING`: no memory until the array is mapped.
const WITHOUT_MEMORY: u32 = 0x40 | 0x80;

/// `CUDA_ARRAY_DESCRIPTOR`: width 0, height 8, format 16, channels 20.
pub(super) fn bytes_2d(call: &CallRecord) -> Option<u64> {
    let shape = [call.u64_at(0)?, call.u64_at(8)?, 1];
    Some(level(shape, element(call.u32_at(16)?, call.u32_at(20)?)))
}

/// `CUDA_ARRAY3D_DESCRIPTOR`: width 0, height 8, depth 16, format 24, channels 28, flags 32; with
/// this many mip levels, each half as large in every direction.
pub(super) fn bytes_3d(call: &CallRecord, levels: u32) -> Option<u64> {
    let shape = [call.u64_at(0)?, call.u64_at(8)?, call.u64_at(16)?];
    let element = element(call.u32_at(24)?, call.u32_at(28)?);
    let flags = call.u32_at(32)?;
    if flags & WITHOUT_MEMORY != 0 {
        return Some(0);
    }
    // Layers (flag 1) and the faces of a cube map (flag 4) keep their number on every level.
    let layered = flags & (0x01 | 0x04) != 0;
    let shrink = |size: u64, by: u32| if size == 0 { 0 } else { (size >> by.min(63)).max(1) };
    let bytes = (0..levels.clamp(1, 64)).map(|by| {
        let depth = if layered { shape[2] } else { shrink(shape[2], by) };
        level([shrink(shape[0], by), shrink(shape[1], by), depth], element)
    });
    Some(bytes.fold(0, u64::saturating_add))
}

/// A size of 0 means that the array has one dimension less.
fn level(shape: [u64; 3], element: u64) -> u64 {
    shape.iter().fold(element, |bytes, &size| bytes.saturating_mul(size.max(1)))
}

/// Returns whether a format implies the number of channels.
const fn implies_channels(format: u32) -> bool {
    format >= 0xc0
}

/// Element sizes by format, for the probes: of one channel, or with [`wire::VS_ALL_CHANNELS`] of all.
pub(crate) fn element_table() -> [u8; 256] {
    std::array::from_fn(|format| {
        let flag = if implies_channels(format as u32) { wire::VS_ALL_CHANNELS as u8 } else { 0 };
        element(format as u32, 1) as u8 | flag
    })
}

fn element(format: u32, channels: u32) -> u64 {
    let bytes = match format {
        0x01 | 0x08 => 1,        // u8, s8
        0x02 | 0x09 | 0x10 => 2, // u16, s16, half
        0x03 | 0x0a | 0x20 => 4, // u32, s32, float
        0xc0 | 0xc3 => 1,        // unorm8x1, snorm8x1
        0xc1 | 0xc4 => 2,        // unorm8x2, snorm8x2
        0xc2 | 0xc5 => 4,        // unorm8x4, snorm8x4
        0xc6 | 0xc9 => 2,        // unorm16x1, snorm16x1
        0xc7 | 0xca => 4,        // unorm16x2, snorm16x2
        0xc8 | 0xcb => 8,        // unorm16x4, snorm16x4
        _ => 1,
    };
    let channels = if implies_channels(format) { 1 } else { channels.max(1) };
    bytes * u64::from(channels)
}
