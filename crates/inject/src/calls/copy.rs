//! Copies and memsets, counted by direction and mode as in `copy.h`.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::graph::Captured;
use super::thread::ThreadState;
use super::{emit, graph, loss};
use crate::area::CopyEntry;
use crate::process;
use crate::wire::{
    Copies, VS_ARRAY, VS_BANDWIDTHS, VS_D2D, VS_D2H, VS_H2D, VS_H2H, VS_MEASURE_3D,
    VS_MEASURE_ARGUMENT, VS_MEASURE_BATCH, VS_MEASURE_VOLUMES, VS_NONE, VS_PEER, VS_REGION_LOG2,
    VS_UNIFIED, WireHook,
};
use crate::wrapper::Frame;

const MEMORY_HOST: u32 = 1;
const MEMORY_ARRAY: u32 = 3;
const MEMORY_UNIFIED: u32 = 4;

/// Copies of a batch that are read; further ones count as lost.
const BATCH: u64 = 64;
/// Entries of the table that are tried for a key.
const PROBES: usize = 64;
/// Maximum rounds of waiting for an entry that another thread initializes.
const SPINS: u32 = 1000;

const FREE: u32 = 0;
const BUSY: u32 = 1;
const USED: u32 = 2;

/// One copy.
struct Part {
    bytes: u64,
    nanos: u64,
    to: u64,
    from: u64,
    direction: u32,
    asynchronous: bool,
}

/// Reads a word of a structure that the driver read in this call and accepted.
fn word(address: u64) -> u64 {
    // SAFETY: the call succeeded, so the driver could read it.
    unsafe { (address as *const u64).read_unaligned() }
}

/// Counts a copy that succeeded.
pub(crate) fn count(frame: &Frame, thread: &ThreadState, hook: &WireHook) {
    let asynchronous = hook.asynchronous != 0;
    // Captured into a graph: nothing is copied yet.
    if asynchronous {
        match graph::captured_as(frame.argument(hook.stream_argument), || thread.tid) {
            Captured::No => {}
            Captured::Yes => return,
            Captured::Maybe => return loss::count_copies(1),
        }
    }
    let measure = u32::from(hook.measure);
    if measure == VS_MEASURE_BATCH {
        return count_batch(frame);
    }
    if measure == VS_MEASURE_VOLUMES {
        return count_volumes(frame);
    }
    let mut part = Part {
        bytes: 0,
        nanos: emit::now().saturating_sub(frame.entered),
        to: frame.args[0],
        from: frame.args[1],
        direction: hook.direction.into(),
        asynchronous,
    };
    if measure == VS_MEASURE_ARGUMENT {
        let elements = frame.argument(hook.size_argument);
        part.bytes = elements.wrapping_mul(hook.element.into());
        if usize::from(hook.size_factor) != VS_NONE {
            part.bytes = part.bytes.wrapping_mul(frame.argument(hook.size_factor));
        }
    } else if frame.args[0] == 0 {
        return loss::count_copies(1);
    } else {
        read_descriptor(&mut part, frame.args[0], measure == VS_MEASURE_3D);
    }
    add(&part);
}

/// Reads `CUDA_MEMCPY2D` or `CUDA_MEMCPY3D`, whose sides have the memory type, then a host pointer
/// and a device pointer.
fn read_descriptor(part: &mut Part, pointer: u64, is_deep: bool) {
    let [source, target, extent] =
        if is_deep { [32, 120, 176] } else { [16, 72, 112] }.map(|offset| pointer + offset);
    let (from, to) = (word(source) as u32, word(target) as u32);
    part.bytes = word(extent).wrapping_mul(word(extent + 8));
    if is_deep {
        part.bytes = part.bytes.wrapping_mul(word(extent + 16));
    }
    let side = |side: u64, kind: u32| word(side + if kind == MEMORY_HOST { 8 } else { 16 });
    (part.from, part.to) = (side(source, from), side(target, to));
    if part.direction != VS_PEER {
        part.direction = direction_between(from, to);
    }
}

/// Returns the direction of a copy between two memory types.
const fn direction_between(from: u32, to: u32) -> u32 {
    match (from, to) {
        (MEMORY_ARRAY, _) | (_, MEMORY_ARRAY) => VS_ARRAY,
        (MEMORY_UNIFIED, _) | (_, MEMORY_UNIFIED) => VS_UNIFIED,
        (MEMORY_HOST, MEMORY_HOST) => VS_H2H,
        (MEMORY_HOST, _) => VS_H2D,
        (_, MEMORY_HOST) => VS_D2H,
        _ => VS_D2D,
    }
}

/// Counts each copy of a batch.
fn count_batch(frame: &Frame) {
    let [targets, sources, sizes, count, ..] = frame.args;
    if [targets, sources, sizes].contains(&0) {
        return loss::count_copies(count);
    }
    for index in 0..count.min(BATCH) {
        let at = |list: u64| word(list + index * 8);
        let (to, from, bytes) = (at(targets), at(sources), at(sizes));
        let direction = VS_UNIFIED;
        add(&Part { bytes, nanos: 0, to, from, direction, asynchronous: true });
    }
    if count > BATCH {
        loss::count_copies(count - BATCH);
    }
}

