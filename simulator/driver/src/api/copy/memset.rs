//! Memsets of device memory, of 8, 16 and 32-bit values. They are checked and counted.

use crate::abi::{Code, DevicePointer, Handle, Outcome};
use crate::api::copy::side;
use crate::api::copy::side::{CopySide, MemoryType};
use crate::entry::{ActiveCall, exports};
use crate::oracle::activity::CopyDirection;
use crate::state;

exports! {
    activity cuMemsetD8_v2(to: DevicePointer, value: u8, count: usize) = fill_8;
    activity cuMemsetD8_v2_ptds(to: DevicePointer, value: u8, count: usize) = fill_8;
    activity cuMemsetD8Async(to: DevicePointer, value: u8, count: usize, stream: Handle) =
        fill_8_async;
    activity cuMemsetD8Async_ptsz(to: DevicePointer, value: u8, count: usize, stream: Handle) =
        fill_8_async;
    activity cuMemsetD2D8_v2(to: DevicePointer, pitch: usize, value: u8, width: usize,
        height: usize) = fill_rows_8;
    activity cuMemsetD2D8_v2_ptds(to: DevicePointer, pitch: usize, value: u8, width: usize,
        height: usize) = fill_rows_8;
    activity cuMemsetD2D8Async(to: DevicePointer, pitch: usize, value: u8, width: usize,
        height: usize, stream: Handle) = fill_rows_8_async;
    activity cuMemsetD2D8Async_ptsz(to: DevicePointer, pitch: usize, value: u8, width: usize,
        height: usize, stream: Handle) = fill_rows_8_async;
    activity cuMemsetD16_v2(to: DevicePointer, value: u16, count: usize) = fill_16;
    activity cuMemsetD16_v2_ptds(to: DevicePointer, value: u16, count: usize) = fill_16;
    activity cuMemsetD16Async(to: DevicePointer, value: u16, count: usize, stream: Handle) =
        fill_16_async;
    activity cuMemsetD16Async_ptsz(to: DevicePointer, value: u16, count: usize, stream: Handle) =
        fill_16_async;
    activity cuMemsetD2D16_v2(to: DevicePointer, pitch: usize, value: u16, width: usize,
        height: usize) = fill_rows_16;
    activity cuMemsetD2D16_v2_ptds(to: DevicePointer, pitch: usize, value: u16, width: usize,
        height: usize) = fill_rows_16;
    activity cuMemsetD2D16Async(to: DevicePointer, pitch: usize, value: u16, width: usize,
        height: usize, stream: Handle) = fill_rows_16_async;
    activity cuMemsetD2D16Async_ptsz(to: DevicePointer, pitch: usize, value: u16, width: usize,
        height: usize, stream: Handle) = fill_rows_16_async;
    activity cuMemsetD32_v2(to: DevicePointer, value: u32, count: usize) = fill_32;
    activity cuMemsetD32_v2_ptds(to: DevicePointer, value: u32, count: usize) = fill_32;
    activity cuMemsetD32Async(to: DevicePointer, value: u32, count: usize, stream: Handle) =
        fill_32_async;
    activity cuMemsetD32Async_ptsz(to: DevicePointer, value: u32, count: usize, stream: Handle) =
        fill_32_async;
    activity cuMemsetD2D32_v2(to: DevicePointer, pitch: usize, value: u32, width: usize,
        height: usize) = fill_rows_32;
    activity cuMemsetD2D32_v2_ptds(to: DevicePointer, pitch: usize, value: u32, width: usize,
        height: usize) = fill_rows_32;
    activity cuMemsetD2D32Async(to: DevicePointer, pitch: usize, value: u32, width: usize,
        height: usize, stream: Handle) = fill_rows_32_async;
    activity cuMemsetD2D32Async_ptsz(to: DevicePointer, pitch: usize, value: u32, width: usize,
        height: usize, stream: Handle) = fill_rows_32_async;
}

/// The range of a memset: rows of values of a width in bytes.
struct MemsetRows {
    to: DevicePointer,
    pitch: usize,
    width: usize,
    height: usize,
    value: u64,
}

fn fill(call: ActiveCall, rows: &MemsetRows, stream: Option<Handle>) -> Outcome {
    let mut state = state::running()?;
    let result = call.attempt(|| {
        let done = state.begin(call, stream)?;
        if !rows.to.is_multiple_of(rows.value) || !(rows.pitch as u64).is_multiple_of(rows.value) {
            return Err(Code::InvalidValue);
        }
        let width = (rows.width as u64).checked_mul(rows.value).ok_or(Code::InvalidValue)?;
        let size = [width, rows.height as u64, 1];
        let pitch = rows.pitch as u64;
        let side = CopySide { pitch, ..CopySide::plain(MemoryType::Device(rows.to)) };
        state.check_side(&side, size)?;
        Ok((done, side::bytes(size)?))
    });
    state.count_copy(call, CopyDirection::Memset, stream.is_some(), result);
    result.map(|_| ())
}

/// The four functions for values of one width.
macro_rules! fills {
    ($ty:ty, $plain:ident, $plain_async:ident, $rows:ident, $rows_async:ident) => {
        fn $plain(call: ActiveCall, to: DevicePointer, _value: $ty, count: usize) -> Outcome {
            let value = size_of::<$ty>() as u64;
            fill(call, &MemsetRows { to, pitch: 0, width: count, height: 1, value }, None)
        }

        fn $plain_async(
            call: ActiveCall,
            to: DevicePointer,
            _value: $ty,
            count: usize,
            stream: Handle,
        ) -> Outcome {
            let value = size_of::<$ty>() as u64;
            fill(call, &MemsetRows { to, pitch: 0, width: count, height: 1, value }, Some(stream))
        }

        fn $rows(
            call: ActiveCall,
            to: DevicePointer,
            pitch: usize,
            _value: $ty,
            width: usize,
            height: usize,
        ) -> Outcome {
            let value = size_of::<$ty>() as u64;
            fill(call, &MemsetRows { to, pitch, width, height, value }, None)
        }

        fn $rows_async(
            call: ActiveCall,
            to: DevicePointer,
            pitch: usize,
            _value: $ty,
            width: usize,
            height: usize,
            stream: Handle,
        ) -> Outcome {
            let value = size_of::<$ty>() as u64;
            fill(call, &MemsetRows { to, pitch, width, height, value }, Some(stream))
        }
    };
}

fills!(u8, fill_8, fill_8_async, fill_rows_8, fill_rows_8_async);
fills!(u16, fill_16, fill_16_async, fill_rows_16, fill_rows_16_async);
fills!(u32, fill_32, fill_32_async, fill_rows_32, fill_rows_32_async);
