//! Launches, counted per kernel as in `launch.h`.
//!
//! Most launches only change counters at their entry. The result is checked only while a kernel is
//! new, when its shape changes, and once in [`CHECK_EVERY`] launches.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::graph::Captured;
use super::{emit, graph, loss, thread};
use crate::area::{LaunchEntry, Row, launch_key};
use crate::process;
use crate::wire::{
    Call, Launches, Shape, VS_ACTION_LAUNCH, VS_ACTION_LAUNCH_CONFIG, VS_ACTION_LAUNCH_UNSHAPED,
    VS_CALL, VS_CLASS_LAUNCH, VS_CLASS_OTHER, VS_SHAPES,
};
use crate::wrapper::{Frame, PASS, RETURN};

/// Consecutive successful launches after which a kernel is trusted.
const TRUSTED_AFTER: u32 = 16;
/// A trusted kernel is checked once in this many launches; a power of two.
const CHECK_EVERY: u64 = 64;
/// Entries of the table that are tried for a key.
const PROBES: usize = 64;

/// A counter in the shared table.
fn counter(field: *mut u64) -> &'static AtomicU64 {
    // SAFETY: a field of an entry of the mapped table, 8-byte aligned, used atomically everywhere.
    unsafe { AtomicU64::from_ptr(field) }
}

fn small_counter(field: *mut u32) -> &'static AtomicU32 {
    // SAFETY: as above, with 4 bytes.
    unsafe { AtomicU32::from_ptr(field) }
}

/// Returns the counters of a key; `None` if the table is full.
fn find(key: u64) -> Option<*mut Launches> {
    let (area, entries) = (process::area()?, process::control()?.sizes.launches as usize);
    if entries == 0 {
        return None;
    }
    // SAFETY: every area has the table at this offset.
    let table = unsafe { area.base.add(process::offsets()?.launches) }.cast::<LaunchEntry>();
    let hash = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize;
    for probe in 0..PROBES.min(entries) {
        // SAFETY: the number of entries is a power of two.
        let entry = unsafe { table.add(hash.wrapping_add(probe) & (entries - 1)) };
        // SAFETY: the entry is in the mapped table.
        let (own, sum) = unsafe { (&(*entry).key, &raw mut (*entry).sum) };
        let found = own.load(Ordering::Relaxed);
        if found == key {
            return Some(sum);
        }
        if found == 0 {
            match own.compare_exchange(0, key, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(sum),
                Err(other) if other == key => return Some(sum),
                Err(_) => {}
            }
        }
    }
    None
}

/// Returns the launches under a kernel's handle: calls, captured, checked, failed.
pub(crate) fn counts(kernel: u64) -> [u64; 4] {
    let Some(sum) = find(launch_key(kernel, false)) else { return [0; 4] };
    // SAFETY: fields of an entry of the table.
    unsafe {
        [
            &raw mut (*sum).calls,
            &raw mut (*sum).captured,
            &raw mut (*sum).checked,
            &raw mut (*sum).failed,
        ]
    }
    .map(|field| counter(field).load(Ordering::Relaxed))
}

/// Returns the handle of what a call launches.
fn target(frame: &Frame, row: &Row) -> u64 {
    let has_config = u32::from(row.hook.action) == VS_ACTION_LAUNCH_CONFIG;
    if has_config { frame.args[1] } else { frame.args[0] }
}

/// Reads the shape and the stream of a launch; `None` if the call has no valid structure. The shape
/// is unknown if it was set before, by other calls.
fn read(frame: &Frame, row: &Row) -> Option<(Option<Shape>, u64)> {
    let args = frame.args;
    if u32::from(row.hook.action) == VS_ACTION_LAUNCH_UNSHAPED {
        return Some((None, frame.argument(row.hook.stream_argument)));
    }
    if u32::from(row.hook.action) == VS_ACTION_LAUNCH {
        // SAFETY: these functions have five more arguments.
        let more = [0, 1, 2].map(|index| unsafe { frame.late_argument(index) });
        let shape = Shape {
            grid: [args[1] as u32, args[2] as u32, args[3] as u32],
            block: [args[4] as u32, args[5] as u32, more[0] as u32],
            shared_bytes: more[1] as u32,
            count: 1,
        };
        return Some((Some(shape), more[2]));
    }
    // CUlaunchConfig: grid, block, shared bytes, padding, stream.
    let config = args[0] as *const u32;
    if config.is_null() || !config.is_aligned() {
        return None;
    }
    // SAFETY: the driver reads the structure next, without a check of its own.
    let (words, stream) = unsafe {
        let words: [u32; 7] = config.cast::<[u32; 7]>().read();
        (words, config.byte_add(32).cast::<u64>().read_unaligned())
    };
    Some((Some(shape_of(words)), stream))
}

