//! How to trace, and which processes.

use std::path::PathBuf;

use engine::ids::Pid;

use super::{Stacks, Tensors, Work};
use crate::plan::Tier;

/// Which processes to trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// Every process, also those that start later.
    Everybody,
    /// These processes; with `follow` also the children they make from now on.
    Processes {
        /// The processes.
        pids: Vec<Pid>,
        /// Children too.
        follow: bool,
    },
}

/// How to trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Processes to trace.
    pub target: Target,
    /// Driver libraries named by hand, besides those that are found.
    pub drivers: Vec<PathBuf>,
    /// Bytes of the kernel ring, a power of two and a multiple of the page size.
    pub ring_bytes: u32,
    /// Entries of the tables of processes; `None`: 65,536.
    pub table_entries: Option<u32>,
    /// Keep the state of threads in a table of this many entries; `None`: in the tasks, where the
    /// kernel can do that, else in a table of 16,384.
    pub thread_entries: Option<u32>,
    /// Use this way to attach and no other.
    pub tier: Option<Tier>,
    /// Count launches and copies, too.
    pub work: Option<Work>,
    /// Follow objects that are no memory: streams, events, modules and the like.
    pub objects: bool,
    /// Take stacks of calls that allocate, or make an object.
    pub stacks: Stacks,
    /// Blocks of PyTorch's cache, too.
    pub tensors: Tensors,
    /// Bytes of the kernel ring for stacks, like the other.
    pub stack_ring_bytes: u32,
    /// The folder of the node's logs: names of pods are read off the names of its `pods` and
    /// `containers`.
    pub logs: PathBuf,
    /// For measurements: probes that do nothing, on kernels with session probes.
    pub empty_probes: bool,
}

impl Options {
    /// The default size of the ring: 130,000 calls, against a reader that comes by every
    /// few milliseconds.
    pub const RING_BYTES: u32 = 16 * 1024 * 1024;
    /// The same for stacks, which come once each.
    pub const STACK_RING_BYTES: u32 = 16 * 1024 * 1024;
    /// Where nodes have their logs.
    pub const LOGS: &str = "/var/log";
}
