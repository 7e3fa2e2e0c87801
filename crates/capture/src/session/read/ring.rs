//! A BPF ring buffer. Only a window of it is mapped: a mapping counts as resident memory in full, and
//! libbpf maps the whole ring twice.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libbpf_rs::{MapCore, MapHandle};

/// Bytes of the ring that are mapped at a time; more than any record.
const WINDOW_BYTES: u64 = 256 << 10;

/// Header of a record: its length with two flags, and a word for the kernel.
const HEADER_BYTES: u64 = 8;
/// The record is still being written.
const BUSY: u32 = 1 << 31;
/// The record was discarded.
const DISCARDED: u32 = 1 << 30;

/// Pages before the data: positions of the consumer and of the producer.
const POSITION_PAGES: u64 = 2;

/// A mapped part of a file; dropping it unmaps it.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    /// Maps a part of the memory of a map.
    pub(crate) fn new(
        file: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        writable: bool,
    ) -> io::Result<Self> {
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: maps new memory at an address that the kernel chooses.
        let base = unsafe {
            let null = std::ptr::null_mut();
            libc::mmap(null, bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), offset)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { base, bytes })
    }

    /// Returns a pointer to this many bytes; `None` if they are outside.
    fn get(&self, offset: u64, bytes: usize) -> Option<*mut u8> {
        let offset = usize::try_from(offset).ok()?;
        let is_inside = offset.checked_add(bytes)? <= self.bytes;
        // SAFETY: the offset is inside of the mapping.
        is_inside.then(|| unsafe { self.base.as_ptr().add(offset) })
    }

    /// Returns an aligned word that others change at any time.
    pub(crate) fn u64_at(&self, offset: u64) -> Option<&AtomicU64> {
        let word = self.get(offset, 8).filter(|_| offset.is_multiple_of(8))?;
        // SAFETY: inside of the mapping, which lives as long as self, and aligned, because mappings
        // begin at a page.
        Some(unsafe { AtomicU64::from_ptr(word.cast()) })
    }

    /// Returns an aligned half word that others change at any time.
    pub(crate) fn u32_at(&self, offset: u64) -> Option<&AtomicU32> {
        let word = self.get(offset, 4).filter(|_| offset.is_multiple_of(4))?;
        // SAFETY: as in `u64_at`.
        Some(unsafe { AtomicU32::from_ptr(word.cast()) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `new` mapped; no reference to it outlives self.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Size of a page.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: only a query.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// The consumer's side of a ring.
pub(crate) struct Ring {
    map: MapHandle,
    consumer: Mapping,
    producer: Mapping,
    /// The mapped part of the data, and the offset in the ring at which it begins.
    window: Option<(u64, Mapping)>,
    page: u64,
    size: u64,
}

impl Ring {
    pub(crate) fn open(map: MapHandle) -> io::Result<Self> {
        let page = page_bytes();
        let consumer = Mapping::new(map.as_fd(), 0, page, true)?;
        let producer = Mapping::new(map.as_fd(), page as u64, page, false)?;
        let size = u64::from(map.max_entries());
        Ok(Self { map, consumer, producer, window: None, page: page as u64, size })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }

    /// Returns the position up to which records were written, or are being written.
    pub(crate) fn written(&self) -> u64 {
        self.producer.u64_at(0).map_or(0, |position| position.load(Ordering::Acquire))
    }

    /// Returns the position up to which records were read.
    pub(crate) fn position(&self) -> u64 {
        // Only this side writes it.
        self.consumer.u64_at(0).map_or(0, |position| position.load(Ordering::Relaxed))
    }

    /// Passes records to `each`, until there are no more or this many bytes were read. Returns
    /// whether there may be more.
    pub(crate) fn consume(
        &mut self,
        max_bytes: usize,
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<bool> {
        let mut remaining = max_bytes as u64;
        let mut position = self.position();
        while position < self.written() {
            let header = self.mapped(position, HEADER_BYTES)?;
            // SAFETY: the header was written before the position of the producer moved past it, is
            // aligned to 8 bytes, and the kernel changes it atomically.
            let header = unsafe { AtomicU32::from_ptr(header.cast()) }.load(Ordering::Acquire);
            if header & BUSY != 0 {
                // Those after it wait for it.
                return Ok(false);
            }
            let length = u64::from(header & !DISCARDED);
            if header & DISCARDED == 0 {
                let record = self.mapped(position + HEADER_BYTES, length)?;
                // SAFETY: the bytes are mapped, and the kernel does not write them until the
                // position of the consumer moves past them, below.
                each(unsafe { std::slice::from_raw_parts(record, length as usize) });
            }
            let bytes = (length + HEADER_BYTES).next_multiple_of(8);
            position += bytes;
            if let Some(consumer) = self.consumer.u64_at(0) {
                consumer.store(position, Ordering::Release);
            }
            remaining = remaining.saturating_sub(bytes);
            if remaining == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns a pointer to bytes of the ring, after it moved the window if needed. The ring is
    /// followed by itself, so no record is split.
    fn mapped(&mut self, position: u64, bytes: u64) -> io::Result<*mut u8> {
        let offset = position & (self.size - 1);
        let get = |(start, window): &(u64, Mapping)| {
            window.get(offset.checked_sub(*start)?, usize::try_from(bytes).ok()?)
        };
        if let Some(found) = self.window.as_ref().and_then(get) {
            return Ok(found);
        }
        let start = offset - offset % self.page;
        let end = (offset + bytes).next_multiple_of(self.page);
        let length = (end - start).max(WINDOW_BYTES.min(self.size));
        self.window = None;
        let data = POSITION_PAGES * self.page + start;
        let window = Mapping::new(self.map.as_fd(), data, length as usize, false)?;
        self.window = Some((start, window));
        self.window.as_ref().and_then(get).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}