/// Grid, block and shared bytes.
const fn shape_of([gx, gy, gz, bx, by, bz, shared_bytes]: [u32; 7]) -> Shape {
    Shape { grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes, count: 1 }
}

/// `CUDA_LAUNCH_PARAMS`: one launch of a list.
#[derive(Clone, Copy)]
#[repr(C)]
struct ListedLaunch {
    function: u64,
    shape: [u32; 7],
    stream: u64,
    parameters: u64,
}

/// Counts each launch of a list. Their result is not checked.
pub(crate) fn enter_list(frame: &Frame) -> u32 {
    let list = frame.args[0] as *const ListedLaunch;
    for index in 0..frame.args[1] as u32 as usize {
        if list.is_null() {
            loss::count(VS_CLASS_LAUNCH, 0, 0);
            continue;
        }
        // SAFETY: the driver reads the list next, without a check of its own.
        let launch = unsafe { list.add(index).read_unaligned() };
        let Some(sum) = find(launch_key(launch.function, false)) else {
            loss::count(VS_CLASS_LAUNCH, 0, 0);
            continue;
        };
        // SAFETY: fields of an entry of the table.
        let (calls, captured) =
            unsafe { (counter(&raw mut (*sum).calls), counter(&raw mut (*sum).captured)) };
        calls.fetch_add(1, Ordering::Relaxed);
        match graph::captured_as(launch.stream, tid) {
            Captured::No => {}
            Captured::Yes => _ = captured.fetch_add(1, Ordering::Relaxed),
            Captured::Maybe => {
                captured.fetch_add(1, Ordering::Relaxed);
                loss::count(VS_CLASS_LAUNCH, 0, 0);
            }
        }
        count_shape(sum, &shape_of(launch.shape));
    }
    PASS
}

fn tid() -> u32 {
    thread::own().map_or(0, |thread| thread.tid)
}

/// Counts a launch at its entry. Returns whether its result is checked.
pub(crate) fn enter(frame: &mut Frame, row: &Row) -> u32 {
    let launch = read(frame, row);
    if launch.is_none() && graph::is_capturing() {
        // Without its stream, it is unknown whether it is launched or becomes a node.
        loss::count(VS_CLASS_LAUNCH, 0, 0);
        return PASS;
    }
    let Some(sum) = find(launch_key(target(frame, row), false)) else {
        loss::count(VS_CLASS_LAUNCH, 0, 0);
        return PASS;
    };
    // SAFETY: fields of an entry of the table.
    let (calls, captured_calls, ok_streak, other) = unsafe {
        (
            counter(&raw mut (*sum).calls),
            counter(&raw mut (*sum).captured),
            small_counter(&raw mut (*sum).ok_streak),
            small_counter(&raw mut (*sum).other),
        )
    };
    let before = calls.fetch_add(1, Ordering::Relaxed);
    let captured = launch.map_or(Captured::No, |(_, stream)| graph::captured_as(stream, tid));
    if captured == Captured::Maybe {
        loss::count(VS_CLASS_LAUNCH, 0, 0);
    }
    let is_captured = captured != Captured::No;
    let is_new_shape = match &launch {
        Some((Some(shape), _)) => count_shape(sum, shape),
        Some((None, _)) | None => {
            other.fetch_add(1, Ordering::Relaxed);
            true
        }
    };
    let check_all = process::control().is_some_and(|control| control.check_every_launch != 0);
    let is_trusted = ok_streak.load(Ordering::Relaxed) >= TRUSTED_AFTER;
    if !check_all && !is_new_shape && is_trusted && before & (CHECK_EVERY - 1) != 0 {
        if is_captured {
            captured_calls.fetch_add(1, Ordering::Relaxed);
        }
        return PASS;
    }
    frame.level = is_captured.into();
    frame.set_stack_words(row.stack_words);
    RETURN
}

