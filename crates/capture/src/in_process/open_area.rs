//! An open area: reads its rings and gives access to its tables.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::model::blocks::{Allocator, BlockTracking, BlocksUnavailable};
use engine::model::ids::Pid;
use engine::model::units::Timestamp;

use super::area::{
    ALLOCATORS, AllocatorState, BLOCK_CALLS, COMPLETE, FIRST_BLOCK_FUNCTION, FUNCTIONS, Header,
    LAYOUT_VERSION, MAGIC, Offsets, RECORD_HEADER, RecordHeader, Ring, Sizes, UnknownFunction,
};
use super::jumps::Jumps;
use super::known_stack_store::KnownStackStore;
use super::process_end::{ProcessEnd, ProcessWatch, holder};
use crate::decode::ExecGeneration;
use crate::hooks::HOOKS;
use crate::wire::VS_MAX_HOOKS;

/// Number of read bytes after which the space is returned to the producers.
const RELEASE_BYTES: u64 = 64 << 10;

/// A mapping that is unmapped when it is dropped.
#[derive(Debug)]
struct Mapping {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the memory belongs to the mapping, which any thread may access and unmap.
unsafe impl Send for Mapping {}

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
        // SAFETY: this value owns the mapping.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

/// Result of reading a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Consumed {
    /// Every available record was read.
    pub(super) drained: bool,
    /// Records that the process had not completed when it ended.
    pub(super) abandoned: u64,
}

/// The allocators in the order of the header.
const ALLOCATOR_ORDER: [Allocator; ALLOCATORS] =
    [Allocator::PyTorch, Allocator::CuPy, Allocator::Xla, Allocator::Rmm, Allocator::OnnxRuntime];

/// Functions of allocators, in the order of `enum vs_block_call`.
const BLOCK_FUNCTIONS: [&str; 7] = [
    "c10::reportMemoryUsageToProfiler",
    "c10::reportOutOfMemoryToProfiler",
    "PooledMemory._init",
    "PooledMemory.free",
    "BFCAllocator::AddTraceMe",
    "pool_memory_resource_impl::allocate_from_block",
    "pool_memory_resource_impl::free_block",
];

/// Returns whether blocks are tracked in a state of an allocator; `None` if its library is not loaded.
fn tracking(state: u32) -> Option<BlockTracking> {
    let reasons = [
        (AllocatorState::NoLibrary, BlocksUnavailable::NoLibrary),
        (AllocatorState::NoSymbol, BlocksUnavailable::NoSymbol),
        (AllocatorState::Unreadable, BlocksUnavailable::Unreadable),
        (AllocatorState::AttachFailed, BlocksUnavailable::AttachFailed),
    ];
    if state == AllocatorState::Tracked as u32 {
        return Some(BlockTracking::Active);
    }
    let reason = reasons.into_iter().find(|(known, _)| *known as u32 == state);
    reason.map(|(_, reason)| BlockTracking::Unavailable(reason))
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
    /// The pid in the namespace of the collector.
    pub(super) pid: Pid,
    /// The pid in records, which differs in another pid namespace.
    own_pid: u32,
    pub(super) start: u64,
    /// Number of the area; the library writes it into records as exec generation.
    pub(super) exec_gen: ExecGeneration,
    watch: ProcessWatch,
    pub(super) end: Option<ProcessEnd>,
    /// The end was reported: the area is closed with the next scan.
    pub(super) is_done: bool,
    /// Its first record was read.
    pub(super) is_announced: Cell<bool>,
    /// Whether the blocks of allocators are tracked, as last read, and the head of the ring at that time;
    /// and as last reported.
    tracking: [Option<(BlockTracking, u64)>; ALLOCATORS],
    reported: [Option<BlockTracking>; ALLOCATORS],
    pub(super) known_stacks: KnownStackStore,
    /// Numbers of the driver's functions that the hook table does not have.
    pub(super) unknown: Vec<u16>,
    jumps: Jumps,
    /// Positions of the source that are not reached yet, and the heads of the ring at that time.
    unread: VecDeque<(u64, u64)>,
}

