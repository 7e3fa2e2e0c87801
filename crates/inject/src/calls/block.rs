//! Blocks of PyTorch's caching allocator, as in `allocators.h`.
//!
//! The allocator reports each allocated and freed block to a function of libc10, under its lock,
//! with its totals after the change. The arguments at the entry are all that is needed.

use std::sync::atomic::Ordering;

use super::stack::StackRef;
use super::{emit, loss, stack, thread};
use crate::area::Row;
use crate::process;
use crate::wire::{Block, VS_BLOCK, VS_BLOCK_TORCH_OOM, VS_BLOCKS_FULL};
use crate::wrapper::Frame;

/// `c10::DeviceType::CUDA`. Other devices report to the same function.
const CUDA_DEVICE: u64 = 1;

/// Records one block.
pub(crate) fn enter(frame: &Frame, row: &Row) {
    let is_oom = u32::from(row.hook.measure) == VS_BLOCK_TORCH_OOM;
    let [first, second, third, fourth, fifth, _] = frame.args;
    let (address, bytes, allocated, reserved, device) = if is_oom {
        (0, first, second, third, fourth)
    } else {
        (first, second, third, fourth, fifth)
    };
    // `c10::Device` in one register: device type and index, signed bytes. Skip other types and
    // negative indices.
    if device & 0xff != CUDA_DEVICE || device & 0x8000 != 0 {
        return;
    }
    let (Some(thread), Some(area)) = (thread::own(), process::area()) else {
        return loss::count_tensor();
    };
    // Half of the ring is reserved for driver calls, so that tensors cannot make their totals
    // inexact.
    let ring = &area.header.records;
    let used =
        ring.head.0.load(Ordering::Relaxed).wrapping_sub(ring.tail.0.load(Ordering::Relaxed));
    if used > area.records.size / 2 {
        emit::wake();
        return loss::count_tensor();
    }
    let has_stack = process::control().is_some_and(|control| control.blocks == VS_BLOCKS_FULL)
        && (is_oom || bytes.cast_signed() > 0);
    let stack = if has_stack { stack::capture(frame, thread) } else { StackRef::NONE };
    let mut head = emit::head(VS_BLOCK, thread.tid);
    head.hook = row.hook.measure.into();
    let record = Block {
        head,
        address,
        bytes,
        allocated,
        reserved,
        stack: stack.stack,
        python: stack.python,
        pool: 0,
        device: (device >> 8 & 0x7f) as i32,
        flags: stack.flags,
    };
    if !emit::write(&record) {
        loss::count_tensor();
    }
}
