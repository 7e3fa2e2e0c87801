//! Blocks of allocators, as in `allocators.h`: the arguments at the entry of a function, and what they
//! point to, are all that is needed.

use std::sync::atomic::{AtomicU8, Ordering};

use super::stack::StackRef;
use super::thread::ThreadState;
use super::{emit, loss, stack, thread};
use crate::arch::RESULT_ARGUMENTS;
use crate::area::BLOCK_CALLS;
use crate::process;
use crate::wire::{
    Block, VS_BLOCK, VS_BLOCK_CUPY_ALLOC, VS_BLOCK_CUPY_FREE, VS_BLOCK_RMM_ALLOC,
    VS_BLOCK_RMM_FREE, VS_BLOCK_TORCH, VS_BLOCK_TORCH_OOM, VS_BLOCK_XLA, VS_BLOCKS_SAMPLED,
    VS_SAMPLE_FIRST_INTERVAL, VS_SAMPLE_LAST_INTERVAL, VS_SAMPLE_MIN_SHARE, VS_SAMPLE_PERIOD,
    VS_SAMPLE_STACKS, VS_SKIPPED,
};
use crate::wrapper::Frame;

/// `c10::DeviceType::CUDA`. Other devices report to the same function.
const CUDA_DEVICE: u64 = 1;

/// Members of CuPy's extension types, as in `allocators.h`.
const CUPY_MEMORY_PTR: u64 = 16;
const CUPY_MEMORY_SIZE: u64 = 24;
const CUPY_MEMORY_DEVICE: u64 = 32;
const CUPY_MEMORY_POOL: u64 = 48;
const CUPY_CHUNK_MEMORY: u64 = 24;
const CUPY_CHUNK_OFFSET: u64 = 32;
const CUPY_CHUNK_SIZE: u64 = 40;
/// Bytes of the members of both types.
const CUPY_MEMORY_BYTES: u64 = 56;
const CUPY_CHUNK_BYTES: u64 = 48;
/// More devices than any host has.
const MAX_DEVICES: i32 = 1024;

/// Lengths of `MemoryAllocation` and `MemoryDeallocation`.
const XLA_ALLOCATION: u64 = 16;
const XLA_DEALLOCATION: u64 = 18;

/// A block.
struct BlockCall {
    address: u64,
    /// Signed: negative for a free.
    bytes: u64,
    allocated: u64,
    reserved: u64,
    pool: u64,
    device: i32,
}

enum ReadBlock {
    Read(BlockCall),
    Ignored,
    Unreadable,
}

/// Returns the number of argument registers of a function.
pub(crate) const fn arguments(call: u32) -> usize {
    match call {
        VS_BLOCK_TORCH => 5,
        VS_BLOCK_TORCH_OOM => 4,
        VS_BLOCK_CUPY_ALLOC => 3,
        VS_BLOCK_RMM_ALLOC | VS_BLOCK_RMM_FREE => 3 + RESULT_ARGUMENTS,
        VS_BLOCK_CUPY_FREE => 2,
        _ => 6,
    }
}

fn read_torch(args: [u64; 6], is_oom: bool) -> ReadBlock {
    let [first, second, third, fourth, fifth, _] = args;
    let (address, bytes, allocated, reserved, device) = if is_oom {
        (0, first, second, third, fourth)
    } else {
        (first, second, third, fourth, fifth)
    };
    // `c10::Device` in one register: device type and index, signed bytes. Skip other types and
    // negative indices.
    if device & 0xff != CUDA_DEVICE || device & 0x8000 != 0 {
        return ReadBlock::Ignored;
    }
    let device = (device >> 8 & 0x7f) as i32;
    ReadBlock::Read(BlockCall { address, bytes, allocated, reserved, pool: 0, device })
}

/// Reads a word.
///
/// # Safety
///
/// The address is that of a word that the function reads.
unsafe fn word(address: u64) -> u64 {
    // SAFETY: as the caller guarantees.
    unsafe { (address as *const u64).read_unaligned() }
}

/// Whether members of CuPy's types are where they are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    Unknown = 0,
    Checked = 1,
    Other = 2,
}

/// Layouts of chunks and of memory objects.
static CHUNKS: AtomicU8 = AtomicU8::new(Layout::Unknown as u8);
static MEMORIES: AtomicU8 = AtomicU8::new(Layout::Unknown as u8);

/// Returns whether a layout is as expected, by a check of the first object: those of a later build could
/// have other members, which are not addresses.
fn is_checked(layout: &AtomicU8, check: impl FnOnce() -> bool) -> bool {
    let known = layout.load(Ordering::Relaxed);
    if known != Layout::Unknown as u8 {
        return known == Layout::Checked as u8;
    }
    let is_valid = process::keep_errno(check);
    let found = if is_valid { Layout::Checked } else { Layout::Other };
    layout.store(found as u8, Ordering::Relaxed);
    is_valid
}

