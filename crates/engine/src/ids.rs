//! Names of things. A bare integer does not cross a module border.

use std::fmt;

/// A process id as the host's root namespace sees it. Reused by the kernel: alone it is no
/// identity, see [`ProcessKey`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Pid(pub u32);

/// A thread id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Tid(pub u32);

/// A process without doubt: the pid and the moment it started (nanoseconds since boot). An exec
/// keeps both, so the ledger adds a generation of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ProcessKey {
    /// The process id.
    pub pid: Pid,
    /// When the process started, in nanoseconds since boot; 0 when it could not be read.
    pub start: u64,
}

/// A device ordinal *inside* a process (`CUDA_VISIBLE_DEVICES` makes it relative).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct DeviceId(pub u16);

/// A physical GPU of the host, by the index that NVML and `nvidia-smi` use. A MIG instance counts as
/// its GPU.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct GpuId(pub u16);

/// A `CUcontext` value of one process; 0 is "no context".
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ContextId(pub u64);

/// A `CUmemGenericAllocationHandle` of one process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct HandleId(pub u64);

/// A `CUmemoryPool` of one process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PoolId(pub u64);

/// A `CUstream` of one process; the default streams are 0, 1 and 2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StreamId(pub u64);

/// A `CUgraph` of one process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct GraphId(pub u64);

/// A `CUgraphExec` of one process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ExecId(pub u64);

/// The call stack an allocation came from, interned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SiteId(pub u32);

/// A `CUfunction` or `CUkernel` of one process, or a `CUgraphExec` that is launched as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct KernelId(pub u64);

/// An index of the hook table, so that an event can name its driver function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FunctionId(pub u16);

/// Which set of numbers an allocation's name is taken from. A device pointer, a VMM handle and an
/// array handle may be the same number and still be three things.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Space {
    /// A pointer: device, managed, pinned, registered or stream-ordered memory.
    Address = 0,
    /// A `CUmemGenericAllocationHandle`.
    Handle = 1,
    /// A `CUarray` or `CUmipmappedArray`.
    Array = 2,
    /// A `CUmemoryPool`.
    Pool = 3,
    /// A `CUexternalMemory`.
    External = 4,
}

/// What the driver calls an allocation inside one process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Key {
    /// The set of numbers.
    pub space: Space,
    /// The pointer or handle.
    pub value: u64,
}

impl Key {
    /// The key of a pointer.
    #[must_use]
    pub const fn address(value: u64) -> Self {
        Self { space: Space::Address, value }
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gpu_{}", self.0)
    }
}
