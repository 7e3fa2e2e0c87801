//! Records into the shared ring.

use std::sync::atomic::Ordering;

use crate::area::{COMPLETE, RECORD_HEADER, RecordHeader, Ring};
use crate::loss;
use crate::process::{self, Data};
use crate::wire::{Head, ThreadName, VS_CLASS_OTHER};

/// Nanoseconds of the monotonic clock, which the kernel's probes also use.
#[inline]
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: time is writable. The C library reads the clock without a system call where it can.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// Bytes from a record to those that are fetched ahead: about four records.
const PREFETCH_DISTANCE: usize = 512;
/// Cache lines that are fetched ahead; a record has two or three.
const PREFETCHED_LINES: usize = 3;

/// Space for a record, not yet visible to the collector.
pub(crate) struct Reserved {
    header: *const RecordHeader,
    bytes: u64,
}

impl Reserved {
    /// The record's bytes, behind its header.
    pub(crate) const fn data(&self) -> *mut u8 {
        // SAFETY: the header is followed by the record, in the same reservation.
        unsafe { self.header.cast::<u8>().cast_mut().add(RECORD_HEADER) }
    }

    /// Makes the record visible.
    pub(crate) fn complete(self) {
        // SAFETY: `reserve` made the pointer, into a mapping that lives as long as the process.
        unsafe { (*self.header).store(self.bytes | COMPLETE, Ordering::Release) };
    }
}

/// Reserves space in a ring; `None` where it is full.
#[inline]
pub(crate) fn reserve(ring: &Ring, data: Data, bytes: usize) -> Option<Reserved> {
    let space = (bytes + RECORD_HEADER).next_multiple_of(8) as u64;
    let mut head = ring.head.0.load(Ordering::Relaxed);
    loop {
        // Zeroes of the collector must be visible before the space is written again.
        let tail = ring.tail.0.load(Ordering::Acquire);
        if head.wrapping_sub(tail).wrapping_add(space) > data.size {
            return None;
        }
        if head.wrapping_sub(tail) > data.size / 4 {
            wake();
        }
        let next = head.wrapping_add(space);
        match ring.head.0.compare_exchange_weak(head, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => break,
            Err(current) => head = current,
        }
    }
    let offset = (head & (data.size - 1)) as usize;
    // SAFETY: the ring is mapped twice in a row, so a reservation that begins in it is contiguous.
    let header = unsafe { data.start.add(offset) } as *const RecordHeader;
    let reserved = Reserved { header, bytes: bytes as u64 };
    prefetch(data, offset);
    // A collector that finds the process dead knows how much to skip.
    // SAFETY: the header is 8-byte aligned, as all sizes are.
    unsafe { (*header).store(reserved.bytes, Ordering::Relaxed) };
    Some(reserved)
}

/// Wakes the collector where it sleeps: a system call, at most once each time that it sleeps.
pub(crate) fn wake() {
    let Some(control) = process::control() else { return };
    if control.is_waiting.load(Ordering::Relaxed) == 0
        || control.is_waiting.swap(0, Ordering::AcqRel) == 0
    {
        return;
    }
    control.wakes.fetch_add(1, Ordering::Release);
    // SAFETY: the word is in the mapped control file. The program must not see an error of ours.
    unsafe {
        let errno = *libc::__errno_location();
        let word = (&raw const control.wakes).cast::<u32>();
        libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, 1);
        *libc::__errno_location() = errno;
    }
}

/// Fetches the cache lines of records to come: the collector's core has them, and a record that
/// waits for them costs as much as all the rest.
#[inline]
fn prefetch(data: Data, offset: usize) {
    for line in 0..PREFETCHED_LINES {
        // SAFETY: the address is in the second of the two mappings at the latest; the instruction
        // has no effect but on caches.
        unsafe {
            let address = data.start.add(offset + PREFETCH_DISTANCE + line * 64);
            core::arch::asm!(
                "prefetchw [{0}]",
                in(reg) address,
                options(nostack, preserves_flags, readonly),
            );
        }
    }
}

/// The first fields of a record.
pub(crate) fn head(kind: u32, tid: u32) -> Head {
    let pid = process::pid();
    Head { kind: kind as u16, hook: 0, result: 0, pid, tid, at: now() }
}

/// Writes one structure as a record. False where the ring is full.
#[inline]
pub(crate) fn write<T: Copy>(record: &T) -> bool {
    let Some(area) = process::area() else { return false };
    let Some(reserved) = reserve(&area.header.records, area.records, size_of::<T>()) else {
        return false;
    };
    // SAFETY: the reservation has the size of T; sizes and headers keep it 8-byte aligned.
    unsafe { reserved.data().cast::<T>().write(*record) };
    reserved.complete();
    true
}

/// A record that is nothing but its head.
pub(crate) fn lifecycle(tid: u32, kind: u32) {
    if !write(&head(kind, tid)) {
        loss::count(VS_CLASS_OTHER, 0, 0);
    }
}

/// A thread's name.
pub(crate) fn thread_name(tid: u32, kind: u32, name: [u8; 16]) {
    // A name that does not fit is not a loss: the collector can look it up.
    let _ = write(&ThreadName { head: head(kind, tid), name });
}
