//! Lost records, counted by class and with the sizes of allocations, as in `loss.h`.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::process;
use crate::wire::{
    VS_ALL_CHANNELS, VS_CLASS_ALLOCATE, VS_CLASS_COPY, VS_CLASS_FREE, VS_CLASS_LAUNCH,
    VS_CLASS_OBJECT, VS_MEASURE_ARRAY, VS_MEASURE_MIPMAPPED, VS_MEASURE_PITCH, VS_NONE, VS_OBJECT,
    VS_UNKNOWN_BYTES, WireHook,
};
use crate::wrapper::Frame;

/// Flags of `CUDA_ARRAY3D_DESCRIPTOR`: layered or cube map; no memory until it is mapped.
const ARRAY_LAYERED: u32 = 5;
const ARRAY_EMPTY: u32 = 192;
/// Maximum number of mip levels.
const MAX_LEVELS: u32 = 32;

/// Counts a lost record of a class.
pub(crate) fn count(class: u32, bytes: u64, result: i32) {
    // After the end of the trace, the ring fills and is never read.
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

/// Counts copies that are missing in the counters.
pub(crate) fn count_copies(copies: u64) {
    if let Some(area) = process::area() {
        add(&area.header.losses.copies, copies);
    }
}

/// Counts a lost stack.
pub(crate) fn count_stack() {
    if let Some(area) = process::area() {
        add(&area.header.losses.stacks, 1);
    }
}

/// Counts a lost record of a block of PyTorch's caching allocator.
pub(crate) fn count_tensor() {
    if let Some(area) = process::area() {
        add(&area.header.losses.tensors, 1);
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
    // The collector reads the counters when the total has changed, so it is updated last.
    if let Some(area) = process::area() {
        area.header.losses.total.fetch_add(count, Ordering::Release);
    }
}

/// Counts a call that is not recorded. One that affects memory and also creates or destroys an
/// object counts twice: by its class and as an object.
pub(crate) fn count_call(hook: &WireHook, bytes: u64, result: i32) {
    let class = u32::from(hook.loss_class);
    if result == 0 && class != VS_CLASS_OBJECT && u32::from(hook.flags) & VS_OBJECT != 0 {
        count(VS_CLASS_OBJECT, 0, 0);
    }
    count(class, bytes, result);
}

/// Counts a call whose return is not seen as lost, assuming that it will succeed.
pub(crate) fn count_dropped(frame: &Frame, hook: &WireHook) {
    let bytes = bytes(frame, hook, false);
    if !has_no_effect(frame, hook, bytes, 0) {
        count_call(hook, bytes, 0);
    }
}

/// Returns an upper bound of the bytes that a successful call allocates. Before the call has
/// returned, the pitch is unknown and structures are not read, because the driver did not check
/// their pointers.
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
        let pitch = if returned { read_out(frame, hook, 1) } else { None };
        // The driver pads rows to multiples of 512 bytes.
        size = pitch.filter(|pitch| *pitch != 0).unwrap_or((size.saturating_add(511)) & !511);
    }
    if usize::from(hook.size_factor) != VS_NONE {
        size = size.wrapping_mul(frame.argument(hook.size_factor));
    }
    size
}

/// Returns whether a successful call had no effect: it freed a null pointer, or requested no bytes
/// and got no memory. The decoder ignores such a call, so it does not count as lost.
pub(crate) fn has_no_effect(frame: &Frame, hook: &WireHook, bytes: u64, out: u64) -> bool {
    match u32::from(hook.loss_class) {
        VS_CLASS_FREE => frame.args[0] == 0,
        VS_CLASS_ALLOCATE => usize::from(hook.out_argument[0]) != VS_NONE && bytes == 0 && out == 0,
        _ => false,
    }
}

/// Reads an out value of a call that succeeded; `None` if the row has none or its pointer is null.
#[inline]
pub(crate) fn read_out(frame: &Frame, hook: &WireHook, index: usize) -> Option<u64> {
    let (argument, bytes) = (*hook.out_argument.get(index)?, *hook.out_bytes.get(index)?);
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

/// Returns the size of the array that a descriptor describes. The driver has accepted the
/// descriptor.
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
    if flags & ARRAY_EMPTY != 0 {
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
        let depth = shrunk(depth, if flags & ARRAY_LAYERED != 0 { 0 } else { level });
        let area = shrunk(word(0), level).wrapping_mul(shrunk(word(8), level));
        sum.wrapping_add(bytes.wrapping_mul(area).wrapping_mul(depth))
    })
}
