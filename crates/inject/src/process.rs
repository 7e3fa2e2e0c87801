//! State of this process: whether it is traced, and where its records go.
//!
//! The mark that says so is on a page that the kernel zeroes in forked children. A child has the
//! parent's mappings, and must not write into the parent's area: the first call that finds the mark
//! zeroed creates an area of the child's own.

use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::area::{Control, Header, Offsets, Refusal, Row};
use crate::shared;
use crate::wire::VS_MAX_HOOKS;
use crate::{graph, thread};

/// Not set up, or a forked child.
const NEW: u32 = 0;
/// Calls are recorded.
const RUNNING: u32 = 1;
/// Calls pass.
const OFF: u32 = 2;
/// A thread of a forked child creates the area.
const STARTING: u32 = 3;

/// A ring's data.
#[derive(Clone, Copy)]
pub(crate) struct Data {
    pub(crate) start: *mut u8,
    pub(crate) size: u64,
}

/// The area of this process.
pub(crate) struct Area {
    pub(crate) header: &'static Header,
    pub(crate) base: *mut u8,
    pub(crate) records: Data,
    pub(crate) stacks: Data,
}

/// Stands in for the page until it exists.
static NO_PAGE: AtomicU32 = AtomicU32::new(OFF);
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const NO_PAGE).cast_mut());
static CONTROL: AtomicPtr<Control> = AtomicPtr::new(ptr::null_mut());
static HEADER: AtomicPtr<Header> = AtomicPtr::new(ptr::null_mut());
static RECORDS: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static STACKS: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static PID: AtomicU32 = AtomicU32::new(0);
static MOVED: [AtomicU64; VS_MAX_HOOKS] = [const { AtomicU64::new(0) }; VS_MAX_HOOKS];
/// Rows as areas describe them, also those of forked children.
static ROWS: [RowFacts; VS_MAX_HOOKS] = [const {
    RowFacts { state: AtomicU32::new(0), jump_address: AtomicU64::new(0), jump: AtomicU64::new(0) }
}; VS_MAX_HOOKS];

/// A row in this process.
pub(crate) struct RowFacts {
    pub(crate) state: AtomicU32,
    pub(crate) jump_address: AtomicU64,
    pub(crate) jump: AtomicU64,
}

fn mark() -> &'static AtomicU32 {
    // SAFETY: the pointer is to a static, or to a page that is never unmapped.
    unsafe { &*MARK.load(Ordering::Acquire) }
}

/// Whether calls are recorded.
#[inline]
pub(crate) fn is_running() -> bool {
    mark().load(Ordering::Relaxed) == RUNNING
}

/// The control file; `None` before it is mapped.
#[inline]
pub(crate) fn control() -> Option<&'static Control> {
    // SAFETY: the mapping is never unmapped, and was checked when it was made.
    unsafe { CONTROL.load(Ordering::Acquire).as_ref() }
}

/// The row of a hook.
#[inline]
pub(crate) fn row(hook: u64) -> Option<&'static Row> {
    control()?.rows.get(hook as usize)
}

/// The moved entry of a hooked function.
#[inline]
pub(crate) fn moved_entry(hook: u64) -> u64 {
    MOVED[hook as usize % VS_MAX_HOOKS].load(Ordering::Relaxed)
}

/// Sets the moved entry of a function that is about to be patched.
pub(crate) fn set_moved_entry(hook: usize, address: u64) {
    MOVED[hook % VS_MAX_HOOKS].store(address, Ordering::Release);
}

/// The area of this process; `None` before it exists.
#[inline]
pub(crate) fn area() -> Option<Area> {
    let base = HEADER.load(Ordering::Acquire);
    // SAFETY: the mapping is never unmapped, and was initialized when it was made.
    let header = unsafe { base.as_ref() }?;
    let sizes = control()?.sizes;
    let records = Data { start: RECORDS.load(Ordering::Relaxed), size: sizes.record_ring.into() };
    let stacks = Data { start: STACKS.load(Ordering::Relaxed), size: sizes.stack_ring.into() };
    Some(Area { header, base: base.cast(), records, stacks })
}

