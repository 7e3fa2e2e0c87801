//! What the GPU is asked to do besides holding memory: kernels, graphs, copies. These calls are far
//! too frequent for an event each: the probes add them up, and events carry what was added since.

use crate::ids::{ExecId, KernelId};

/// News about the work of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work {
    /// Launches of one kernel since the last such event.
    Launches(Launches),
    /// What a kernel is called.
    Named {
        /// The handle that launches name.
        kernel: KernelId,
        /// The name as the driver knows it, mangled; hostile text.
        name: Box<str>,
        /// Who says so.
        by: NamedBy,
    },
    /// `cuKernelGetFunction`: a second handle of the same kernel.
    Alias {
        /// The new handle.
        function: KernelId,
        /// The handle that it was made from.
        kernel: KernelId,
    },
    /// Why a kernel has no name (yet).
    Nameless {
        /// The handle that launches name.
        kernel: KernelId,
        /// The reason.
        why: NoName,
    },
    /// Copies or memsets of one sort since the last such event.
    Copies(Box<Copies>),
}

/// How the name of a kernel became known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum NamedBy {
    /// A call named it.
    Call,
    /// The process had it before tracing began; the name stands where the driver keeps it.
    Memory,
}

/// Launches of one kernel, as *increments* but for the shapes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Launches {
    /// What was launched.
    pub target: Launched,
    /// Calls, of any result.
    pub calls: u64,
    /// Of those: recorded into a graph, and launched nothing yet.
    pub captured: u64,
    /// Of those: whose result was looked at.
    pub checked: u64,
    /// Of those: that failed.
    pub failed: u64,
    /// The last grid, block and shared memory.
    pub last: Option<Shape>,
    /// All calls so far by shape, most frequent first, of the shapes that could be kept.
    pub shapes: Vec<(Shape, u64)>,
    /// All calls so far whose shape was not kept.
    pub other_shapes: u64,
}

/// What a launch launches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Launched {
    /// A kernel.
    Kernel(KernelId),
    /// A whole graph.
    Graph(ExecId),
}

impl Default for Launched {
    fn default() -> Self {
        Self::Kernel(KernelId(0))
    }
}

/// The size of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Shape {
    /// Blocks in each direction.
    pub grid: [u32; 3],
    /// Threads of a block in each direction.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

/// Why the name of a kernel is not known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum NoName {
    /// The process got the handle before tracing began.
    BeforeTrace,
    /// The name could not be read from the process's memory.
    Unreadable,
    /// The record with the name was lost.
    Lost,
}

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Direction {
    /// Host to device.
    HostToDevice,
    /// Device to host.
    DeviceToHost,
    /// On one device, or as the driver sees fit.
    DeviceToDevice,
    /// Host to host.
    HostToHost,
    /// From one context or device to another.
    Peer,
    /// From or to an array.
    Array,
    /// No copy: memory is filled.
    Fill,
    /// The call leaves it to the pointers, and what they point to is not known.
    Unknown,
}

impl Direction {
    /// Every direction, in display order.
    pub const ALL: [Self; 8] = [
        Self::HostToDevice,
        Self::DeviceToHost,
        Self::DeviceToDevice,
        Self::HostToHost,
        Self::Peer,
        Self::Array,
        Self::Fill,
        Self::Unknown,
    ];

    /// The word for it in reports, JSON and metrics, as users of the driver write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::HostToDevice => "H2D",
            Self::DeviceToHost => "D2H",
            Self::DeviceToDevice => "D2D",
            Self::HostToHost => "H2H",
            Self::Peer => "peer",
            Self::Array => "array",
            Self::Fill => "memset",
            Self::Unknown => "unknown",
        }
    }
}

/// Copies of one direction, as *increments*.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Copies {
    /// Which way, where the call says so.
    pub direction: Direction,
    /// For calls that leave the direction to the pointers: one pair of them, destination first.
    pub pointers: Option<(u64, u64)>,
    /// The call returns before the copy is done.
    pub asynchronous: bool,
    /// Calls that succeeded.
    pub calls: u64,
    /// What they copied or filled.
    pub bytes: u64,
    /// How long the synchronous ones took, added up, in nanoseconds.
    pub nanos: u64,
    /// Synchronous calls by bandwidth: the bucket (see [`bandwidth_of`]) and how many.
    pub bandwidths: Vec<(u8, u64)>,
}

/// The lower edge of a bucket in bytes per second: four buckets for each doubling, the first one
/// from 0, the second from 1 KiB/s on.
#[must_use]
pub fn bandwidth_of(bucket: u8) -> u64 {
    let Some(step) = u32::from(bucket).checked_sub(1) else { return 0 };
    let (octave, quarter) = (step / 4 + 10, u64::from(step % 4));
    match 1_u64.checked_shl(octave) {
        Some(base) => base.saturating_add(base / 4 * quarter),
        None => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_a_quarter_of_a_doubling() {
        let edges: Vec<_> = [0, 1, 2, 3, 4, 5, 9].map(bandwidth_of).into();
        assert_eq!(edges, [0, 1024, 1280, 1536, 1792, 2048, 4096]);
        assert!((0..=254).all(|bucket| bandwidth_of(bucket) <= bandwidth_of(bucket + 1)));
    }
}
