//! Writes records into the shared ring.

use std::sync::atomic::Ordering;

use super::loss;
use crate::arch::prefetch_line;
use crate::area::{COMPLETE, RECORD_HEADER, RecordHeader, Ring};
use crate::process::{self, RingData};
use crate::wire::{Head, ThreadName, VS_CLASS_OTHER};

/// Returns the nanoseconds of the monotonic clock, which the probes also use.
#[inline]
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: time is writable. The C library reads the clock without a system call if it can.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// Distance of prefetched bytes from a record: about four records.
const PREFETCH_DISTANCE: usize = 512;
/// Prefetched cache lines; a record has two or three.
const PREFETCHED_LINES: usize = 3;

/// Space for a record, not yet visible to the collector.
pub(crate) struct Reserved {
    header: *const RecordHeader,
    bytes: u64,
}

impl Reserved {
    /// Returns the record's bytes, which follow its header.
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

/// Reserves space in a ring; `None` if it is full.
#[inline]
pub(crate) fn reserve(ring: &Ring, data: RingData, bytes: usize) -> Option<Reserved> {
    let space = (bytes + RECORD_HEADER).next_multiple_of(8) as u64;
    let mut head = ring.head.0.load(Ordering::Relaxed);
    loop {
        // The collector's zeroes must be visible before the space is written again.
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
    // If the process dies here, the collector knows how many bytes to skip.
    // SAFETY: the header is 8-byte aligned, as all sizes are.
    unsafe { (*header).store(reserved.bytes, Ordering::Relaxed) };
    Some(reserved)
}

/// Wakes the collector if it sleeps: a system call, at most once each time that it sleeps.
pub(crate) fn wake() {
    let Some(control) = process::control() else { return };
    if control.is_waiting.load(Ordering::Relaxed) == 0
        || control.is_waiting.swap(0, Ordering::AcqRel) == 0
    {
        return;
    }
    control.wakes.fetch_add(1, Ordering::Release);
    // SAFETY: the word is in the mapped control file. The program's error number is restored.
    unsafe {
        let errno = *libc::__errno_location();
        let word = (&raw const control.wakes).cast::<u32>();
        libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, 1);
        *libc::__errno_location() = errno;
    }
}

/// Prefetches the cache lines of the next records: the collector's core has them, and waiting for
/// them would double the cost of a record.
#[inline]
fn prefetch(data: RingData, offset: usize) {
    for line in 0..PREFETCHED_LINES {
        // SAFETY: the address is in the second of the two mappings at the latest.
        let address = unsafe { data.start.add(offset + PREFETCH_DISTANCE + line * 64) };
        prefetch_line(address);
    }
}

/// Returns the head of a record.
pub(crate) fn head(kind: u32, tid: u32) -> Head {
    let pid = process::pid();
    Head { kind: kind as u16, hook: 0, result: 0, pid, tid, at: now() }
}

/// Writes one structure as a record. Returns false if the ring is full.
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

/// Writes a record that consists of a head only.
pub(crate) fn lifecycle(tid: u32, kind: u32) {
    if !write(&head(kind, tid)) {
        loss::count(VS_CLASS_OTHER, 0, 0);
    }
}

/// Writes the name of a thread.
pub(crate) fn thread_name(tid: u32, kind: u32, name: [u8; 16]) {
    // A lost name does not count as lost: no total depends on it.
    let _ = write(&ThreadName { head: head(kind, tid), name });
}