impl Area {
    /// Lets the process continue, which waits until it was searched for an interpreter.
    pub(super) fn set_examined(&self) {
        let word = &self.header().is_examined;
        word.store(1, Ordering::Release);
        // SAFETY: the word is in the mapped header.
        unsafe {
            let word = (&raw const *word).cast::<u32>();
            libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, 1);
        }
    }

    /// Opens an area; `None` if the process has not completed it yet.
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
        if header.magic != MAGIC || header.layout_version != LAYOUT_VERSION {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let records = Mapping::new(&file, offsets.records, sizes.record_ring as usize, 2)?;
        let stacks = match sizes.stack_ring as usize {
            0 => None,
            bytes => Some(Mapping::new(&file, offsets.stacks, bytes, 2)?),
        };
        let (own_pid, start) = (header.pid, header.start);
        let exec_gen = ExecGeneration(header.number as u16);
        let pid = holder(&file).filter(|pid| pid.0 != 0).unwrap_or(Pid(own_pid));
        let watch = ProcessWatch::new(pid, start, mapping);
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
            exec_gen,
            watch,
            end: None,
            is_done: false,
            is_announced: Cell::new(false),
            tracking: [None; ALLOCATORS],
            reported: [None; ALLOCATORS],
            known_stacks: KnownStackStore::default(),
            unknown: Vec::new(),
            jumps: Jumps::default(),
            unread: VecDeque::new(),
        }))
    }

    pub(super) fn header(&self) -> &Header {
        // SAFETY: as in `open`. The process only changes atomics.
        unsafe { &*self.main.start.cast::<Header>() }
    }

    /// Returns the numbers and names of the driver's functions: rows of the hook table, then those
    /// that it does not have.
    pub(super) fn functions(header: &Header) -> impl Iterator<Item = (usize, Box<str>)> {
        let rows = HOOKS.iter().map(|hook| hook.symbol.into()).enumerate();
        let name = |function: &UnknownFunction| {
            let name = CStr::from_bytes_until_nul(&function.name).ok()?.to_str().ok()?;
            (!name.is_empty()).then(|| name.into())
        };
        let unknown = header.unknown.iter().map_while(name);
        rows.chain((VS_MAX_HOOKS..).zip(unknown))
    }

    /// Returns the numbers and names of functions of allocators.
    pub(super) fn block_functions() -> impl Iterator<Item = (usize, Box<str>)> {
        let name = |function: usize| BLOCK_FUNCTIONS.get(function % BLOCK_CALLS).copied();
        let functions = FIRST_BLOCK_FUNCTION..FUNCTIONS;
        functions.filter_map(move |function| Some((function, name(function)?.into())))
    }

    /// Returns the allocators whose tracking has changed since the last call, and since when. Calls from
    /// before were read.
    pub(super) fn changed_tracking(&mut self) -> Vec<(Allocator, BlockTracking, Timestamp)> {
        let mut changed = Vec::new();
        for (index, allocator) in ALLOCATOR_ORDER.into_iter().enumerate() {
            let header = self.header();
            let info = &header.allocators[index];
            let Some(now) = tracking(info.state.load(Ordering::Acquire)) else { continue };
            let since = Timestamp(info.since.load(Ordering::Relaxed));
            let head = header.records.head.0.load(Ordering::Acquire);
            let tail = header.records.tail.0.load(Ordering::Relaxed);
            let known = self.tracking[index].filter(|(known, _)| *known == now);
            let (_, written) = known.unwrap_or((now, head));
            self.tracking[index] = Some((now, written));
            if tail >= written && self.reported[index] != Some(now) {
                self.reported[index] = Some(now);
                changed.push((allocator, now, since));
            }
        }
        changed
    }

    /// Returns whether [`Area::changed_tracking`] has returned all states.
    pub(super) fn is_tracking_reported(&self) -> bool {
        let states = self.header().allocators.iter().zip(&self.reported);
        states.into_iter().all(|(info, reported)| {
            tracking(info.state.load(Ordering::Acquire)).is_none_or(|now| *reported == Some(now))
        })
    }

    /// Returns a table of the area, as entries of `T`.
    pub(super) fn table<T>(&self, offset: usize, entries: u32) -> *mut T {
        debug_assert!(offset + entries as usize * size_of::<T>() <= self.offsets.records);
        // SAFETY: the tables are in the main mapping.
        unsafe { self.main.start.add(offset).cast() }
    }

    pub(super) const fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Checks whether the process has ended. Called before the rings are read, so that the last
    /// read has all of its records.
    pub(super) fn check_end(&mut self) {
        if self.end.is_none() {
            self.end = self.watch.poll(&self.file);
        }
    }

    /// Returns the functions whose calls a probe of another tool hides since the last call: of the
    /// driver, and of allocators.
    pub(super) fn hidden_calls(&mut self) -> [Vec<Box<str>>; 2] {
        let mut jumps = std::mem::take(&mut self.jumps);
        let hidden = jumps.replaced(self.pid, self.header());
        self.jumps = jumps;
        hidden
    }

    /// Stores the head of the ring of records for a position of the source.
    pub(super) fn mark(&mut self, position: u64) {
        let head = self.header().records.head.0.load(Ordering::Acquire);
        let is_read = head == self.header().records.tail.0.load(Ordering::Relaxed);
        if !is_read && self.unread.back().is_none_or(|(_, marked)| *marked != head) {
            self.unread.push_back((position, head));
        }
    }

    /// Returns whether all records before a position of the source were read.
    pub(super) fn has_read(&self, position: u64) -> bool {
        self.unread.front().is_none_or(|(first, _)| *first > position)
    }

    /// Drops the positions that are reached.
    pub(super) fn drop_read_marks(&mut self) {
        let tail = self.header().records.tail.0.load(Ordering::Relaxed);
        while self.unread.front().is_some_and(|(_, head)| *head <= tail) {
            self.unread.pop_front();
        }
    }

    /// Reads records, up to about `bytes` bytes of them.
    pub(super) fn records(&self, bytes: usize, each: impl FnMut(&[u8])) -> Consumed {
        let size = self.sizes.record_ring;
        self.consume(&self.header().records, &self.records, size, bytes, each)
    }

    /// Reads all available stacks.
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
        max: usize,
        mut each: impl FnMut(&[u8]),
    ) -> Consumed {
        let head = ring.head.0.load(Ordering::Acquire);
        let first = ring.tail.0.load(Ordering::Relaxed);
        let (mut tail, mut published) = (first, first);
        let mut consumed = Consumed::default();
        while tail != head && ((tail - first) as usize) < max {
            let offset = (tail & u64::from(size - 1)) as usize;
            // SAFETY: headers are 8-byte aligned inside of the first of the two mappings.
            let state = unsafe { &*data.start.add(offset).cast::<RecordHeader>() };
            let word = state.load(Ordering::Acquire);
            let bytes = (word & !COMPLETE) as usize;
            let is_complete = word & COMPLETE != 0;
            if !is_complete && self.end.is_none() {
                break;
            }
            let available = head.wrapping_sub(tail).min(size.into()) as usize;
            if bytes == 0 || bytes + RECORD_HEADER > available {
                // Space that a killed process reserved and never filled: its size is unknown, so
                // everything after it is lost.
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
            if tail - published >= RELEASE_BYTES {
                ring.tail.0.store(tail, Ordering::Release);
                published = tail;
            }
        }
        ring.tail.0.store(tail, Ordering::Release);
        // A record that is still being written ends the batch, but does not make it full.
        consumed.drained = tail == head || ((tail - first) as usize) < max;
        consumed
    }

    fn read(&self, data: &Mapping, offset: usize, bytes: usize, each: &mut impl FnMut(&[u8])) {
        // SAFETY: the process does not write to a complete record; the ring is mapped twice in a
        // row, so the record is contiguous.
        let record = unsafe {
            let start = data.start.add(offset + RECORD_HEADER);
            std::slice::from_raw_parts_mut(start, bytes)
        };
        // Records of another pid namespace have another pid.
        if self.own_pid != self.pid.0
            && let Some(pid) = record.get_mut(8..12)
        {
            pid.copy_from_slice(&self.pid.0.to_ne_bytes());
        }
        each(record);
    }
}

/// Zeroes a record, so that an unwritten header is always zero.
fn clear(data: &Mapping, offset: usize, bytes: usize) {
    // SAFETY: the space was read and is not returned to the producers yet.
    let words = unsafe {
        let start = data.start.add(offset).cast::<AtomicU64>();
        std::slice::from_raw_parts(start, bytes / 8)
    };
    words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
}
