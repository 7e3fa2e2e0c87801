//! Identifier types. Plain integers do not cross module boundaries.

use std::fmt;

use crate::model::named::named_enum;

/// Declares identifiers: numbers with a type of their own.
macro_rules! ids {
    ($($(#[$about:meta])* $name:ident($number:ty);)*) => {
        $($(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
        pub struct $name(pub $number);)*
    };
}

ids! {
    /// A process id in the host's root namespace. The kernel reuses pids, so a pid alone does not
    /// identify a process: see [`ProcessKey`].
    Pid(u32);
    /// A thread id.
    Tid(u32);
    /// Device ordinal *inside* a process, relative to `CUDA_VISIBLE_DEVICES`.
    DeviceId(u16);
    /// A physical GPU of the host, by its NVML and `nvidia-smi` index. A MIG instance counts as its
    /// GPU.
    GpuId(u16);
    /// A `CUcontext` of one process; 0 means no context.
    ContextId(u64);
    /// A `CUmemGenericAllocationHandle` of one process.
    PhysicalHandleId(u64);
    /// A `CUmemoryPool` of one process.
    PoolId(u64);
    /// A `CUstream` of one process; the default streams are 0, 1 and 2.
    StreamId(u64);
    /// A `CUgraph` of one process.
    GraphId(u64);
    /// A `CUgraphExec` of one process.
    GraphExecId(u64);
    /// An allocation site: an interned call stack.
    SiteId(u32);
    /// A `CUfunction` or `CUkernel` of one process, or a `CUgraphExec`, which is launched as a whole.
    KernelId(u64);
    /// Memory that is shared between processes: the handle that the exporter passed on, the same on both
    /// sides.
    ShareId(u64);
    /// Index into the hook table: identifies a driver function.
    FunctionId(u16);
}

/// Identifies a process: pid and start time (nanoseconds since boot). An exec keeps both, so the
/// ledger adds its own generation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct ProcessKey {
    /// Process id.
    pub pid: Pid,
    /// Start time in nanoseconds since boot; 0 if it could not be read.
    pub start: u64,
}

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
