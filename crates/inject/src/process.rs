//! State of this process: whether it is traced, and the area of its records.
//!
//! The state is on a page that the kernel zeroes in forked children. A child inherits the parent's
//! mappings and must not write into the parent's area: its first call finds the state zeroed and
//! creates its own area.

use std::ffi::{CStr, CString};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::area::{Control, FUNCTIONS, Header, Offsets, Row, StartFailure};
use crate::calls::{graph, thread};
use crate::{allocators, shared};

/// Not started, or a forked child.
const NEW: u32 = 0;
/// Calls are recorded.
const RUNNING: u32 = 1;
/// Calls are not recorded.
const OFF: u32 = 2;
/// A thread of a forked child is creating the area.
const STARTING: u32 = 3;

/// The memory of a ring.
#[derive(Clone, Copy)]
pub(crate) struct RingData {
    pub(crate) start: *mut u8,
    pub(crate) size: u64,
}

/// The area of this process.
pub(crate) struct Area {
    pub(crate) header: &'static Header,
    pub(crate) base: *mut u8,
    pub(crate) records: RingData,
    pub(crate) stacks: RingData,
}

/// Used until the page exists.
static NO_PAGE: AtomicU32 = AtomicU32::new(OFF);
static STATE: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const NO_PAGE).cast_mut());
static CONTROL: AtomicPtr<Control> = AtomicPtr::new(ptr::null_mut());
static HEADER: AtomicPtr<Header> = AtomicPtr::new(ptr::null_mut());
static RECORDS: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static STACKS: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static PID: AtomicU32 = AtomicU32::new(0);
static MOVED: [AtomicU64; FUNCTIONS] = [const { AtomicU64::new(0) }; FUNCTIONS];
/// State of the functions, as in the areas of this process and of its forked children.
static ROWS: [RowInfo; FUNCTIONS] = [const {
    RowInfo { state: AtomicU32::new(0), jump_address: AtomicU64::new(0), jump: AtomicU64::new(0) }
}; FUNCTIONS];

/// Names of the functions that the hook table does not have.
pub(crate) static UNKNOWN: OnceLock<Vec<CString>> = OnceLock::new();

/// A function in this process.
pub(crate) struct RowInfo {
    pub(crate) state: AtomicU32,
    pub(crate) jump_address: AtomicU64,
    pub(crate) jump: AtomicU64,
}

fn state() -> &'static AtomicU32 {
    // SAFETY: points to a static, or to a page that is never unmapped.
    unsafe { &*STATE.load(Ordering::Acquire) }
}

/// Returns whether calls are recorded.
#[inline]
pub(crate) fn is_running() -> bool {
    state().load(Ordering::Relaxed) == RUNNING
}

/// Returns the control file; `None` before it is mapped.
#[inline]
pub(crate) fn control() -> Option<&'static Control> {
    // SAFETY: the mapping is never unmapped, and was checked when it was created.
    unsafe { CONTROL.load(Ordering::Acquire).as_ref() }
}

/// Returns the row of a hook; `None` for a function that the hook table does not have.
#[inline]
pub(crate) fn row(hook: u64) -> Option<&'static Row> {
    control()?.rows.get(hook as usize)
}

/// Returns the moved entry of a hooked function.
#[inline]
pub(crate) fn moved_entry(hook: u64) -> u64 {
    MOVED[hook as usize % FUNCTIONS].load(Ordering::Relaxed)
}

/// Sets the moved entry of a function that is about to be patched.
pub(crate) fn set_moved_entry(hook: usize, address: u64) {
    MOVED[hook % FUNCTIONS].store(address, Ordering::Release);
}

/// Returns the area of this process; `None` before it exists.
#[inline]
pub(crate) fn area() -> Option<Area> {
    let base = HEADER.load(Ordering::Acquire);
    // SAFETY: the mapping is never unmapped, and was initialized when it was created.
    let header = unsafe { base.as_ref() }?;
    let sizes = control()?.sizes;
    let records =
        RingData { start: RECORDS.load(Ordering::Relaxed), size: sizes.record_ring.into() };
    let stacks = RingData { start: STACKS.load(Ordering::Relaxed), size: sizes.stack_ring.into() };
    Some(Area { header, base: base.cast(), records, stacks })
}

/// Returns the offsets of the tables in the area.
pub(crate) fn offsets() -> Option<Offsets> {
    Some(control()?.sizes.offsets())
}

/// Returns the process id for records.
#[inline]
pub(crate) fn pid() -> u32 {
    PID.load(Ordering::Relaxed)
}