/// Checks the result of a launch.
pub(crate) fn leave(frame: &Frame, row: &Row, result: i32) {
    let target = target(frame, row);
    let Some(sum) = find(launch_key(target, false)) else { return };
    // SAFETY: fields of an entry of the table.
    let (captured, checked, failed, ok_streak) = unsafe {
        (
            counter(&raw mut (*sum).captured),
            counter(&raw mut (*sum).checked),
            counter(&raw mut (*sum).failed),
            small_counter(&raw mut (*sum).ok_streak),
        )
    };
    checked.fetch_add(1, Ordering::Relaxed);
    if result == 0 {
        ok_streak.fetch_add(1, Ordering::Relaxed);
        captured.fetch_add(frame.level, Ordering::Relaxed);
        return;
    }
    ok_streak.store(0, Ordering::Relaxed);
    failed.fetch_add(1, Ordering::Relaxed);
    let mut head = emit::head(VS_CALL, tid());
    (head.hook, head.result) = (frame.hook as u16, result);
    let record = Call {
        head,
        entered: head.at,
        context: 0,
        args: [target, 0, 0, 0, 0, 0],
        outs: [0; 2],
        device: 0,
        flags: 0,
        stack: 0,
        python: 0,
    };
    if !emit::write(&record) {
        loss::count(VS_CLASS_OTHER, 0, result);
    }
}

/// Counts the launch of a graph, whose result is known.
pub(crate) fn count_graph(exec: u64, result: i32) {
    let Some(sum) = find(launch_key(exec, true)) else {
        loss::count(VS_CLASS_LAUNCH, 0, 0);
        return;
    };
    // SAFETY: fields of an entry of the table.
    let (calls, checked, failed) = unsafe {
        (
            counter(&raw mut (*sum).calls),
            counter(&raw mut (*sum).checked),
            counter(&raw mut (*sum).failed),
        )
    };
    calls.fetch_add(1, Ordering::Relaxed);
    checked.fetch_add(1, Ordering::Relaxed);
    failed.fetch_add(u64::from(result != 0), Ordering::Relaxed);
}

fn is_same(one: &Shape, other: &Shape) -> bool {
    (one.grid, one.block, one.shared_bytes) == (other.grid, other.block, other.shared_bytes)
}

/// Counts a shape; returns whether it is new. The shapes have one writer at a time: a second thread
/// counts its launch as `other` instead of waiting.
fn count_shape(sum: *mut Launches, shape: &Shape) -> bool {
    // SAFETY: fields of an entry of the table.
    let (busy, other) =
        unsafe { (small_counter(&raw mut (*sum).busy), small_counter(&raw mut (*sum).other)) };
    if busy.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
        other.fetch_add(1, Ordering::Relaxed);
        return false;
    }
    // SAFETY: the busy flag makes this thread the only one that uses the shapes.
    let (shapes, last) = unsafe { (&mut (*sum).shapes, &mut (*sum).last) };
    let is_new = find_shape(shapes, last, other, shape);
    busy.store(0, Ordering::Release);
    is_new
}

/// Counts a shape; returns whether it is new. A new one replaces the rarest shape, whose count
/// moves to `other`.
fn find_shape(
    shapes: &mut [Shape; VS_SHAPES],
    last: &mut u32,
    other: &AtomicU32,
    shape: &Shape,
) -> bool {
    let recent = &mut shapes[*last as usize % VS_SHAPES];
    if recent.count > 0 && is_same(recent, shape) {
        recent.count = recent.count.wrapping_add(1);
        return false;
    }
    let mut rarest = 0;
    for index in 0..VS_SHAPES {
        if shapes[index].count > 0 && is_same(&shapes[index], shape) {
            shapes[index].count = shapes[index].count.wrapping_add(1);
            *last = index as u32;
            return false;
        }
        if shapes[index].count < shapes[rarest].count {
            rarest = index;
        }
    }
    other.fetch_add(shapes[rarest].count, Ordering::Relaxed);
    shapes[rarest] = Shape { count: 1, ..*shape };
    *last = rarest as u32;
    true
}