/// Returns whether an object is readable, and has a device that can exist.
fn is_memory(memory: u64) -> bool {
    process::is_readable(memory, CUPY_MEMORY_BYTES)
        // SAFETY: readable.
        && (0..MAX_DEVICES).contains(&unsafe { word(memory + CUPY_MEMORY_DEVICE) as i32 })
}

/// `PooledMemory._init(self, chunk, pool)`
fn read_cupy_alloc(args: [u64; 6]) -> ReadBlock {
    let [_, chunk, pool, ..] = args;
    let is_chunk = || {
        process::is_readable(chunk, CUPY_CHUNK_BYTES)
            // SAFETY: readable.
            && is_memory(unsafe { word(chunk + CUPY_CHUNK_MEMORY) })
    };
    if !is_checked(&CHUNKS, is_chunk) {
        return ReadBlock::Unreadable;
    }
    // SAFETY: the function reads the same members of a chunk and of its memory. Their layout was checked.
    unsafe {
        let memory = word(chunk + CUPY_CHUNK_MEMORY);
        let start = word(memory + CUPY_MEMORY_PTR);
        ReadBlock::Read(BlockCall {
            address: start.wrapping_add(word(chunk + CUPY_CHUNK_OFFSET)),
            bytes: word(chunk + CUPY_CHUNK_SIZE),
            allocated: 0,
            reserved: 0,
            pool,
            device: word(memory + CUPY_MEMORY_DEVICE) as i32,
        })
    }
}

/// `PooledMemory.free(self)`: without effect if there is no block.
fn read_cupy_free(args: [u64; 6]) -> ReadBlock {
    let [memory, ..] = args;
    if !is_checked(&MEMORIES, || is_memory(memory)) {
        return ReadBlock::Unreadable;
    }
    // SAFETY: members of the object whose method is called. Their layout was checked.
    unsafe {
        let address = word(memory + CUPY_MEMORY_PTR);
        if address == 0 {
            return ReadBlock::Ignored;
        }
        ReadBlock::Read(BlockCall {
            address,
            bytes: word(memory + CUPY_MEMORY_SIZE).wrapping_neg(),
            allocated: 0,
            reserved: 0,
            pool: word(memory + CUPY_MEMORY_POOL),
            device: word(memory + CUPY_MEMORY_DEVICE) as i32,
        })
    }
}

/// `pool_memory_resource_impl::allocate_from_block(this, const block &from, size)` and
/// `free_block(this, address, size)`, after the address of the result. A block begins with its address.
fn read_rmm(args: [u64; 6], allocates: bool) -> ReadBlock {
    let argument = |index: usize| args.get(RESULT_ARGUMENTS + index).copied().unwrap_or(0);
    let (pool, from, size) = (argument(0), argument(1), argument(2));
    let (address, bytes) = if allocates {
        // SAFETY: a reference to a block, which the function reads.
        (unsafe { word(from) }, size)
    } else {
        (from, size.wrapping_neg())
    };
    ReadBlock::Read(BlockCall { address, bytes, allocated: 0, reserved: 0, pool, device: -1 })
}

/// `BFCAllocator::AddTraceMe(this, name, address, requested bytes, bytes)`; the name is two words,
/// length and address.
fn read_xla(args: [u64; 6]) -> ReadBlock {
    let [pool, length, _, address, _, bytes] = args;
    let bytes = match length {
        XLA_ALLOCATION => bytes,
        XLA_DEALLOCATION => bytes.wrapping_neg(),
        _ => return ReadBlock::Ignored,
    };
    ReadBlock::Read(BlockCall { address, bytes, allocated: 0, reserved: 0, pool, device: -1 })
}

fn read(call: u32, args: [u64; 6]) -> ReadBlock {
    match call {
        VS_BLOCK_CUPY_ALLOC => read_cupy_alloc(args),
        VS_BLOCK_CUPY_FREE => read_cupy_free(args),
        VS_BLOCK_XLA => read_xla(args),
        VS_BLOCK_RMM_ALLOC | VS_BLOCK_RMM_FREE => read_rmm(args, call == VS_BLOCK_RMM_ALLOC),
        _ => read_torch(args, call == VS_BLOCK_TORCH_OOM),
    }
}

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

/// Records one block. `function` is the number of a function of an allocator.
pub(crate) fn enter(frame: &Frame, function: usize) {
    let call = (function % BLOCK_CALLS) as u32;
    let block = match read(call, frame.args) {
        ReadBlock::Read(block) => block,
        ReadBlock::Ignored => return,
        ReadBlock::Unreadable => return loss::count_tensor(),
    };
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
    let is_oom = call == VS_BLOCK_TORCH_OOM;
    let (stack, interval) = capture_stack(frame, thread, block.bytes, is_oom, head.at);
    head.hook = call as u16;
    let BlockCall { address, bytes, allocated, reserved, pool, device } = block;
    let record = Block {
        head,
        address,
        bytes,
        allocated,
        reserved,
        stack: stack.stack,
        python: stack.python,
        pool,
        device,
        flags: stack.flags as u16,
        interval: interval as u8,
        unused: 0,
    };
    if !emit::write(&record) {
        loss::count_tensor();
    }
}