/// Returns the id of the calling thread.
pub(crate) fn tid() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::gettid() as u32 }
}

/// Returns whether launches and copies are counted.
#[inline]
pub(crate) fn counts_activity() -> bool {
    control().is_some_and(|control| control.count_activity != 0)
}

/// Returns the bytes of an array element of a format.
pub(crate) fn element_bytes(format: u8) -> u8 {
    control().map_or(0, |control| control.element_bytes[usize::from(format)])
}

/// Returns the state of a function in this process.
pub(crate) fn row_info(hook: usize) -> &'static RowInfo {
    &ROWS[hook % FUNCTIONS]
}

/// Maps the control file in the collector's directory; the first step of a start.
pub(crate) fn open_control(directory: &CStr) -> bool {
    let Some(control) = shared::map_control(directory) else { return false };
    CONTROL.store(control, Ordering::Release);
    true
}

/// Stops recording calls if the trace has ended.
pub(crate) fn stop_if_closed() {
    if control().is_some_and(|control| control.is_closed.load(Ordering::Relaxed) != 0) {
        state().store(OFF, Ordering::Relaxed);
    }
}

/// Reports to the collector why this process is not traced.
pub(crate) fn fail(failure: StartFailure) {
    if let Some(control) = control() {
        control.failures[failure as usize].fetch_add(1, Ordering::Relaxed);
    }
    state().store(OFF, Ordering::Release);
}

/// Returns whether memory of this process is readable.
pub(crate) fn is_readable(address: u64, bytes: u64) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let holds = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let (start, end) =
            (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        let is_inside = start <= address && address.checked_add(bytes)? <= end;
        Some(is_inside && rest.starts_with('r'))
    };
    maps.lines().any(|line| holds(line) == Some(true))
}

/// Creates the area and starts recording calls.
pub(crate) fn start() -> bool {
    if !prepare_state() || !thread::prepare() {
        return false;
    }
    create_area()
}

/// Maps the page that the kernel zeroes in forked children.
fn prepare_state() -> bool {
    let page = shared::map_anonymous(4096);
    let Some(page) = page else { return false };
    // SAFETY: our own private anonymous page.
    let wiped = unsafe { libc::madvise(page.cast(), 4096, libc::MADV_WIPEONFORK) } == 0;
    if !wiped {
        // SAFETY: the handler is a function of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    }
    STATE.store(page.cast(), Ordering::Release);
    true
}

/// Kernels before 4.14 do not zero the page.
extern "C" fn forked() {
    state().store(NEW, Ordering::Relaxed);
}

fn create_area() -> bool {
    // SAFETY: takes nothing and cannot fail.
    PID.store(unsafe { libc::getpid() } as u32, Ordering::Relaxed);
    let created = control().and_then(|control| shared::create(control, pid()));
    let Some(created) = created else { return false };
    RECORDS.store(created.records, Ordering::Relaxed);
    STACKS.store(created.stacks, Ordering::Relaxed);
    HEADER.store(created.header, Ordering::Release);
    state().store(RUNNING, Ordering::Release);
    shared::announce(&created);
    true
}

/// Called while calls are not recorded. Creates the area of a forked child. Returns whether calls
/// are recorded now.
#[cold]
pub(crate) fn resume() -> bool {
    let new = state().compare_exchange(NEW, STARTING, Ordering::AcqRel, Ordering::Relaxed);
    if new.is_err() {
        return false;
    }
    keep_errno(|| {
        // The parent's area must not be written.
        HEADER.store(ptr::null_mut(), Ordering::Release);
        thread::reset_after_fork();
        graph::reset_after_fork();
        allocators::reset_after_fork();
        let started = shared::is_collected() && create_area();
        if !started {
            fail(StartFailure::NoArea);
        }
        started
    })
}

/// Calls a function that makes system calls, and restores the program's error number.
pub(crate) fn keep_errno<T>(run: impl FnOnce() -> T) -> T {
    // SAFETY: the location of the calling thread's error number.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let result = run();
    // SAFETY: as above.
    unsafe { *errno = before };
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mapped_memory_is_readable() {
        let word = Box::new(7_u64);
        assert!(is_readable(&raw const *word as u64, 8));
        for (address, bytes) in
            [(0, 8), (8, 8), (u64::MAX - 3, 8), (&raw const *word as u64, 1 << 60)]
        {
            assert!(!is_readable(address, bytes), "{address:x} {bytes}");
        }
    }
}
