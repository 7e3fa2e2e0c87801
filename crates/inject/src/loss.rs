//! Records that are lost: by class, and with the bytes of allocations, by the rules of `loss.h`.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::process;
use crate::wire::{
    VS_CLASS_ALLOCATE, VS_CLASS_COPY, VS_CLASS_FREE, VS_CLASS_LAUNCH, VS_CLASS_OBJECT,
    VS_MEASURE_ARRAY, VS_MEASURE_MIPMAPPED, VS_MEASURE_PITCH, VS_NONE, VS_OBJECT, VS_UNKNOWN_BYTES,
    VS_ALL_CHANNELS, WireHook,
};
use crate::wrapper::Frame;

const LAYERED: u32 = 5;
const EMPTY: u32 = 192;
const MAX_LEVELS: u32 = 32;

/// Counts a record of a class that was not delivered.
pub(crate) fn count(class: u32, bytes: u64, result: i32) {
    // The ring of a trace that has ended is full sooner or later.
    process::stop_if_closed();
    let Some(area) = process::area() else { return };
    let losses = &area.header.losses;
    let counter = match class {
        _ if result != 0 => &losses.failures,
        VS_CLASS_ALLOCATE => {
            losses.allocated_bytes.fetch_add(bytes, Ordering::Relaxed);
            &losses.allocations
        }
        VS_CLASS_FREE => &losses.frees,
        VS_CLASS_COPY => &losses.copies,
        VS_CLASS_OBJECT => &losses.objects,
        VS_CLASS_LAUNCH => &losses.launches,
        _ => &losses.other,
    };
    add(counter, 1);
}

/// Counts copies that were not added up.
pub(crate) fn count_copies(copies: u64) {
    if let Some(area) = process::area() {
        add(&area.header.losses.copies, copies);
    }
}

/// Counts a stack that was not delivered.
pub(crate) fn count_stack() {
    if let Some(area) = process::area() {
        add(&area.header.losses.stacks, 1);
    }
}

/// Counts a block of PyTorch's cache whose record was not delivered.
pub(crate) fn count_tensor() {
    if let Some(area) = process::area() {
        add(&area.header.losses.tensors, 1);
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
    // The collector reads the counters when the total has changed, so it changes last.
    if let Some(area) = process::area() {
        area.header.losses.total.fetch_add(count, Ordering::Release);
    }
}

/// Counts a call without a record. One that concerns memory and also makes an object counts twice.
pub(crate) fn count_call(hook: &WireHook, bytes: u64, result: i32) {
    let class = u32::from(hook.loss_class);
    if result == 0 && class != VS_CLASS_OBJECT && u32::from(hook.flags) & VS_OBJECT != 0 {
        count(VS_CLASS_OBJECT, 0, 0);
    }
    count(class, bytes, result);
}

/// Counts a call that will not be seen at its return, as if it succeeded.
pub(crate) fn count_unseen(frame: &Frame, hook: &WireHook) {
    let bytes = bytes(frame, hook, false);
    if !has_no_effect(frame, hook, bytes, 0) {
        count_call(hook, bytes, 0);
    }
}

/// Bytes that a call requested, and not fewer than it gets. Before the call returned, the length of
/// rows is not known, and structures are not read: their pointers are not checked by the driver yet.
pub(crate) fn bytes(frame: &Frame, hook: &WireHook, returned: bool) -> u64 {
    if u32::from(hook.loss_class) != VS_CLASS_ALLOCATE {
        return 0;
    }
    let measure = u32::from(hook.measure);
    if measure >= VS_MEASURE_ARRAY {
        let descriptor = frame.argument(hook.descriptor_argument);
        if !returned || descriptor == 0 {
            return VS_UNKNOWN_BYTES as u64;
        }
        let levels = frame.argument(hook.size_factor) as u32;
        return array_bytes(descriptor, measure, levels);
    }
    let mut size = frame.argument(hook.size_argument);
    if measure == VS_MEASURE_PITCH {
        let pitch = if returned { out_value(frame, hook, 1) } else { None };
        // The driver makes rows longer, in steps of 512 bytes.
        size = pitch.filter(|pitch| *pitch != 0).unwrap_or((size.saturating_add(511)) & !511);
    }
    if usize::from(hook.size_factor) != VS_NONE {
        size = size.wrapping_mul(frame.argument(hook.size_factor));
    }
    size
}

/// Whether a successful call did nothing: it freed a null pointer, or requested no bytes and got
/// none. The decoder ignores such calls, so they are not lost either.
pub(crate) fn has_no_effect(frame: &Frame, hook: &WireHook, bytes: u64, out: u64) -> bool {
    match u32::from(hook.loss_class) {
        VS_CLASS_FREE => frame.args[0] == 0,
        VS_CLASS_ALLOCATE => usize::from(hook.out_argument[0]) != VS_NONE && bytes == 0 && out == 0,
        _ => false,
    }
}

/// An out value of a call that succeeded; `None` where the row has none, or its pointer is null.
#[inline]
pub(crate) fn out_value(frame: &Frame, hook: &WireHook, which: usize) -> Option<u64> {
    let (argument, bytes) = (*hook.out_argument.get(which)?, *hook.out_bytes.get(which)?);
    let pointer = frame.argument(argument);
    if pointer == 0 {
        return None;
    }
    // SAFETY: the driver wrote the value there and reported success.
    Some(unsafe {
        if bytes == 4 {
            u64::from((pointer as *const u32).read_unaligned())
        } else {
            (pointer as *const u64).read_unaligned()
        }
    })
}

/// Bytes of the array that a structure of the program describes, which the driver has accepted.
fn array_bytes(from: u64, measure: u32, levels: u32) -> u64 {
    let word = |offset: u64| {
        // SAFETY: the driver read the structure in this call and reported success.
        unsafe { ((from + offset) as *const u64).read_unaligned() }
    };
    let half = |offset: u64| {
        // SAFETY: as above.
        unsafe { ((from + offset) as *const u32).read_unaligned() }
    };
    let (depth, format, channels, flags) = if measure == VS_MEASURE_ARRAY {
        (0, half(16), half(20), 0)
    } else {
        (word(16), half(24), half(28), half(32))
    };
    if flags & EMPTY != 0 {
        return 0;
    }
    let element = process::element_bytes(format as u8);
    let mut bytes = u64::from(element) & !(VS_ALL_CHANNELS as u64);
    if usize::from(element) & VS_ALL_CHANNELS == 0 {
        bytes = bytes.wrapping_mul(u64::from(channels.max(1)));
    }
    let levels = if measure == VS_MEASURE_MIPMAPPED { levels.clamp(1, MAX_LEVELS) } else { 1 };
    (0..levels).fold(0_u64, |sum, level| {
        let shrunk = |size: u64, by: u32| (size >> by).max(1);
        let depth = shrunk(depth, if flags & LAYERED != 0 { 0 } else { level });
        let area = shrunk(word(0), level).wrapping_mul(shrunk(word(8), level));
        sum.wrapping_add(bytes.wrapping_mul(area).wrapping_mul(depth))
    })
}
