//! The closed vocabulary of what can happen. Live capture, recordings and other tools' files all
//! become this stream; nothing else changes the ledger.

use crate::container::Container;
use crate::ids::{
    ContextId, DeviceId, ExecId, FunctionId, GpuId, GraphId, HandleId, Key, Pid, PoolId, SiteId,
    StreamId, Tid,
};
use crate::kind::Kind;
use crate::object::ObjectCall;
use crate::stack::Frame;
use crate::tensor::{TensorCall, TensorWatch};
use crate::units::Moment;
use crate::work::Work;

/// One thing that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The process it happened in.
    pub pid: Pid,
    /// The thread that made the call.
    pub tid: Tid,
    /// When the call was entered; equal to `at` for things that have no duration.
    pub entered: Moment,
    /// When it was over. Events of one process arrive in this order, except for calls of different
    /// threads that overlap.
    pub at: Moment,
    /// What it was.
    pub what: What,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// A process was seen for the first time. Events of a pid that was never announced make the
    /// ledger open an anonymous process.
    Process(ProcessFacts),
    /// The container that the process runs in; right after its announcement, and again when more
    /// became known.
    Container(Box<Container>),
    /// A thread's name, sent with its first call and when it changed.
    ThreadName(Box<str>),
    /// The process replaced its program: everything it held is released.
    Exec,
    /// The last thread of the process ended: everything it held is released.
    Exit,
    /// One thread ended; the process lives on.
    ThreadExit,
    /// A call gave memory.
    Allocate(Allocate),
    /// A call gave memory back.
    Free(Free),
    /// Physical memory, its references and its mappings.
    Vmm(VmmCall),
    /// A memory pool changed, or told something about itself.
    Pool(PoolCall),
    /// A graph that has to do with memory.
    Graph(GraphCall),
    /// A driver call failed and changed nothing.
    Failed(Failed),
    /// A context began or ended.
    Context(ContextChange),
    /// Which physical GPUs the process's device ordinals are (`CUDA_VISIBLE_DEVICES`): one entry for
    /// each device that the process can see.
    Gpus(Box<[Option<GpuId>]>),
    /// What the driver's own account (NVML) says that the process holds of a GPU, everything
    /// included: contexts, code, local memory, pools. The event was entered when the driver was asked.
    DriverAccount {
        /// The GPU.
        gpu: GpuId,
        /// All memory of the process on it.
        bytes: u64,
        /// The driver lists the process on no other GPU.
        only: bool,
    },
    /// What is free of a GPU, by the driver's own account; the pid is of no meaning.
    GpuFree {
        /// The GPU.
        gpu: GpuId,
        /// Memory that nobody holds.
        bytes: u64,
    },
    /// What the driver reported of processes and GPUs is not known any more; the pid is of no meaning.
    DriverAccountLost,
    /// The kernel could not deliver some records.
    Lost(Lost),
    /// What the GPU was asked to do besides memory: launches, names of kernels, copies.
    Work(Work),
    /// An object that is no memory by itself began or ended.
    Object(ObjectCall),
    /// A framework's cache gave out a block, or took one back.
    Tensor(TensorCall),
    /// A process has such a cache: whether its blocks are seen.
    Torch(TensorWatch),
    /// What a site looks like. It can come after the first event that names the site, because
    /// names take time to find; the pid is of no meaning.
    Site(SiteFacts),
}

/// The stack that a site is, innermost frame first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SiteFacts {
    /// The site.
    pub site: SiteId,
    /// Its frames; all text is hostile.
    pub frames: Box<[Frame]>,
}

/// What is known of a process when it is first seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessFacts {
    /// When it started, nanoseconds since boot; 0 when unknown.
    pub start: u64,
    /// The owner's user id.
    pub uid: u32,
    /// The process's name; hostile text, to be sanitised by whoever prints it.
    pub name: Box<str>,
    /// It had mapped the driver before tracing began, so it may hold memory that was never seen.
    pub before_trace: bool,
}

/// Memory begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocate {
    /// The driver's name for it.
    pub key: Key,
    /// The sort of memory.
    pub kind: Kind,
    /// How much.
    pub bytes: u64,
    /// The context it belongs to, where the thread's current context is known.
    pub context: Option<ContextId>,
    /// The device, where the call itself or the thread's state names it. When it is `None` the
    /// ledger takes the device of the context.
    pub device: Option<DeviceId>,
    /// The pool it comes from, where the call names one.
    pub pool: Option<PoolId>,
    /// The stream, for stream-ordered memory: while that stream (or the calling thread) captures a
    /// graph, the call makes a node and no memory.
    pub stream: Option<StreamId>,
    /// Where in the program.
    pub site: Option<SiteId>,
}

