//! Blocks of PyTorch's cache, by the rules of `torch.h`.
//!
//! The cache reports each block that it hands out or takes back to a function of libc10, under its
//! lock, with its sums after that. The entry alone has everything.

use std::sync::atomic::Ordering;

use crate::area::Row;
use crate::wire::{Tensor, VS_TENSOR, VS_TENSOR_OOM, VS_TENSORS_FULL};
use crate::wrapper::Frame;
use crate::{emit, loss, process, stack, thread};

/// `c10::DeviceType::CUDA`. Other devices report their memory to the same function.
const CUDA_DEVICE: u64 = 1;

/// Records one call.
pub(crate) fn enter(frame: &Frame, row: &Row) {
    let is_refusal = u32::from(row.hook.measure) == VS_TENSOR_OOM;
    let [first, second, third, fourth, fifth, _] = frame.args;
    let (address, bytes, allocated, reserved, device) = if is_refusal {
        (0, first, second, third, fourth)
    } else {
        (first, second, third, fourth, fifth)
    };
    // Of CUDA, and of a device with a number: both are signed bytes in one register.
    if device & 0xff != CUDA_DEVICE || device & 0x8000 != 0 {
        return;
    }
    let (Some(thread), Some(area)) = (thread::own(), process::area()) else {
        return loss::count_tensor();
    };
    // The other half of the ring is for the driver's calls: no number of tensors makes their values
    // inexact.
    let ring = &area.header.records;
    let used =
        ring.head.0.load(Ordering::Relaxed).wrapping_sub(ring.tail.0.load(Ordering::Relaxed));
    if used > area.records.size / 2 {
        emit::wake();
        return loss::count_tensor();
    }
    let has_site = process::control().is_some_and(|control| control.tensors == VS_TENSORS_FULL)
        && (is_refusal || bytes.cast_signed() > 0);
    let taken = if has_site { stack::take(frame, thread) } else { stack::Taken::NONE };
    let mut head = emit::head(VS_TENSOR, thread.tid);
    head.hook = row.hook.measure.into();
    let record = Tensor {
        head,
        address,
        bytes,
        allocated,
        reserved,
        stack: taken.stack,
        python: taken.python,
        device: (device >> 8 & 0x7f) as i32,
        flags: taken.flags,
    };
    if !emit::write(&record) {
        loss::count_tensor();
    }
}