/// Type of an operand of a `CUDA_MEMCPY3D_BATCH_OP`, and the size of that structure.
const OPERAND_POINTER: u32 = 1;
const VOLUME_BYTES: u64 = 112;

/// Counts each copy of a batch of volumes: two operands of 40 bytes with type and pointer, and the
/// extent. The extent of arrays is in elements, whose size is not in the call.
fn count_volumes(frame: &Frame) {
    let [count, list, ..] = frame.args;
    if list == 0 {
        return loss::count_copies(count);
    }
    for op in (0..count.min(BATCH)).map(|index| list + index * VOLUME_BYTES) {
        let (source, target) = (word(op) as u32, word(op + 40) as u32);
        if (source, target) != (OPERAND_POINTER, OPERAND_POINTER) {
            loss::count_copies(1);
            continue;
        }
        let (to, from, direction) = (word(op + 48), word(op + 8), VS_UNIFIED);
        let bytes = word(op + 80).wrapping_mul(word(op + 88)).wrapping_mul(word(op + 96));
        add(&Part { bytes, nanos: 0, to, from, direction, asynchronous: true });
    }
    if count > BATCH {
        loss::count_copies(count - BATCH);
    }
}

fn counter(field: *mut u64) -> &'static AtomicU64 {
    // SAFETY: a field of an entry of the mapped table, 8-byte aligned, used atomically everywhere.
    unsafe { AtomicU64::from_ptr(field) }
}

fn add(part: &Part) {
    let Some(sum) = find(part) else { return loss::count_copies(1) };
    // SAFETY: fields of an entry of the table.
    unsafe {
        counter(&raw mut (*sum).to).store(part.to, Ordering::Relaxed);
        counter(&raw mut (*sum).from).store(part.from, Ordering::Relaxed);
        counter(&raw mut (*sum).bytes).fetch_add(part.bytes, Ordering::Relaxed);
        if !part.asynchronous {
            counter(&raw mut (*sum).nanos).fetch_add(part.nanos, Ordering::Relaxed);
            let class = bandwidth_class(part.bytes, part.nanos) % VS_BANDWIDTHS;
            let classes = (&raw mut (*sum).bandwidths).cast::<u64>();
            counter(classes.add(class)).fetch_add(1, Ordering::Relaxed);
        }
        counter(&raw mut (*sum).calls).fetch_add(1, Ordering::Release);
    }
}

/// Returns the counters of a copy; `None` if the table is full.
fn find(part: &Part) -> Option<*mut Copies> {
    let (area, entries) = (process::area()?, process::control()?.sizes.copies as usize);
    if entries == 0 {
        return None;
    }
    let is_unified = part.direction == VS_UNIFIED;
    let region = |pointer: u64| if is_unified { (pointer >> VS_REGION_LOG2) + 1 } else { 0 };
    let (to, from) = (region(part.to), region(part.from));
    let (direction, asynchronous) = (part.direction as u8, u8::from(part.asynchronous));
    let kind = u64::from(direction) << 1 | u64::from(asynchronous);
    let hash = (to ^ from.rotate_left(24) ^ kind << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // SAFETY: every area has the table at this offset.
    let table = unsafe { area.base.add(process::offsets()?.copies) }.cast::<CopyEntry>();
    for probe in 0..PROBES.min(entries) {
        let index = ((hash >> 20) as usize).wrapping_add(probe) & (entries - 1);
        // SAFETY: the number of entries is a power of two.
        let entry = unsafe { table.add(index) };
        // SAFETY: the entry is in the mapped table.
        let state = unsafe { &(*entry).state };
        if state.compare_exchange(FREE, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            // SAFETY: the state makes this thread the only one that writes the key.
            unsafe {
                (*entry).direction = direction;
                (*entry).asynchronous = asynchronous;
                (*entry).to = to;
                (*entry).from = from;
            }
            state.store(USED, Ordering::Release);
        } else if !is_set_up(state) {
            return None;
        }
        // SAFETY: the key of an entry in use never changes.
        let is_same = unsafe {
            (*entry).direction == direction
                && (*entry).asynchronous == asynchronous
                && (*entry).to == to
                && (*entry).from == from
        };
        if is_same {
            // SAFETY: the entry is in the mapped table.
            return Some(unsafe { &raw mut (*entry).sum });
        }
    }
    None
}

/// Waits until another thread has initialized an entry. Returns false if it takes too long.
fn is_set_up(state: &AtomicU32) -> bool {
    (0..SPINS).any(|_| {
        std::hint::spin_loop();
        state.load(Ordering::Acquire) == USED
    })
}

/// Returns the bandwidth class, quarters of a log2 as in `bandwidth_of` of the engine; 0 below 1
/// KiB/s.
fn bandwidth_class(bytes: u64, nanos: u64) -> usize {
    let nanos = nanos.max(1);
    let rate = if bytes < 1 << 34 {
        bytes.wrapping_mul(1_000_000_000) / nanos
    } else {
        // In units of 64 KiB, as the product would overflow.
        ((bytes >> 16).wrapping_mul(1_000_000_000) / nanos) << 16
    };
    if rate < 1024 {
        return 0;
    }
    let octave = rate.ilog2();
    let class = 1 + (octave - 10) * 4 + (rate >> (octave - 2) & 3) as u32;
    (class as usize).min(VS_BANDWIDTHS - 1)
}
