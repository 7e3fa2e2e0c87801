//! Layout of the memory that a traced process shares with the collector.
//!
//! The collector's directory has one control file, written before the command starts: the options
//! and the hook table. Each traced process adds one area file: a header, tables, a ring of records
//! and a ring of stacks; and a file with its executable mappings. Both sides compute the same
//! offsets from the control file.
//!
//! A ring is a bounded multi-producer queue. A producer reserves space by moving `head`, fills it,
//! and marks the record as complete. The collector stops at a record that is not complete, and
//! zeroes the records that it has read before it moves `tail`, so an unwritten header is always
//! zero.

use std::mem::size_of;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use crate::wire::{Copies, Launches, VS_MAX_HOOKS, WireHook, WirePython};

/// First bytes of both files.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"vramscop");
/// Identifies the layouts of one build: a hash of this file and of `wire.h`.
pub(crate) const LAYOUT_VERSION: u32 = {
    let hash = fnv1a(0xcbf2_9ce4_8422_2325, include_bytes!("area.rs"));
    let hash = fnv1a(hash, include_bytes!("../../capture/src/bpf/wire.h"));
    (hash ^ (hash >> 32)) as u32
};
/// The same in the library, after a text by which the collector finds it in the file.
pub(crate) const LAYOUT_MARK: [u8; 24] = {
    let mut mark = *b"vramscope layout is ....";
    let (_, version) = mark.split_at_mut(20);
    version.copy_from_slice(&LAYOUT_VERSION.to_le_bytes());
    mark
};

const fn fnv1a(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut index = 0;
    while index < bytes.len() {
        hash = (hash ^ bytes[index] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        index += 1;
    }
    hash
}

/// Name of the control file.
pub(crate) const CONTROL_FILE: &str = "control";
/// Returns the name of the file with the executable mappings of the process with this area, as in
/// `/proc/PID/maps`.
pub(crate) fn mappings_file(area: u32) -> String {
    format!("{area}.maps")
}

/// Environment variable with the collector's directory.
pub(crate) const DIR_VARIABLE: &str = "VRAMSCOPE_RUN_DIR";
/// Environment variable with the injection library that the user configured.
pub(crate) const CHAIN_VARIABLE: &str = "VRAMSCOPE_CHAINED_INJECTION";

/// Maximum length of a function name, with the terminating zero.
pub(crate) const MAX_SYMBOL: usize = 64;

/// The largest page size of any kernel for this processor.
const PAGE: usize = if cfg!(target_arch = "aarch64") { 1 << 16 } else { 4096 };

/// A row of the hook table.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Row {
    pub(crate) hook: WireHook,
    /// 8-byte arguments beyond the six in registers.
    pub(crate) stack_words: u8,
    /// The function is to be wrapped.
    pub(crate) is_wanted: u8,
    pub(crate) reserved: [u8; 6],
    pub(crate) symbol: [u8; MAX_SYMBOL],
}

/// Maximum number of functions of a newer driver whose calls are counted.
pub(crate) const MAX_UNKNOWN: usize = 256;
/// Number of the first function of an allocator. Its number modulo [`BLOCK_CALLS`] is the
/// `enum vs_block_call`.
pub(crate) const FIRST_BLOCK_FUNCTION: usize = VS_MAX_HOOKS + MAX_UNKNOWN;
/// Number of kinds of functions of allocators.
pub(crate) const BLOCK_CALLS: usize = 8;
/// Maximum number of functions of each kind: copies of a function, or of a library.
const MAX_BLOCK_FUNCTIONS: usize = 16;
/// Numbers of functions: rows of the hook table, unknown functions, functions of allocators.
pub(crate) const FUNCTIONS: usize = FIRST_BLOCK_FUNCTION + BLOCK_CALLS * MAX_BLOCK_FUNCTIONS;

/// Number of allocators.
pub(crate) const ALLOCATORS: usize = 5;

/// Whether the blocks of an allocator are recorded.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct AllocatorInfo {
    /// Since when: monotonic nanoseconds.
    pub(crate) since: AtomicU64,
    /// [`AllocatorState`]; 0 while its library is not loaded.
    pub(crate) state: AtomicU32,
}

/// State of an allocator whose library is loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AllocatorState {
    /// Its blocks are recorded.
    Tracked = 1,
    /// The library with its functions is not loaded.
    NoLibrary = 2,
    /// The library does not have the functions in its symbol table.
    NoSymbol = 3,
    /// The file of the library cannot be read.
    Unreadable = 4,
    /// The functions cannot be wrapped safely.
    AttachFailed = 5,
}

/// A memory function of the driver that the hook table does not have.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct UnknownFunction {
    /// Its name; empty after the last one.
    pub(crate) name: [u8; MAX_SYMBOL],
    pub(crate) calls: AtomicU64,
}

