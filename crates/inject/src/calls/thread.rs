//! State of each thread, in a table that is reserved when tracing starts.
//!
//! A word of static thread-local storage points to the thread's entry: reading it needs no call, no
//! allocation and no lock. The destructor of a pthread key releases the entry.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::block::BlockSampling;
use super::emit;
use crate::arch::thread_word;
use crate::process;
use crate::shared;
use crate::wire::{VS_CONTEXTS, VS_INFLIGHT, VS_THREAD, VS_THREAD_EXIT};

/// Maximum number of threads with state at the same time.
const MAX_THREADS: usize = 16_384;

/// A call that has not returned yet.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct InflightCall {
    pub(crate) sp: u64,
    pub(crate) hook: u64,
}

/// State of one thread. All zero is an unused entry.
#[repr(C)]
pub(crate) struct ThreadState {
    /// Thread id of the owner; 0: unused.
    owner: AtomicU32,
    pub(crate) tid: u32,
    /// Fork generation that the entry belongs to.
    generation: u32,
    pub(crate) inflight: u32,
    pub(crate) calls: [InflightCall; VS_INFLIGHT],
    /// Levels of the context stack, from its bottom or from the first level seen.
    pub(crate) depth: u32,
    /// Known levels, from the top.
    pub(crate) known: u32,
    /// `depth` counts from the bottom of the stack.
    pub(crate) from_empty: bool,
    /// Number of stack copies sent.
    pub(crate) stacks: u32,
    /// Bounds of the stack; 0: not determined yet.
    pub(crate) stack_low: u64,
    pub(crate) stack_high: u64,
    /// Sampling of the blocks of the thread.
    pub(crate) sampling: BlockSampling,
    /// Ring: level n is at n modulo the size.
    pub(crate) contexts: [u64; VS_CONTEXTS],
}

static TABLE: AtomicPtr<ThreadState> = AtomicPtr::new(ptr::null_mut());
/// When a call was last dropped for lack of thread state (boot clock); 0: never.
static DROPPED_AT: AtomicU64 = AtomicU64::new(0);
static GENERATION: AtomicU32 = AtomicU32::new(0);
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);

/// Returns the address of the calling thread's word.
#[inline(always)]
fn word() -> *mut *mut ThreadState {
    thread_word().cast()
}

/// Reserves the table. Returns false if there is not enough memory.
pub(crate) fn prepare() -> bool {
    let bytes = MAX_THREADS * size_of::<ThreadState>();
    // SAFETY: requests new memory; pages are allocated when they are first used.
    let table = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if table == libc::MAP_FAILED {
        return false;
    }
    let mut key = 0;
    // SAFETY: the destructor is a function of this library, which is never unloaded.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(thread_exit)) } == 0 {
        KEY.store(key, Ordering::Relaxed);
    }
    TABLE.store(table.cast(), Ordering::Release);
    true
}

/// Drops the parent's threads in a forked child, which has one thread.
pub(crate) fn reset_after_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    DROPPED_AT.store(0, Ordering::Relaxed);
    let table = TABLE.load(Ordering::Acquire);
    if !table.is_null() {
        let bytes = MAX_THREADS * size_of::<ThreadState>();
        // SAFETY: the private mapping of `prepare`; its pages become zero, which is unused.
        unsafe { libc::madvise(table.cast(), bytes, libc::MADV_DONTNEED) };
    }
}

/// Returns the state of the calling thread; `None` if the table is full.
///
/// The reference must not be kept: it is valid within one driver call, during which only this
/// thread uses the entry.
#[inline]
pub(crate) fn own() -> Option<&'static mut ThreadState> {
    // SAFETY: the word belongs to the calling thread.
    let thread = unsafe { *word() };
    let generation = GENERATION.load(Ordering::Relaxed);
    // SAFETY: a pointer in the word is an entry of the table, which is never unmapped.
    if !thread.is_null() && unsafe { (*thread).tid != 0 && (*thread).generation == generation } {
        // SAFETY: as above; the entry is the calling thread's own.
        return Some(unsafe { &mut *thread });
    }
    set_up(generation)
}

/// Returns the state of the calling thread, if it has any.
pub(crate) fn existing() -> Option<&'static mut ThreadState> {
    // SAFETY: as in `own`.
    unsafe { (*word()).as_mut() }.filter(|thread| thread.tid != 0)
}

/// Records that a call was dropped for lack of thread state.
#[cold]
pub(crate) fn call_dropped() {
    DROPPED_AT.store(shared::boot_time(), Ordering::Relaxed);
}

/// Returns whether a thread has no context before its first call. The library is loaded by the
/// first `cuInit`, before any context exists. If calls were dropped since the thread started, its
/// context may already have changed.
fn starts_without_context(tid: u32) -> bool {
    let dropped_at = DROPPED_AT.load(Ordering::Relaxed);
    dropped_at == 0 || shared::thread_start(tid).is_some_and(|start| start > dropped_at)
}

/// Initializes an unused entry for the calling thread.
#[cold]
fn set_up(generation: u32) -> Option<&'static mut ThreadState> {
    let tid = process::tid();
    let table = TABLE.load(Ordering::Acquire);
    if table.is_null() {
        return None;
    }
    for index in 0..MAX_THREADS {
        // SAFETY: the table has that many entries.
        let entry = unsafe { table.add(index) };
        // SAFETY: other threads access nothing but the owner of this entry.
        let owner = unsafe { &(*entry).owner };
        if owner.compare_exchange(0, tid, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            continue;
        }
        // SAFETY: the entry is the calling thread's own now.
        let entry = unsafe { &mut *entry };
        entry.tid = tid;
        entry.generation = generation;
        entry.inflight = 0;
        (entry.depth, entry.known) = (0, 0);
        entry.from_empty = starts_without_context(tid);
        (entry.stack_low, entry.stack_high) = (0, 0);
        entry.sampling = BlockSampling::default();
        // SAFETY: the word belongs to the calling thread.
        unsafe { *word() = entry };
        let key = KEY.load(Ordering::Relaxed);
        if key != u32::MAX {
            // SAFETY: the key exists; its value is passed to the destructor only.
            unsafe {
                libc::pthread_setspecific(
                    key,
                    std::ptr::from_mut::<ThreadState>(entry).cast::<c_void>(),
                )
            };
        }
        announce(tid);
        return Some(entry);
    }
    None
}

/// Reports the thread's name.
fn announce(tid: u32) {
    let mut name = [0_u8; 16];
    // SAFETY: the kernel writes at most 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr(), 0, 0, 0) };
    emit::thread_name(tid, VS_THREAD, name);
}

/// Releases the state of a thread that exits.
unsafe extern "C" fn thread_exit(entry: *mut c_void) {
    let entry = entry.cast::<ThreadState>();
    // SAFETY: the word belongs to the calling thread, which exits.
    unsafe { *word() = ptr::null_mut() };
    // SAFETY: the value of the key is the thread's own entry of the table.
    let thread = unsafe { &mut *entry };
    if !process::is_running() || thread.generation != GENERATION.load(Ordering::Relaxed) {
        return;
    }
    super::graph::thread_exit(thread.tid);
    emit::lifecycle(thread.tid, VS_THREAD_EXIT);
    thread.tid = 0;
    thread.owner.store(0, Ordering::Release);
}
