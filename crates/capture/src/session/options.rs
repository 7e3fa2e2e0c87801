//! Options of a trace.

use std::path::PathBuf;

use engine::model::ids::Pid;

use super::{ActivityOptions, AllocatorMode, StackMode};
use crate::plan::AttachMode;

/// Processes to trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// All processes, including those that start later.
    All,
    /// A list of processes.
    Processes {
        /// The processes.
        pids: Vec<Pid>,
        /// Also trace children forked from now on.
        follow: bool,
    },
}

/// Options of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionOptions {
    /// Processes to trace.
    pub target: Target,
    /// Driver libraries to probe in addition to those that are found.
    pub drivers: Vec<PathBuf>,
    /// Size of the ring buffer, a power of two and a multiple of the page size.
    pub ring_bytes: u32,
    /// Entries of the per-process maps; `None`: 65,536.
    pub table_entries: Option<u32>,
    /// Keep thread state in a map with this many entries; `None`: in task storage if the kernel has
    /// it, else in a map of 16,384.
    pub thread_entries: Option<u32>,
    /// Use only this attach mode.
    pub attach_mode: Option<AttachMode>,
    /// Count launches and copies.
    pub activity: Option<ActivityOptions>,
    /// Track CUDA objects that are not memory: streams, events, modules and others.
    pub objects: bool,
    /// Capture stacks of calls that allocate memory or create an object.
    pub stacks: StackMode,
    /// Record blocks of allocators in processes.
    pub allocators: AllocatorMode,
    /// Size of the ring buffer for stacks, with the same constraints.
    pub stack_ring_bytes: u32,
    /// The node's log directory: names of pods are taken from the entries of its `pods` and
    /// `containers`.
    pub logs: PathBuf,
    /// For measurements: attach empty programs, on kernels with session probes.
    pub empty_probes: bool,
}

impl SessionOptions {
    /// Default size of the ring: holds 130,000 calls, and the reader polls every few milliseconds.
    pub const RING_BYTES: u32 = 16 * 1024 * 1024;
    /// Default size of the ring for stacks; each stack is sent once.
    pub const STACK_RING_BYTES: u32 = 16 * 1024 * 1024;
    /// Default log directory of a node.
    pub const DEFAULT_LOG_DIR: &str = "/var/log";

    /// Returns the options of a trace of memory alone.
    #[must_use]
    pub fn new(target: Target) -> Self {
        Self {
            target,
            drivers: Vec::new(),
            ring_bytes: Self::RING_BYTES,
            table_entries: None,
            thread_entries: None,
            attach_mode: None,
            activity: None,
            objects: false,
            stacks: StackMode::Off,
            allocators: AllocatorMode::Off,
            stack_ring_bytes: Self::STACK_RING_BYTES,
            logs: Self::DEFAULT_LOG_DIR.into(),
            empty_probes: false,
        }
    }
}