/// Offsets of the tables in the area.
pub(crate) fn offsets() -> Option<Offsets> {
    Some(control()?.sizes.offsets())
}

/// The process id as records have it.
#[inline]
pub(crate) fn pid() -> u32 {
    PID.load(Ordering::Relaxed)
}

/// The calling thread's id.
pub(crate) fn tid() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::gettid() as u32 }
}

/// Whether launches and copies are counted.
#[inline]
pub(crate) fn counts_activity() -> bool {
    control().is_some_and(|control| control.count_activity != 0)
}

/// Bytes of an array element of a format.
pub(crate) fn element_bytes(format: u8) -> u8 {
    control().map_or(0, |control| control.element_bytes[usize::from(format)])
}

/// A row of this process.
pub(crate) fn row_facts(hook: usize) -> &'static RowFacts {
    &ROWS[hook % VS_MAX_HOOKS]
}

/// Maps the control file of the collector's directory; the first step of a start.
pub(crate) fn open_control(directory: &CStr) -> bool {
    let Some(control) = shared::map_control(directory) else { return false };
    CONTROL.store(control, Ordering::Release);
    true
}

/// Lets calls pass from now on where the trace has ended.
pub(crate) fn stop_if_closed() {
    if control().is_some_and(|control| control.is_closed.load(Ordering::Relaxed) != 0) {
        mark().store(OFF, Ordering::Relaxed);
    }
}

/// Counts why this process is not traced, for the collector's report.
pub(crate) fn refuse(refusal: Refusal) {
    if let Some(control) = control() {
        control.refusals[refusal as usize].fetch_add(1, Ordering::Relaxed);
    }
    mark().store(OFF, Ordering::Release);
}

/// Creates the area. Calls are recorded from now on.
pub(crate) fn start() -> bool {
    if !prepare_mark() || !thread::prepare() {
        return false;
    }
    create_area()
}

/// Makes the page that forked children see zeroed.
fn prepare_mark() -> bool {
    let page = shared::map_anonymous(4096);
    let Some(page) = page else { return false };
    // SAFETY: a private anonymous page of ours.
    let wiped = unsafe { libc::madvise(page.cast(), 4096, libc::MADV_WIPEONFORK) } == 0;
    if !wiped {
        // SAFETY: the handler is a function of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    }
    MARK.store(page.cast(), Ordering::Release);
    true
}

/// Kernels before 4.14 do not zero the page.
extern "C" fn forked() {
    mark().store(NEW, Ordering::Relaxed);
}

fn create_area() -> bool {
    // SAFETY: takes nothing and cannot fail.
    PID.store(unsafe { libc::getpid() } as u32, Ordering::Relaxed);
    let created = control().and_then(|control| shared::create(control, pid()));
    let Some(created) = created else { return false };
    RECORDS.store(created.records, Ordering::Relaxed);
    STACKS.store(created.stacks, Ordering::Relaxed);
    HEADER.store(created.header, Ordering::Release);
    mark().store(RUNNING, Ordering::Release);
    shared::announce(&created);
    true
}

/// Called where calls are not recorded. Creates the area of a forked child; true when it is there.
#[cold]
pub(crate) fn resume() -> bool {
    let new = mark().compare_exchange(NEW, STARTING, Ordering::AcqRel, Ordering::Relaxed);
    if new.is_err() {
        return false;
    }
    // SAFETY: the location of the calling thread's error number.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    // The parent's area is not ours to write.
    HEADER.store(ptr::null_mut(), Ordering::Release);
    thread::reset_after_fork();
    graph::reset_after_fork();
    let started = shared::is_collected() && create_area();
    if !started {
        refuse(Refusal::NoArea);
    }
    // SAFETY: as above. The program must not see the errors of our calls.
    unsafe { *errno = before };
    started
}