/// The function family that a free came through; a family that does not fit the memory is a
/// mistake worth telling, even where the driver forgives it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreeBy {
    /// `cuMemFree`: device, managed and stream-ordered memory, imported buffers.
    Free,
    /// `cuMemFreeAsync`: stream-ordered memory; plain device memory is forgiven.
    FreeAsync,
    /// `cuMemFreeHost`: pinned memory.
    FreeHost,
    /// `cuMemHostUnregister`: registered memory.
    Unregister,
    /// `cuArrayDestroy`, `cuMipmappedArrayDestroy`.
    DestroyArray,
    /// `cuIpcCloseMemHandle`.
    CloseImport,
    /// `cuDestroyExternalMemory`.
    DestroyExternal,
}

impl FreeBy {
    /// Whether the family is meant for a kind of memory. Kinds that no family here is for fit all.
    #[must_use]
    pub const fn fits(self, kind: Kind) -> bool {
        match kind {
            Kind::Device | Kind::Managed => matches!(self, Self::Free),
            Kind::Async | Kind::HostAsync | Kind::Graph => {
                matches!(self, Self::Free | Self::FreeAsync)
            }
            Kind::Pinned => matches!(self, Self::FreeHost),
            Kind::Registered => matches!(self, Self::Unregister),
            Kind::Array => matches!(self, Self::DestroyArray),
            Kind::Imported => {
                matches!(self, Self::Free | Self::CloseImport | Self::DestroyExternal)
            }
            Kind::Physical
            | Kind::HostPhysical
            | Kind::Pool
            | Kind::Static
            | Kind::ManagedStatic
            | Kind::Pageable
            | Kind::Torch
            | Kind::Unknown => true,
        }
    }
}

/// Memory ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Free {
    /// The driver's name for it. A null pointer is a legal no-op and never becomes an event.
    pub key: Key,
    /// The function family.
    pub by: FreeBy,
    /// The stream, for `cuMemFreeAsync`: while it captures, the call makes a node.
    pub stream: Option<StreamId>,
}

/// Where physical memory lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// On a device.
    Device(DeviceId),
    /// On the host, or on one of its NUMA nodes.
    Host,
}

/// Calls of the virtual memory management API. Physical memory begins with `Create` and ends when
/// its last reference is released *and* its last mapping is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VmmCall {
    /// `cuMemCreate`.
    Create {
        /// The new handle, with one reference.
        handle: HandleId,
        /// How much.
        bytes: u64,
        /// Where.
        place: Place,
        /// Where in the program.
        site: Option<SiteId>,
    },
    /// `cuMemImportFromShareableHandle`: somebody else's memory. Its size is learned when it is
    /// mapped.
    Import {
        /// The new handle, with one reference.
        handle: HandleId,
    },
    /// `cuMulticastCreate`: a handle without memory of its own.
    Multicast {
        /// The new handle, with one reference.
        handle: HandleId,
    },
    /// `cuMemRetainAllocationHandle`: one more reference to what is mapped at an address.
    Retain {
        /// The handle that was told.
        handle: HandleId,
    },
    /// `cuMemRelease`: one reference less.
    Release {
        /// The handle.
        handle: HandleId,
    },
    /// `cuMemMap`.
    Map {
        /// Where to.
        address: u64,
        /// How much of it.
        bytes: u64,
        /// The physical memory.
        handle: HandleId,
    },
    /// `cuMemUnmap`: every mapping inside the range.
    Unmap {
        /// From where.
        address: u64,
        /// How far.
        bytes: u64,
    },
    /// `cuMemAddressReserve`: addresses, never memory.
    Reserve {
        /// From where.
        address: u64,
        /// How many.
        bytes: u64,
    },
    /// `cuMemAddressFree`.
    Unreserve {
        /// From where.
        address: u64,
        /// How many.
        bytes: u64,
    },
}

/// Calls about memory pools. What a pool *uses* is the sum of its live stream-ordered allocations;
/// what it *reserves* of the device only the driver knows, and callers learn it by asking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolCall {
    /// `cuMemPoolCreate`, or an import of another process's pool.
    Created {
        /// The pool.
        pool: PoolId,
        /// Where its memory lies; `None` where the call does not say (imports).
        place: Option<Place>,
    },
    /// `cuMemPoolDestroy`: it stays until its last allocation is freed.
    Destroyed {
        /// The pool.
        pool: PoolId,
    },
    /// `cuMemPoolTrimTo`.
    Trimmed {
        /// The pool.
        pool: PoolId,
        /// What it may keep.
        keep: u64,
    },
    /// `cuMemPoolGetAttribute` told what the pool reserves.
    ToldReserved {
        /// The pool.
        pool: PoolId,
        /// How much.
        bytes: u64,
    },
    /// `cuDeviceGetDefaultMemPool`, `cuDeviceGetMemPool`, `cuDeviceSetMemPool`: a pool that is a
    /// device's. One that was not created, or that is not the current one, is its default pool.
    OfDevice {
        /// The pool.
        pool: PoolId,
        /// The device.
        device: DeviceId,
        /// It is the one that `cuMemAllocAsync` takes from now on.
        current: bool,
    },
}

