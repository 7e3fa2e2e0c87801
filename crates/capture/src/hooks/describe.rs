//! Descriptions of hooked functions, for the coverage page.

use engine::model::event::FreeFunction;
use engine::model::memory_kind::{MemoryKind, MemoryLayer};

use engine::model::activity::CopyDirection;

use super::{CallSemantics, CopyRoute, PoolSource};

impl CallSemantics {
    /// Returns a short description.
    #[must_use]
    pub const fn describe(&self) -> &'static str {
        match self {
            Self::Allocate { kind: MemoryKind::Imported, .. } => "opens imported memory",
            Self::Allocate { kind: MemoryKind::Registered, .. } => "pins host memory",
            Self::Allocate { .. } => "allocates memory",
            Self::AllocateAsync { .. } => "allocates from a pool, or adds a graph node",
            Self::Free { by: FreeFunction::CloseImport, .. } => "closes imported memory",
            Self::Free { .. } => "frees memory",
            Self::FreeAsync => "frees to a pool, or adds a graph node",
            Self::VmmCreate => "creates physical memory (one reference)",
            Self::VmmImport => "imports physical memory (one reference)",
            Self::VmmMulticast => "handle without memory of its own",
            Self::VmmRetain => "adds a reference",
            Self::VmmRelease => "drops a reference; the last one frees unmapped memory",
            Self::VmmMap => "adds a mapping",
            Self::VmmUnmap => "removes mappings; frees memory without references",
            Self::VmmReserve | Self::VmmUnreserve => "address range, never memory",
            Self::PoolCreate => "creates a pool",
            Self::PoolImport => "imports a pool",
            Self::PoolDestroy => "destroys a pool once its last allocation ends",
            Self::PoolTrim => "trims a pool: reserved size unknown again",
            Self::PoolGet => "returns the reserved size of a pool",
            Self::PoolOfDevice(PoolSource::SetCurrent) => "sets the pool of a device",
            Self::PoolOfDevice(_) => "returns the pool of a device",
            Self::CaptureBegin { .. } | Self::CaptureEnd => "calls on the stream become nodes",
            Self::GraphAllocNode | Self::GraphFreeNode | Self::GraphNode { .. } => {
                "graph node: an address, no memory yet"
            }
            Self::GraphCreate => "creates a graph; the handle may be reused",
            Self::GraphInstantiate(_) => "instantiates a graph",
            Self::GraphLaunch => "launch: memory that the graph does not free is live",
            Self::GraphExecDestroy | Self::GraphDestroy => "drops nodes, not memory",
            Self::GraphTrim => "trims graph memory: reserved size unknown again",
            Self::GraphGet => "returns the reserved size of graphs",
            Self::ContextSet | Self::ContextPush | Self::ContextPop => {
                "sets the thread's context (tracked in BPF)"
            }
            Self::ContextGet | Self::ContextDevice { .. } => "context query",
            Self::ContextCreate { .. } | Self::PrimaryRetain => "creates or shares a context",
            Self::ContextDestroy | Self::PrimaryRelease | Self::PrimaryReset => {
                "ends a context and all memory in it"
            }
            Self::StreamCreate | Self::GreenStreamCreate | Self::StreamDestroy => {
                "maps a stream to its context"
            }
            Self::GreenCreate | Self::GreenDestroy | Self::ContextFromGreen => {
                "view of a primary context"
            }
            Self::Initialize => "a process starts using the driver",
            Self::DeviceUuid => "maps an ordinal to a GPU",
            Self::KernelByName | Self::KernelName => "returns the name of a kernel",
            Self::KernelFunction => "second handle of a kernel",
            Self::Launch(_) => "launch, counted in BPF",
            Self::Copy(copy) => match copy.route {
                CopyRoute::Fixed(CopyDirection::Memset) => "memset, counted in BPF",
                _ => "copy, counted in BPF",
            },
            Self::ObjectCreate { .. } => "creates an object",
            Self::ObjectDestroy(_) => "destroys an object",
        }
    }

    /// Returns the layer that its bytes count in.
    #[must_use]
    pub const fn layer(&self) -> Option<MemoryLayer> {
        match self {
            Self::Allocate { kind, .. } => Some(kind.layer()),
            Self::AllocateAsync { .. } | Self::FreeAsync => Some(MemoryLayer::Used),
            Self::VmmCreate | Self::VmmRelease | Self::VmmUnmap => Some(MemoryLayer::Physical),
            Self::GraphLaunch => Some(MemoryLayer::Physical),
            Self::VmmImport => Some(MemoryLayer::Imported),
            Self::PoolGet | Self::GraphGet => Some(MemoryLayer::Reserved),
            _ => None,
        }
    }
}
