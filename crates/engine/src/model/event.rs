//! Events: the only input of the ledger. Live capture, recordings and other tools' files are all
//! converted to this type.

pub use crate::model::loss::LostDelta;
use crate::model::named::named_enum;
use crate::model::{
    AllocationKey, Allocator, BlockEvent, BlockTracking, Container, ContextId, ContextLimit,
    DeviceHolder, DeviceId, Frame, FunctionId, GpuActivity, GpuId, GraphExecId, GraphId, MarkKind,
    MemoryKind, MigInstance, ObjectCall, PhysicalHandleId, Pid, PoolId, ProcessIdentity, ShareId,
    SiteId, StreamId, Tid, Timestamp,
};

/// One event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Process in which it happened.
    pub pid: Pid,
    /// Thread that made the call.
    pub tid: Tid,
    /// Entry time of the call; equal to `time` for events without a duration.
    pub entry_time: Timestamp,
    /// Return time of the call. Events of one process arrive in this order, except for overlapping
    /// calls of different threads.
    pub time: Timestamp,
    /// What happened.
    pub kind: EventKind,
}

/// Kind of event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// A process was seen for the first time. For events of an unannounced pid the ledger creates
    /// an unannounced process.
    Process(ProcessInfo),
    /// Container of the process; sent right after the process is announced, and again when more is
    /// known.
    Container(Box<Container>),
    /// Program and user of the process; sent right after the process is announced.
    Identity(Box<ProcessIdentity>),
    /// Name of a thread; sent with its first call and on changes.
    ThreadName(Box<str>),
    /// The process executed another program: all its memory is released.
    Exec,
    /// The last thread of the process ended: all its memory is released.
    Exit,
    /// One thread ended; the process continues.
    ThreadExit,
    /// An allocating call succeeded.
    Allocate(Allocate),
    /// A freeing call succeeded.
    Free(Free),
    /// A call on physical memory, its references or its mappings.
    Vmm(VmmCall),
    /// A call on a memory pool.
    Pool(PoolCall),
    /// A call on a graph, if it concerns memory.
    Graph(GraphCall),
    /// Memory was exported to other processes, or imported from one.
    Share(ShareCall),
    /// A driver call failed and changed nothing.
    Failed(FailedCall),
    /// A context was created or destroyed.
    Context(ContextCall),
    /// Physical GPUs of the process's device ordinals (`CUDA_VISIBLE_DEVICES`): one entry for each
    /// device that the process can see.
    Gpus(Box<[Option<GpuId>]>),
    /// MIG instance on which the process runs: CUDA gives a process at most one.
    MigInstance(Box<MigInstance>),
    /// Driver-reported usage (NVML) of a process on a GPU. Includes contexts, code, local memory
    /// and pools. The entry time is the time of the query.
    DriverUsage {
        /// GPU.
        gpu: GpuId,
        /// Total memory of the process on it.
        bytes: u64,
        /// Whether the driver lists the process on no other GPU.
        only: bool,
    },
    /// Free memory of a GPU as reported by the driver; the pid is unused.
    GpuFree {
        /// GPU.
        gpu: GpuId,
        /// Free memory.
        bytes: u64,
    },
    /// Processes that have a GPU open and that the driver does not list; replaces the last list. The
    /// pid is unused. Not recorded: it is about the host, not about the traced processes.
    DeviceHolders(Box<[DeviceHolder]>),
    /// Driver-reported usage of processes and GPUs is no longer known; the pid is unused.
    DriverUsageLost,
    /// The kernel could not deliver some records.
    Lost(LostDelta),
    /// The process called a memory function that this version does not know: what it allocated is not
    /// in any total.
    UnknownCalls {
        /// Name; untrusted.
        function: Box<str>,
        /// Calls since the previous event for the process and function, successful or not.
        calls: u64,
    },
    /// GPU activity other than memory calls: launches, kernel names, copies.
    Activity(GpuActivity),
    /// `cuCtxSetLimit` set a limit that takes device memory.
    Limit {
        /// Limit.
        limit: ContextLimit,
        /// New value: bytes, or a number of launches.
        value: u64,
    },
    /// A CUDA object that is not itself memory was created or destroyed.
    Object(ObjectCall),
    /// An allocator inside the process allocated or freed a block.
    Block(BlockEvent),
    /// A process has such an allocator: whether its blocks are tracked.
    Allocator(Allocator, BlockTracking),
    /// A user or program set a mark. The pid is 0 for marks of the whole host. Arrives up to a read of
    /// the ring later than the events of its time.
    Mark {
        /// Kind.
        kind: MarkKind,
        /// Label; untrusted.
        label: Box<str>,
    },
    /// Frames of a site. May arrive after the first event that refers to the site, because
    /// symbolization takes time; the pid is unused.
    Site(SiteFrames),
    /// Python references that keep the memory of the process at an address alive, and that of the same
    /// site: `__main__.history (dict, 1233 entries)`. The text is free of control characters.
    KeptBy(u64, Box<str>),
}

/// Call stack of a site, innermost frame first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SiteFrames {
    /// Site.
    pub site: SiteId,
    /// Frames; all strings are untrusted.
    pub frames: Box<[Frame]>,
}

