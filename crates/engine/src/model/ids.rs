//! Identifier types. Plain integers do not cross module boundaries.

use std::fmt;

use crate::model::named::named_enum;

/// A process id in the host's root namespace. The kernel reuses pids, so a pid alone does not
/// identify a process: see [`ProcessKey`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Pid(pub u32);

/// A thread id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Tid(pub u32);

/// Identifies a process: pid and start time (nanoseconds since boot). An exec keeps both, so the
/// ledger adds its own generation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct ProcessKey {
    /// Process id.
    pub pid: Pid,
    /// Start time in nanoseconds since boot; 0 if it could not be read.
    pub start: u64,
}

/// Device ordinal *inside* a process, relative to `CUDA_VISIBLE_DEVICES`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct DeviceId(pub u16);

/// A physical GPU of the host, by its NVML and `nvidia-smi` index. A MIG instance counts as its
/// GPU.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct GpuId(pub u16);

/// A `CUcontext` of one process; 0 means no context.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ContextId(pub u64);

/// A `CUmemGenericAllocationHandle` of one process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PhysicalHandleId(pub u64);

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
pub struct GraphExecId(pub u64);

/// An allocation site: an interned call stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SiteId(pub u32);

/// A `CUfunction` or `CUkernel` of one process, or a `CUgraphExec`, which is launched as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct KernelId(pub u64);

/// Index into the hook table: identifies a driver function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FunctionId(pub u16);

impl FunctionId {
    /// Not a driver function: PyTorch's caching allocator.
    pub const FRAMEWORK: Self = Self(u16::MAX);
}

named_enum! {
    /// Type of an allocation's address or handle. A device pointer, a VMM handle and an array handle
    /// may have the same value and still be different allocations.
    pub enum AddressType {
        /// A pointer: device, managed, pinned, registered or stream-ordered memory.
        Pointer => "pointer",
        /// A `CUmemGenericAllocationHandle`.
        Handle => "handle",
        /// A `CUarray` or `CUmipmappedArray`.
        Array => "array",
        /// A `CUmemoryPool`.
        Pool => "pool",
        /// A `CUexternalMemory`.
        External => "external",
    }
}

/// Identifies a live allocation inside one process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct AllocationKey {
    /// Type of the value.
    pub space: AddressType,
    /// Pointer or handle.
    pub value: u64,
}

impl AllocationKey {
    /// Key of a pointer.
    #[must_use]
    pub const fn address(value: u64) -> Self {
        Self { space: AddressType::Pointer, value }
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
