//! A limit on the memory of one input. The fuzzer's own limit on single allocations needs a
//! sanitizer.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum memory of one input. The largest bound of a reader is the body of one message of a
/// recording: 256 MiB, compressed and uncompressed.
const MAX_BYTES: usize = 640 << 20;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static START: AtomicUsize = AtomicUsize::new(0);

/// Counts memory from here on.
pub(crate) fn start_input() {
    START.store(LIVE.load(Ordering::Relaxed), Ordering::Relaxed);
}

struct Limited;

#[global_allocator]
static ALLOCATOR: Limited = Limited;

impl Limited {
    fn add(&self, bytes: usize) {
        let live = LIVE.fetch_add(bytes, Ordering::Relaxed).wrapping_add(bytes);
        let used = live.saturating_sub(START.load(Ordering::Relaxed));
        if used > MAX_BYTES && live < usize::MAX / 2 {
            // Formatting needs memory.
            LIVE.fetch_sub(bytes, Ordering::Relaxed);
            panic!("an input uses {} MiB of memory", used >> 20);
        }
    }
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.add(layout.size());
        // SAFETY: the caller's contract is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.add(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.add(size);
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