/// Sizes from which both sides compute the parts of an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct Sizes {
    /// Size of the ring of records: a power of two, at least a page.
    pub(crate) record_ring: u32,
    /// Size of the ring of stacks, likewise; 0: no stacks.
    pub(crate) stack_ring: u32,
    /// Entries of the table of launches, a power of two; 0: launches are not counted.
    pub(crate) launches: u32,
    /// Entries of the table of copies, likewise.
    pub(crate) copies: u32,
    /// Size of the store of known stacks; 0: no stacks.
    pub(crate) known_stacks: u32,
    /// Entries of the table of sent lists of frames; a power of two, or 0.
    pub(crate) sent_frames: u32,
}

/// The control file. The fields up to `failures` are the same in all builds.
#[repr(C)]
pub(crate) struct Control {
    pub(crate) magic: u64,
    pub(crate) layout_version: u32,
    /// Processes that loaded the library and could not be traced, by [`StartFailure`].
    pub(crate) failures: [AtomicU32; START_FAILURES],
    pub(crate) rows_used: u32,
    pub(crate) sizes: Sizes,
    /// Launches and copies are counted.
    pub(crate) count_activity: u32,
    pub(crate) check_every_launch: u32,
    /// `enum vs_blocks`.
    pub(crate) blocks: u32,
    /// `enum vs_stacks`: the stack mode in use.
    pub(crate) stacks: AtomicU32,
    /// Number of created areas; also the number of the newest one.
    pub(crate) areas: AtomicU32,
    /// Number of complete areas, so that the collector searches for files only if it changes.
    pub(crate) ready: AtomicU32,
    /// Number of wakeups of the collector, which sleeps until this changes (a futex).
    pub(crate) wakes: AtomicU32,
    /// The collector sleeps and was not woken yet.
    pub(crate) is_waiting: AtomicU32,
    /// The trace has ended: processes stop recording calls.
    pub(crate) is_closed: AtomicU32,
    /// Bytes of an array element by format, as in `loss.h`.
    pub(crate) element_bytes: [u8; 256],
    pub(crate) rows: [Row; VS_MAX_HOOKS],
}

/// Number of variants of [`StartFailure`].
pub(crate) const START_FAILURES: usize = 5;

/// Reason why a process is not traced at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StartFailure {
    /// The library belongs to another build than the collector.
    OtherBuild = 0,
    /// The area could not be created: not enough space, or no permission.
    NoArea = 1,
    /// The driver was not found among the loaded libraries.
    NoDriver = 2,
    /// No addresses for code are free within reach of the driver.
    NoSpaceNearby = 3,
    /// The driver's code could not be made writable.
    Protected = 4,
}

/// State of a row in one process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RowState {
    /// The row is not wanted, or the library does not have the function.
    Absent = 0,
    /// Calls are recorded.
    Wrapped = 1,
    /// Another row wraps the same address.
    Alias = 2,
    /// The first instructions cannot be moved.
    UnknownPrologue = 3,
    /// The function is outside of the library's code: another tool replaced it.
    Foreign = 4,
}

/// A position in a ring, on its own cache line.
#[repr(C, align(64))]
pub(crate) struct Position(pub(crate) AtomicU64);

/// A ring's head (producers) and tail (the collector), in bytes since the start.
#[repr(C)]
pub(crate) struct Ring {
    pub(crate) head: Position,
    pub(crate) tail: Position,
}

/// Header of a record: its length, and [`COMPLETE`] once it can be read.
pub(crate) type RecordHeader = AtomicU64;
/// Bytes of a record's header.
pub(crate) const RECORD_HEADER: usize = size_of::<RecordHeader>();
/// The record can be read.
pub(crate) const COMPLETE: u64 = 1 << 63;

/// Lost records, in the order of `struct vs_lost`.
#[repr(C)]
pub(crate) struct Losses {
    pub(crate) allocations: AtomicU64,
    pub(crate) allocated_bytes: AtomicU64,
    pub(crate) frees: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) other: AtomicU64,
    pub(crate) launches: AtomicU64,
    pub(crate) copies: AtomicU64,
    pub(crate) stacks: AtomicU64,
    pub(crate) objects: AtomicU64,
    pub(crate) tensors: AtomicU64,
    /// Sum of all of the above; updated last.
    pub(crate) total: AtomicU64,
}

/// The start of an area.
#[repr(C)]
pub(crate) struct Header {
    pub(crate) magic: u64,
    pub(crate) layout_version: u32,
    pub(crate) pid: u32,
    /// Number of the area. Its lowest 16 bits are the exec generation of records: like the kernel's
    /// number, it changes with each exec.
    pub(crate) number: u32,
    pub(crate) uid: u32,
    /// Start time of the process, nanoseconds since boot.
    pub(crate) start: u64,
    /// Nonzero when everything above and the rows are valid.
    pub(crate) ready: AtomicU32,
    /// Nonzero when the collector has searched the process for an interpreter (a futex).
    pub(crate) is_examined: AtomicU32,
    /// Version of `python`: odd while it is written.
    pub(crate) python_version: AtomicU32,
    pub(crate) python: WirePython,
    /// [`RowState`] by function. Those of allocators can change later.
    pub(crate) rows: [AtomicU8; FUNCTIONS],
    pub(crate) unknown: [UnknownFunction; MAX_UNKNOWN],
    /// The allocators, in the order of `Allocator`.
    pub(crate) allocators: [AllocatorInfo; ALLOCATORS],
    /// Address of the jump of each wrapped function; else 0.
    pub(crate) jump_addresses: [AtomicU64; FUNCTIONS],
    /// Code of the jumps, in the lowest bytes.
    pub(crate) jumps: [AtomicU64; FUNCTIONS],
    pub(crate) losses: Losses,
    pub(crate) records: Ring,
    pub(crate) stacks: Ring,
    /// Version of the known stacks: odd while the collector clears them.
    pub(crate) known_version: AtomicU32,
    /// Used bytes of the store.
    pub(crate) known_used: AtomicU32,
    /// Offset of the first entry of each chain in the store; 0: none.
    pub(crate) known_heads: [AtomicU32; KNOWN_HEADS],
}

