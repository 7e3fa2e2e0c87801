//! GPU activity other than memory calls: kernels, graphs, copies. These calls are far too frequent
//! for one event each: the probes count them, and events carry the increments.

use crate::model::named::named_enum;
use crate::model::{GraphExecId, KernelId};

/// GPU activity of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "fields have the names of their types")]
pub enum GpuActivity {
    /// Launches of one kernel since the last event of this kind.
    Launches(KernelLaunches),
    /// Name of the kernel that launches refer to by this handle, as the driver knows it: mangled
    /// and untrusted.
    Named { kernel: KernelId, name: Box<str>, source: NameSource },
    /// `cuKernelGetFunction`: `function` is a second handle of the same kernel.
    Alias { function: KernelId, kernel: KernelId },
    /// Why a kernel has no name (yet).
    Unnamed { kernel: KernelId, reason: UnnamedReason },
    /// Copies or memsets of one direction and mode since the last event of this kind.
    Copies(Box<CopyActivity>),
}

named_enum! {
    /// Source of the name of a kernel.
    pub enum NameSource {
        /// A driver call.
        Call => "call",
        /// The memory of the process: it had the kernel before tracing began, and the driver stores the
        /// name there.
        Memory => "memory",
    }
}

/// Launches of one kernel, as *increments* except for the shapes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KernelLaunches {
    /// Kernel or graph.
    pub target: LaunchTarget,
    /// Calls with any result.
    pub calls: u64,
    /// Of those: captured into a graph, and not executed yet.
    pub captured: u64,
    /// Of those: whose result was checked.
    pub checked: u64,
    /// Of those: that failed.
    pub failed: u64,
    /// Last grid, block and shared memory size.
    pub last: Option<LaunchShape>,
    /// All calls so far by shape, most frequent first, for the shapes that are kept.
    pub shapes: Vec<(LaunchShape, u64)>,
    /// All calls so far whose shape was not kept.
    pub other_shapes: u64,
}

/// What is launched.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum LaunchTarget {
    /// A kernel.
    Kernel(KernelId),
    /// A graph exec.
    Graph(GraphExecId),
}

impl Default for LaunchTarget {
    fn default() -> Self {
        Self::Kernel(KernelId(0))
    }
}

/// Dimensions of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct LaunchShape {
    /// Blocks in each dimension.
    pub grid: [u32; 3],
    /// Threads of a block in each dimension.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

named_enum! {
    /// Why the name of a kernel is unknown.
    pub enum UnnamedReason {
        /// The process obtained the handle before tracing began.
        BeforeTrace => "before_trace",
        /// The name could not be read from the process's memory.
        Unreadable => "unreadable",
        /// The record with the name was lost.
        Lost => "lost",
    }
}

named_enum! {
    /// Direction of a copy.
    pub enum CopyDirection {
        /// Host to device.
        HostToDevice => "H2D",
        /// Device to host.
        DeviceToHost => "D2H",
        /// Within one device, or chosen by the driver.
        DeviceToDevice => "D2D",
        /// Host to host.
        HostToHost => "H2H",
        /// From one context or device to another.
        Peer => "peer",
        /// From or to an array.
        Array => "array",
        /// Not a copy: memory is set.
        Memset => "memset",
        /// The call leaves the direction to the pointers, and their memory is unknown.
        Unknown => "unknown",
    }
}

/// Copies of one direction and mode, as *increments*.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyActivity {
    /// Direction, if the call specifies it.
    pub direction: CopyDirection,
    /// For calls that leave the direction to the pointers: one pair, destination first.
    pub pointers: Option<(u64, u64)>,
    /// Whether the call returns before the copy is done.
    pub asynchronous: bool,
    /// Successful calls.
    pub calls: u64,
    /// Bytes copied or set.
    pub bytes: u64,
    /// Total time of the synchronous calls in nanoseconds.
    pub nanos: u64,
    /// Synchronous calls by bandwidth: bucket (see [`bandwidth_of`]) and count.
    pub bandwidths: Vec<(u8, u64)>,
}

/// Lower bound of a bucket in bytes per second: four buckets per power of two, the first from 0,
/// the second from 1 KiB/s.
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