/// Calls about graphs with memory nodes, and about stream capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GraphCall {
    /// `cuStreamBeginCapture`: calls on the stream become nodes. With a graph: of that graph.
    CaptureBegan {
        /// The stream.
        stream: StreamId,
        /// `cuStreamBeginCaptureToGraph` names one.
        graph: Option<GraphId>,
    },
    /// `cuStreamEndCapture`: the nodes are in this graph. Failed captures end without one.
    CaptureEnded {
        /// The stream.
        stream: StreamId,
        /// The new graph.
        graph: Option<GraphId>,
    },
    /// `cuGraphAddMemAllocNode`: an address, no memory yet.
    AllocNode {
        /// The graph.
        graph: GraphId,
        /// The address that the node will give.
        address: u64,
        /// How much.
        bytes: u64,
        /// Where.
        place: Place,
    },
    /// `cuGraphAddMemFreeNode`.
    FreeNode {
        /// The graph.
        graph: GraphId,
        /// What it frees.
        address: u64,
    },
    /// `cuGraphInstantiate`.
    Instantiated {
        /// The executable.
        exec: ExecId,
        /// Its graph.
        graph: GraphId,
        /// Launches free what the launch before left live (flag 1).
        frees_before_launch: bool,
    },
    /// `cuGraphLaunch`: what the graph allocates and does not free itself is live from now on.
    Launched {
        /// The executable.
        exec: ExecId,
    },
    /// `cuGraphExecDestroy`.
    ExecDestroyed {
        /// The executable.
        exec: ExecId,
    },
    /// `cuGraphDestroy`.
    GraphDestroyed {
        /// The graph.
        graph: GraphId,
    },
    /// `cuDeviceGetGraphMemAttribute` told what graphs reserve of a device.
    ToldReserved {
        /// The device.
        device: DeviceId,
        /// How much.
        bytes: u64,
    },
    /// `cuDeviceGraphMemTrim`: memory that no graph uses goes back.
    Trimmed {
        /// The device.
        device: DeviceId,
    },
}

/// A driver call returned an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failed {
    /// Which function.
    pub function: FunctionId,
    /// The `CUresult`.
    pub code: i32,
    /// For an allocating call: what was asked for.
    pub asked: Option<(Kind, u64)>,
    /// For a freeing call: what should have been freed.
    pub freed: Option<Key>,
    /// The device it was asked of, where known.
    pub device: Option<DeviceId>,
    /// The context of the calling thread, where known.
    pub context: Option<ContextId>,
    /// Where in the program, for an allocating call.
    pub site: Option<SiteId>,
}

/// `CUDA_ERROR_INVALID_VALUE`.
pub const INVALID_VALUE: i32 = 1;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub const OUT_OF_MEMORY: i32 = 2;

/// `CUDA_ERROR_INVALID_HANDLE`.
pub const INVALID_HANDLE: i32 = 400;

/// Contexts decide the device of an allocation and how long it can live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContextChange {
    /// `cuCtxCreate`: a context of its own.
    Created {
        /// The new context.
        context: ContextId,
        /// Its device.
        device: DeviceId,
    },
    /// `cuCtxDestroy`: everything in it is freed at once.
    Destroyed {
        /// The context.
        context: ContextId,
    },
    /// `cuDevicePrimaryCtxRetain`: one more user of the device's primary context.
    PrimaryRetained {
        /// The primary context.
        context: ContextId,
        /// Its device.
        device: DeviceId,
    },
    /// `cuDevicePrimaryCtxRelease`: one user less; the last one frees everything in it.
    PrimaryReleased {
        /// The device.
        device: DeviceId,
    },
    /// `cuDevicePrimaryCtxReset`: everything in it is freed at once, whoever uses it.
    PrimaryReset {
        /// The device.
        device: DeviceId,
    },
    /// A query revealed which device a context belongs to that was made before tracing began.
    Learned {
        /// The context.
        context: ContextId,
        /// Its device.
        device: DeviceId,
    },
}

/// Records that were not delivered, as *increments* since the last such event of the process. The
/// event's pid is 0 when the process is not known.
///
/// The event's moment is when the losses were read: none of them is younger, and the records from
/// before that moment are delivered first. Bounds of a snapshot hold for losses that were told
/// before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lost {
    /// Allocating calls that succeeded.
    pub allocations: u64,
    /// The bytes those calls asked for.
    pub allocated_bytes: u64,
    /// Freeing calls that succeeded.
    pub frees: u64,
    /// Failed calls.
    pub failures: u64,
    /// Everything else: contexts, process life, mappings and references of physical memory, pools,
    /// graphs and captures.
    pub other: u64,
    /// Launches that were not counted by kernel.
    pub launches: u64,
    /// Copies and memsets that were not counted.
    pub copies: u64,
    /// Allocations that are known, but not where they came from.
    pub stacks: u64,
    /// Objects that began or ended. Records that also matter to memory are among `other`, too.
    pub objects: u64,
    /// Blocks that a framework's cache gave out or took back; the driver's memory has nothing to do
    /// with them.
    pub tensors: u64,
    /// Programs that ended without having been announced. Nothing of them is known, unless some of
    /// their calls were delivered all the same.
    pub processes: u64,
}