/// Number of chains of known stacks; a power of two.
pub(crate) const KNOWN_HEADS: usize = 2048;

/// A known stack in the store, followed by `count` slots: offset from sp and return address.
#[repr(C)]
pub(crate) struct KnownStack {
    pub(crate) ip: u64,
    pub(crate) sp: u64,
    /// Its number; 0: replaced.
    pub(crate) number: AtomicU64,
    /// Next entry of the chain.
    pub(crate) next: u32,
    pub(crate) index: u16,
    pub(crate) count: u16,
}

/// Returns the chain of the stacks with this innermost frame.
pub(crate) const fn known_chain(ip: u64, sp: u64) -> usize {
    let hash = (ip ^ sp.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> 40) as usize & (KNOWN_HEADS - 1)
}

/// Launches of one kernel or graph.
#[repr(C)]
pub(crate) struct LaunchEntry {
    /// [`launch_key`] of the kernel or graph; 0: free.
    pub(crate) key: AtomicU64,
    pub(crate) sum: Launches,
}

/// Set in the key of a graph. Handles are user-space addresses, so the bit is free.
pub(crate) const GRAPH_KEY: u64 = 1 << 63;

/// Key of a null handle: handles are never odd.
pub(crate) const NULL_KEY: u64 = 1;

/// Returns the key of a kernel or graph in the table of launches.
pub(crate) const fn launch_key(target: u64, is_graph: bool) -> u64 {
    let key = if target == 0 { NULL_KEY } else { target & !GRAPH_KEY };
    if is_graph { key | GRAPH_KEY } else { key }
}

/// Copies of one direction and mode.
#[repr(C)]
pub(crate) struct CopyEntry {
    /// 0: free, 1: being initialized, 2: in use.
    pub(crate) state: AtomicU32,
    pub(crate) direction: u8,
    pub(crate) asynchronous: u8,
    pub(crate) reserved: u16,
    pub(crate) to: u64,
    pub(crate) from: u64,
    pub(crate) sum: Copies,
}

/// Entries of a set in the table of sent lists of frames.
pub(crate) const SENT_WAYS: usize = 8;

/// Offsets of an area's parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offsets {
    pub(crate) launches: usize,
    pub(crate) copies: usize,
    pub(crate) known_stacks: usize,
    pub(crate) sent_frames: usize,
    /// Start of the rings. Everything before them is mapped once, the rings twice in a row.
    pub(crate) records: usize,
    pub(crate) stacks: usize,
    pub(crate) end: usize,
}

impl Sizes {
    /// Returns the offsets of the parts of an area.
    pub(crate) const fn offsets(&self) -> Offsets {
        let launches = size_of::<Header>().next_multiple_of(64);
        let copies = launches + self.launches as usize * size_of::<LaunchEntry>();
        let known_stacks = copies + self.copies as usize * size_of::<CopyEntry>();
        let sent_frames = known_stacks + self.known_stacks as usize;
        let tables = sent_frames + self.sent_frames as usize * size_of::<u64>();
        let records = tables.next_multiple_of(PAGE);
        let stacks = records + self.record_ring as usize;
        let end = stacks + self.stack_ring as usize;
        Offsets { launches, copies, known_stacks, sent_frames, records, stacks, end }
    }

    /// Returns whether the sizes of rings and tables are supported.
    pub(crate) const fn are_valid(&self) -> bool {
        const fn ring(bytes: u32) -> bool {
            bytes.is_power_of_two() && bytes as usize >= PAGE && bytes <= 1 << 30
        }
        const fn table(entries: u32, max: u32) -> bool {
            entries == 0 || (entries.is_power_of_two() && entries <= max)
        }
        ring(self.record_ring)
            && (self.stack_ring == 0 || ring(self.stack_ring))
            && table(self.launches, 1 << 20)
            && table(self.copies, 1 << 20)
            && table(self.sent_frames, 1 << 20)
            && self.known_stacks <= 1 << 28
            && self.known_stacks.is_multiple_of(8)
    }
}

const _: () = {
    assert!(std::mem::offset_of!(Control, failures) == 12);
    assert!(size_of::<Header>().is_multiple_of(8));
    assert!(size_of::<LaunchEntry>() == 192);
    assert!(size_of::<CopyEntry>().is_multiple_of(8));
    assert!(size_of::<KnownStack>() == 32);
};
