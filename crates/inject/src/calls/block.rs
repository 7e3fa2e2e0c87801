//! Blocks of PyTorch's caching allocator, as in `allocators.h`.
//!
//! The allocator reports each allocated and freed block to a function of libc10, under its lock,
//! with its totals after the change. The arguments at the entry are all that is needed.

use std::sync::atomic::Ordering;

use super::stack::StackRef;
use super::thread::ThreadState;
use super::{emit, loss, stack, thread};
use crate::area::Row;
use crate::process;
use crate::wire::{
    Block, VS_BLOCK, VS_BLOCK_TORCH_OOM, VS_BLOCKS_SAMPLED, VS_SAMPLE_FIRST_INTERVAL,
    VS_SAMPLE_LAST_INTERVAL, VS_SAMPLE_MIN_SHARE, VS_SAMPLE_PERIOD, VS_SAMPLE_STACKS, VS_SKIPPED,
};
use crate::wrapper::Frame;

/// `c10::DeviceType::CUDA`. Other devices report to the same function.
const CUDA_DEVICE: u64 = 1;

/// Sampling of the blocks of a thread, as in `allocators.h`.
#[derive(Default)]
pub(crate) struct BlockSampling {
    /// Begin of the period.
    since: u64,
    /// Bytes up to the next sample.
    left: i64,
    /// Captured in the period.
    stacks: usize,
    /// Binary logarithm of the interval; 0: none, every block is sampled.
    power: usize,
    random: u64,
}

impl BlockSampling {
    /// Draws from an exponential distribution whose mean is the interval.
    fn draw_next(&mut self) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let mut x = self.random >> 32 | 1;
        let zeros = u64::from((x as u32).leading_zeros());
        x <<= zeros;
        let mut bits = 31 - zeros;
        for _ in 0..16 {
            x = (x * x) >> 31;
            let bit = x >> 32;
            x >>= bit;
            bits = bits << 1 | bit;
        }
        // ln(2) in 1/65536
        let drawn = (((32 << 16) - bits) * 45_426) >> 16;
        self.left = (drawn << self.power >> 16).cast_signed();
    }

    fn adapt_interval(&mut self, now: u64) {
        let periods = now.wrapping_sub(self.since) >> VS_SAMPLE_PERIOD;
        if periods == 0 {
            if self.stacks < VS_SAMPLE_STACKS {
                return;
            }
            let next = if self.power == 0 { VS_SAMPLE_FIRST_INTERVAL } else { self.power + 1 };
            self.power = next.min(VS_SAMPLE_LAST_INTERVAL);
        } else if (self.stacks as u64) < periods.saturating_mul(VS_SAMPLE_STACKS as u64 / 4) {
            let fewer = self.power.saturating_sub(usize::try_from(periods).unwrap_or(usize::MAX));
            self.power = if fewer < VS_SAMPLE_FIRST_INTERVAL { 0 } else { fewer };
        }
        (self.since, self.stacks) = (now, 0);
        if self.power > 0 {
            if self.random == 0 {
                self.random = now | 1;
            }
            self.draw_next();
        }
    }

    /// Returns whether the stack of a block is captured: a Poisson process over the bytes of the
    /// thread.
    fn is_sampled(&mut self, bytes: u64) -> bool {
        if self.power > 0 {
            // More is sampled anyway.
            let bytes = bytes.min(1 << 40) + (1 << self.power) / VS_SAMPLE_MIN_SHARE as u64;
            self.left -= bytes.cast_signed();
            if self.left > 0 {
                return false;
            }
            self.draw_next();
        }
        self.stacks += 1;
        true
    }
}

/// Captures the stack of an allocating call, if blocks have stacks and it is sampled. Returns the
/// binary logarithm of the sampling interval, too.
fn capture_stack(
    frame: &Frame,
    thread: &mut ThreadState,
    bytes: u64,
    is_oom: bool,
    now: u64,
) -> (StackRef, usize) {
    let mode = process::control().map_or(0, |control| control.blocks);
    if mode < VS_BLOCKS_SAMPLED || !is_oom && bytes.cast_signed() <= 0 {
        return (StackRef::NONE, 0);
    }
    let mut interval = 0;
    if mode == VS_BLOCKS_SAMPLED && !is_oom {
        let sampling = &mut thread.sampling;
        sampling.adapt_interval(now);
        interval = sampling.power;
        if !sampling.is_sampled(bytes) {
            return (StackRef { flags: VS_SKIPPED, ..StackRef::NONE }, interval);
        }
    }
    (stack::capture(frame, thread), interval)
}

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
    let mut head = emit::head(VS_BLOCK, thread.tid);
    let (stack, interval) = capture_stack(frame, thread, bytes, is_oom, head.at);
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
        flags: stack.flags as u16,
        interval: interval as u8,
        unused: 0,
    };
    if !emit::write(&record) {
        loss::count_tensor();
    }
}