/// Facts about a process, known when it is first seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessInfo {
    /// Start time in nanoseconds since boot; 0 if unknown.
    pub start: u64,
    /// User id of the owner.
    pub uid: u32,
    /// Name of the process; untrusted, must be sanitized before printing.
    pub name: Box<str>,
    /// Whether it had mapped the driver before tracing began, so that it may hold memory from
    /// before the trace.
    pub before_trace: bool,
}

/// A successful allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocate {
    /// Key of the allocation.
    pub key: AllocationKey,
    /// Memory kind.
    pub kind: MemoryKind,
    /// Size.
    pub bytes: u64,
    /// Context it belongs to, if the thread's current context is known.
    pub context: Option<ContextId>,
    /// Device, if known from the call or the thread's state. If `None`, the ledger uses the device
    /// of the context.
    pub device: Option<DeviceId>,
    /// Pool, if the call names one.
    pub pool: Option<PoolId>,
    /// Stream, for stream-ordered memory: while that stream (or the calling thread) captures a
    /// graph, the call creates a node and does not allocate.
    pub stream: Option<StreamId>,
    /// Allocation site.
    pub site: Option<SiteId>,
}

named_enum! {
    /// Function family of a free. A family that does not match the memory kind is API misuse, even if
    /// the driver accepts it.
    pub enum FreeFunction {
        /// `cuMemFree`: device, managed and stream-ordered memory, imported buffers.
        Free => "free",
        /// `cuMemFreeAsync`: stream-ordered memory; the driver also accepts plain device memory.
        FreeAsync => "free_async",
        /// `cuMemFreeHost`: pinned memory.
        FreeHost => "free_host",
        /// `cuMemHostUnregister`: registered memory.
        Unregister => "unregister",
        /// `cuArrayDestroy`, `cuMipmappedArrayDestroy`.
        DestroyArray => "destroy_array",
        /// `cuIpcCloseMemHandle`.
        CloseImport => "close_import",
        /// `cuDestroyExternalMemory`.
        DestroyExternal => "destroy_external",
    }
}

impl FreeFunction {
    /// Whether the family is meant for a memory kind. Kinds without a family of their own match
    /// all.
    pub const fn fits(self, kind: MemoryKind) -> bool {
        match kind {
            MemoryKind::Device | MemoryKind::Managed => matches!(self, Self::Free),
            MemoryKind::Async | MemoryKind::HostAsync | MemoryKind::Graph => {
                matches!(self, Self::Free | Self::FreeAsync)
            }
            MemoryKind::Pinned => matches!(self, Self::FreeHost),
            MemoryKind::Registered => matches!(self, Self::Unregister),
            MemoryKind::Array => matches!(self, Self::DestroyArray),
            MemoryKind::Imported => {
                matches!(self, Self::Free | Self::CloseImport | Self::DestroyExternal)
            }
            MemoryKind::Physical
            | MemoryKind::HostPhysical
            | MemoryKind::Pool
            | MemoryKind::Static
            | MemoryKind::ManagedStatic
            | MemoryKind::Pageable
            | MemoryKind::Torch
            | MemoryKind::CuPy
            | MemoryKind::Xla
            | MemoryKind::Rmm
            | MemoryKind::OnnxRuntime
            | MemoryKind::Unknown => true,
        }
    }
}

/// A successful free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Free {
    /// Key of the allocation. A null pointer is a legal no-op and never becomes an event.
    pub key: AllocationKey,
    /// Function family.
    pub by: FreeFunction,
    /// Stream, for `cuMemFreeAsync`: while it captures, the call creates a node.
    pub stream: Option<StreamId>,
}

/// Location of physical memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryLocation {
    /// A device.
    Device(DeviceId),
    /// The host, or one of its NUMA nodes.
    Host,
}

/// Calls of the virtual memory management API. Physical memory is created by `Create` and freed
/// when its last reference is released *and* its last mapping is removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "fields have the names of their types")]
pub enum VmmCall {
    /// `cuMemCreate`: the new handle has one reference.
    Create { handle: PhysicalHandleId, bytes: u64, location: MemoryLocation, site: Option<SiteId> },
    /// `cuMemImportFromShareableHandle`: memory of another process, with one reference. Its size
    /// becomes known when it is mapped.
    Import { handle: PhysicalHandleId },
    /// `cuMulticastCreate`: a handle without memory, with one reference.
    Multicast { handle: PhysicalHandleId },
    /// `cuMemRetainAllocationHandle`: adds a reference to the memory mapped at an address, whose
    /// handle it returns.
    Retain { handle: PhysicalHandleId },
    /// `cuMemRelease`: drops a reference.
    Release { handle: PhysicalHandleId },
    /// `cuMemMap`.
    Map { address: u64, bytes: u64, handle: PhysicalHandleId },
    /// `cuMemUnmap`: removes all mappings inside the range.
    Unmap { address: u64, bytes: u64 },
    /// `cuMemAddressReserve`: reserves a range of addresses, does not allocate memory.
    Reserve { address: u64, bytes: u64 },
    /// `cuMemAddressFree`: ends the reservation of a range.
    Unreserve { address: u64, bytes: u64 },
}

