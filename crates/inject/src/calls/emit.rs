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

/// Maximum number of attempts to read a consistent pair of positions.
const MAX_STALE_READS: u32 = 1000;

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

/// Whether a record fits into a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Room {
    Enough {
        used: u64,
    },
    Full,
    /// The head was read before the tail: since then, other threads wrote records and the collector
    /// read them.
    Unknown,
}

#[inline]
const fn room(head: u64, tail: u64, space: u64, size: u64) -> Room {
    let used = head.wrapping_sub(tail);
    if used > size {
        Room::Unknown
    } else if used + space > size {
        Room::Full
    } else {
        Room::Enough { used }
    }
}

/// Reserves space in a ring; `None` if it is full.
#[inline]
pub(crate) fn reserve(ring: &Ring, data: RingData, bytes: usize) -> Option<Reserved> {
    let space = (bytes + RECORD_HEADER).next_multiple_of(8) as u64;
    let mut head = ring.head.0.load(Ordering::Relaxed);
    let mut stale_reads = 0;
    loop {
        // The collector's zeroes must be visible before the space is written again.
        let tail = ring.tail.0.load(Ordering::Acquire);
        match room(head, tail, space, data.size) {
            Room::Enough { used } if used > data.size / 4 => wake(),
            Room::Enough { .. } => {}
            // The limit is for a collector that writes nonsense: the program must not hang.
            Room::Unknown if stale_reads < MAX_STALE_READS => {
                stale_reads += 1;
                head = ring.head.0.load(Ordering::Relaxed);
                continue;
            }
            Room::Unknown | Room::Full => return None,
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::area::Position;

    const SIZE: u64 = 1 << 12;

    #[test]
    fn stale_head_does_not_count_as_a_full_ring() {
        assert_eq!(room(100, 36, 64, SIZE), Room::Enough { used: 64 });
        assert_eq!(room(SIZE, 0, 64, SIZE), Room::Full);
        assert_eq!(room(SIZE - 63, 0, 64, SIZE), Room::Full);
        assert_eq!(room(SIZE - 64, 0, 64, SIZE), Room::Enough { used: SIZE - 64 });
        assert_eq!(room(100, 164, 64, SIZE), Room::Unknown);
        // The positions wrap around after 2^64 bytes.
        assert_eq!(room(u64::MAX - 7, u64::MAX - 71, 64, SIZE), Room::Enough { used: 64 });
        assert_eq!(room(u64::MAX - 7, 56, 64, SIZE), Room::Unknown);
    }

    #[test]
    fn full_ring_and_impossible_positions_refuse_records() {
        let ring = |head, tail| {
            let position = |value| Position(AtomicU64::new(value));
            Ring { head: position(head), tail: position(tail) }
        };
        let data = RingData { start: std::ptr::null_mut(), size: SIZE };
        assert!(reserve(&ring(SIZE, 0), data, 56).is_none());
        assert!(reserve(&ring(0, SIZE), data, 56).is_none());
    }
}
