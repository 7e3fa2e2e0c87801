//! An area that is open: its rings are read, and its tables used from this side.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::ids::Pid;
use engine::tensor::TensorWatch;

use super::area::{
    COMPLETE, Header, LAYOUT, MAGIC, Offsets, RECORD_HEADER, RecordHeader, Ring, Sizes,
};
use super::jumps::Jumps;
use super::lifetime::{End, Watch, holder};
use super::store::Store;
use crate::decode::Program;

/// Bytes after which freed space is handed back to the producers.
const STEP: u64 = 64 << 10;

/// A mapping that ends with its value.
#[derive(Debug)]
struct Mapping {
    start: *mut u8,
    bytes: usize,
}

impl Mapping {
    /// Maps a part of a file, `times` times in a row.
    fn new(file: &File, offset: usize, bytes: usize, times: usize) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (private, shared) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::MAP_SHARED);
        // SAFETY: reserves addresses.
        let start = unsafe {
            let all = bytes * times;
            libc::mmap(ptr::null_mut(), all, libc::PROT_NONE, private, -1, 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = Self { start: start.cast(), bytes: bytes * times };
        for time in 0..times {
            // SAFETY: inside of the reservation; the file is at least that long.
            let part = unsafe {
                let at = start.byte_add(time * bytes);
                let flags = shared | libc::MAP_FIXED;
                libc::mmap(at, bytes, access, flags, file.as_raw_fd(), offset as libc::off_t)
            };
            if part == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

/// What became of the records of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Consumed {
    /// Every record that was available was read.
    pub(super) drained: bool,
    /// Records that a process left unfinished when it ended.
    pub(super) abandoned: u64,
}

/// An open area.
#[derive(Debug)]
pub(super) struct Area {
    file: File,
    main: Mapping,
    records: Mapping,
    stacks: Option<Mapping>,
    sizes: Sizes,
    pub(super) offsets: Offsets,
    /// The process id as this side sees it.
    pub(super) pid: Pid,
    /// The process id in records, which differs in another pid namespace.
    own_pid: u32,
    pub(super) start: u64,
    pub(super) program: Program,
    watch: Watch,
    pub(super) end: Option<End>,
    /// The end was reported: the area closes in the next round.
    pub(super) is_done: bool,
    /// Its first record was read.
    pub(super) is_announced: Cell<bool>,
    /// Whether tensors are followed, as reported last.
    pub(super) tensors: Option<TensorWatch>,
    pub(super) store: Store,
    jumps: Jumps,
}

impl Area {
    /// Opens an area; `None` where the process is not ready with it.
    pub(super) fn open(file: File, sizes: Sizes, mapping: String) -> io::Result<Option<Self>> {
        let offsets = sizes.offsets();
        if file.metadata()?.len() < offsets.end as u64 {
            return Ok(None);
        }
        let main = Mapping::new(&file, 0, offsets.records, 1)?;
        // SAFETY: the mapping is as large as the header, which is valid with any content.
        let header = unsafe { &*main.start.cast::<Header>() };
        if header.ready.load(Ordering::Acquire) == 0 {
            return Ok(None);
        }
        if header.magic != MAGIC || header.layout != LAYOUT {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let records = Mapping::new(&file, offsets.records, sizes.record_ring as usize, 2)?;
        let stacks = match sizes.stack_ring as usize {
            0 => None,
            bytes => Some(Mapping::new(&file, offsets.stacks, bytes, 2)?),
        };
        let (own_pid, start) = (header.pid, header.start);
        let program = Program(header.number as u16);
        let pid = holder(&file).filter(|pid| pid.0 != 0).unwrap_or(Pid(own_pid));
        let watch = Watch::new(pid, start, mapping);
        Ok(Some(Self {
            file,
            main,
            records,
            stacks,
            sizes,
            offsets,
            pid,
            own_pid,
            start,
            program,
            watch,
            end: None,
            is_done: false,
            is_announced: Cell::new(false),
            tensors: None,
            store: Store::default(),
            jumps: Jumps::default(),
        }))
    }

    pub(super) fn header(&self) -> &Header {
        // SAFETY: as in `open`. The process changes atomics only.
        unsafe { &*self.main.start.cast::<Header>() }
    }

    /// A table of the area, as entries of `T`.
    pub(super) fn table<T>(&self, offset: usize, entries: u32) -> *mut T {
        debug_assert!(offset + entries as usize * size_of::<T>() <= self.offsets.records);
        // SAFETY: the tables are in the main mapping.
        unsafe { self.main.start.add(offset).cast() }
    }

    pub(super) const fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Looks whether the process ended. Before the rings are read: then nothing is missing of it.
    pub(super) fn look(&mut self) {
        if self.end.is_none() {
            self.end = self.watch.end(&self.file);
        }
    }

    /// Functions whose calls another tool's probe began to hide.
    pub(super) fn hidden(&mut self) -> Vec<&'static str> {
        let mut jumps = std::mem::take(&mut self.jumps);
        let hidden = jumps.replaced(self.pid, self.header());
        self.jumps = jumps;
        hidden
    }

    /// Reads records, up to about `bytes` bytes of them.
    pub(super) fn records(&self, bytes: usize, each: impl FnMut(&[u8])) -> Consumed {
        let size = self.sizes.record_ring;
        self.consume(&self.header().records, &self.records, size, bytes, each)
    }

    /// Reads all stacks that are available.
    pub(super) fn stacks(&self, each: impl FnMut(&[u8])) -> Consumed {
        let size = self.sizes.stack_ring;
        match &self.stacks {
            None => Consumed { drained: true, abandoned: 0 },
            Some(data) => self.consume(&self.header().stacks, data, size, usize::MAX, each),
        }
    }

    fn consume(
        &self,
        ring: &Ring,
        data: &Mapping,
        size: u32,
        most: usize,
        mut each: impl FnMut(&[u8]),
    ) -> Consumed {
        let head = ring.head.0.load(Ordering::Acquire);
        let first = ring.tail.0.load(Ordering::Relaxed);
        let (mut tail, mut published) = (first, first);
        let mut consumed = Consumed::default();
        while tail != head && ((tail - first) as usize) < most {
            let offset = (tail & u64::from(size - 1)) as usize;
            // SAFETY: headers are 8-byte aligned inside of the first of the two mappings.
            let state = unsafe { &*data.start.add(offset).cast::<RecordHeader>() };
            let word = state.load(Ordering::Acquire);
            let bytes = (word & !COMPLETE) as usize;
            let is_complete = word & COMPLETE != 0;
            if !is_complete && self.end.is_none() {
                break;
            }
            if bytes == 0 || bytes + RECORD_HEADER > (head - tail) as usize {
                // Reserved and never begun, by a process that was killed: nothing after it counts.
                consumed.abandoned += 1;
                tail = head;
                break;
            }
            let space = (bytes + RECORD_HEADER).next_multiple_of(8);
            if is_complete {
                self.read(data, offset, bytes, &mut each);
            } else {
                consumed.abandoned += 1;
            }
            clear(data, offset, space);
            tail += space as u64;
            if tail - published >= STEP {
                ring.tail.0.store(tail, Ordering::Release);
                published = tail;
            }
        }
        ring.tail.0.store(tail, Ordering::Release);
        consumed.drained = tail == head || !self.is_cut(tail - first, most);
        consumed
    }

    /// Whether reading stopped because it had enough.
    const fn is_cut(&self, read: u64, most: usize) -> bool {
        read as usize >= most
    }

    fn read(&self, data: &Mapping, offset: usize, bytes: usize, each: &mut impl FnMut(&[u8])) {
        // SAFETY: the record is complete, so the process does not write to it any more; the ring is
        // mapped twice in a row, so it is contiguous.
        let record = unsafe {
            let start = data.start.add(offset + RECORD_HEADER);
            std::slice::from_raw_parts_mut(start, bytes)
        };
        // Ids of another pid namespace mean something else on this side.
        if self.own_pid != self.pid.0
            && let Some(pid) = record.get_mut(8..12)
        {
            pid.copy_from_slice(&self.pid.0.to_ne_bytes());
        }
        each(record);
    }
}

/// Zeroes a record, so that an unwritten header is never mistaken for one.
fn clear(data: &Mapping, offset: usize, bytes: usize) {
    // SAFETY: the space was read and is not handed back yet.
    let words = unsafe {
        let start = data.start.add(offset).cast::<AtomicU64>();
        std::slice::from_raw_parts(start, bytes / 8)
    };
    words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
}