/// Calls on memory pools. The *used* bytes of a pool are the sum of its live stream-ordered
/// allocations. The *reserved* bytes are known only to the driver, and seen when a program queries
/// them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "fields have the names of their types")]
pub enum PoolCall {
    /// `cuMemPoolCreate`, or an import of another process's pool, which does not have a location.
    Created { pool: PoolId, location: Option<MemoryLocation> },
    /// `cuMemPoolDestroy`: the pool stays until its last allocation is freed.
    Destroyed { pool: PoolId },
    /// `cuMemPoolTrimTo`: the pool may keep this number of bytes.
    Trimmed { pool: PoolId, keep: u64 },
    /// `cuMemPoolGetAttribute` returned the reserved size of the pool.
    ReservedReported { pool: PoolId, bytes: u64 },
    /// `cuDeviceGetDefaultMemPool`, `cuDeviceGetMemPool`, `cuDeviceSetMemPool`: a pool of a device.
    /// If it was not created by the program, or is not the current pool, it is the default pool.
    /// `cuMemAllocAsync` allocates from the current pool.
    OfDevice { pool: PoolId, device: DeviceId, current: bool },
}

/// Calls on graphs with memory nodes, and on stream capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "fields have the names of their types")]
pub enum GraphCall {
    /// `cuStreamBeginCapture`: calls on the stream become nodes, of the graph of
    /// `cuStreamBeginCaptureToGraph` if there is one.
    CaptureBegan { stream: StreamId, graph: Option<GraphId> },
    /// `cuStreamEndCapture`: the nodes belong to this graph. Failed captures return no graph.
    CaptureEnded { stream: StreamId, graph: Option<GraphId> },
    /// `cuGraphAddMemAllocNode`: reserves an address, does not allocate yet.
    AllocNode { graph: GraphId, address: u64, bytes: u64, location: MemoryLocation },
    /// `cuGraphAddMemFreeNode`.
    FreeNode { graph: GraphId, address: u64 },
    /// `cuGraphInstantiate`. With flag 1, each launch first frees what the previous one left
    /// allocated.
    Instantiated { exec: GraphExecId, graph: GraphId, frees_before_launch: bool },
    /// `cuGraphLaunch`: memory that the graph allocates and does not free is live from now on.
    Launched { exec: GraphExecId },
    /// `cuGraphExecDestroy`.
    ExecDestroyed { exec: GraphExecId },
    /// `cuGraphDestroy`.
    GraphDestroyed { graph: GraphId },
    /// `cuDeviceGetGraphMemAttribute` returned the memory that graphs reserve on a device.
    ReservedReported { device: DeviceId, bytes: u64 },
    /// `cuDeviceGraphMemTrim`: returns memory that no graph uses to the device.
    Trimmed { device: DeviceId },
}

/// Calls that share memory between processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "fields have the names of their types")]
pub enum ShareCall {
    /// `cuIpcGetMemHandle`, `cuMemExportToShareableHandle`, `cuMemPoolExportPointer`: other processes
    /// can import the memory.
    Exported { key: AllocationKey, share: ShareId },
    /// Follows the event of the call that imported it.
    Imported { key: AllocationKey, share: ShareId },
}

/// A driver call that returned an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailedCall {
    /// Function.
    pub function: FunctionId,
    /// The `CUresult`.
    pub code: i32,
    /// For an allocating call: kind and size of the request.
    pub requested: Option<(MemoryKind, u64)>,
    /// For a freeing call: key of the allocation to free.
    pub freed: Option<AllocationKey>,
    /// Requested device, if known.
    pub device: Option<DeviceId>,
    /// Context of the calling thread, if known.
    pub context: Option<ContextId>,
    /// Allocation site, for an allocating call.
    pub site: Option<SiteId>,
}

/// `CUDA_ERROR_INVALID_VALUE`.
pub const INVALID_VALUE: i32 = 1;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub const OUT_OF_MEMORY: i32 = 2;

/// `CUDA_ERROR_INVALID_HANDLE`.
pub const INVALID_HANDLE: i32 = 400;

/// Calls on contexts, which determine the device of an allocation and limit its lifetime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "fields have the names of their types")]
pub enum ContextCall {
    /// `cuCtxCreate`: creates a context that is not a primary context.
    Created { context: ContextId, device: DeviceId },
    /// `cuCtxDestroy`: frees all its memory at once.
    Destroyed { context: ContextId },
    /// `cuDevicePrimaryCtxRetain`: adds a user of the device's primary context.
    PrimaryRetained { context: ContextId, device: DeviceId },
    /// `cuDevicePrimaryCtxRelease`: drops a user; with the last one, all its memory is freed.
    PrimaryReleased { device: DeviceId },
    /// `cuDevicePrimaryCtxReset`: frees all its memory at once, regardless of users.
    PrimaryReset { device: DeviceId },
    /// A context query returned the device of a context created before tracing began.
    Learned { context: ContextId, device: DeviceId },
}
