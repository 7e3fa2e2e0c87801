//! What a row means, in words: for the coverage page.

use engine::event::FreeBy;
use engine::kind::{Kind, Layer};

use engine::work::Direction;

use super::{DevicePool, Meaning, Route};

impl Meaning {
    /// One phrase.
    #[must_use]
    pub const fn about(&self) -> &'static str {
        match self {
            Self::Allocate { kind: Kind::Imported, .. } => "opens memory of somebody else",
            Self::Allocate { kind: Kind::Registered, .. } => "pins memory of the program",
            Self::Allocate { .. } => "memory begins",
            Self::AllocateAsync { .. } => "memory of a pool is used, or a capture gets a node",
            Self::Free { by: FreeBy::CloseImport, .. } => "closes memory of somebody else",
            Self::Free { .. } => "memory ends",
            Self::FreeAsync => "memory goes back to its pool, or a capture gets a node",
            Self::VmmCreate => "physical memory begins, with one reference",
            Self::VmmImport => "physical memory of somebody else, with one reference",
            Self::VmmMulticast => "a handle without memory of its own",
            Self::VmmRetain => "one reference more",
            Self::VmmRelease => "one reference less; the last one ends what is not mapped",
            Self::VmmMap => "one mapping more",
            Self::VmmUnmap => "mappings end, and memory without references with them",
            Self::VmmReserve | Self::VmmUnreserve => "addresses, never memory",
            Self::PoolCreate | Self::PoolImport => "a pool begins",
            Self::PoolDestroy => "a pool ends, when its last allocation does",
            Self::PoolTrim => "what the pool reserves is open again",
            Self::PoolGet => "tells what the pool reserves",
            Self::PoolOfDevice(DevicePool::SetCurrent) => "which pool a device uses",
            Self::PoolOfDevice(_) => "tells which pool a device uses",
            Self::CaptureBegin { .. } | Self::CaptureEnd => "calls on the stream make nodes",
            Self::GraphAllocNode | Self::GraphFreeNode | Self::GraphNode { .. } => {
                "a graph's node: an address, no memory yet"
            }
            Self::GraphCreate => "a graph begins, and an older one of its name is gone",
            Self::GraphInstantiate(_) => "a graph that can be launched",
            Self::GraphLaunch => "what the graph allocates and does not free is live",
            Self::GraphExecDestroy | Self::GraphDestroy => "nodes are forgotten, memory is not",
            Self::GraphTrim => "what graphs reserve is open again",
            Self::GraphGet => "tells what graphs reserve",
            Self::ContextSet | Self::ContextPush | Self::ContextPop => {
                "the thread's context, kept in the kernel"
            }
            Self::ContextGet | Self::ContextDevice { .. } => "tells the thread's context or device",
            Self::ContextCreate { .. } | Self::PrimaryRetain => "a context begins or is shared",
            Self::ContextDestroy | Self::PrimaryRelease | Self::PrimaryReset => {
                "a context ends with everything in it"
            }
            Self::StreamCreate | Self::GreenStreamCreate | Self::StreamDestroy => {
                "which context a stream's memory belongs to"
            }
            Self::GreenCreate | Self::GreenDestroy | Self::ContextFromGreen => {
                "a view of a primary context"
            }
            Self::Initialise => "a process begins to use the driver",
            Self::DeviceUuid => "tells which GPU an ordinal is",
            Self::KernelByName | Self::KernelName => "tells the name of a kernel",
            Self::KernelFunction => "another handle of a kernel",
            Self::Launch { .. } => "a kernel is launched: summed in the kernel",
            Self::Copy(copy) => match copy.route {
                Route::Fixed(Direction::Fill) => "memory is filled: summed in the kernel",
                _ => "memory is copied: summed in the kernel",
            },
            Self::ObjectCreate { .. } => "an object begins",
            Self::ObjectDestroy(_) => "an object ends",
        }
    }

    /// The layer that its bytes count in.
    #[must_use]
    pub const fn layer(&self) -> Option<Layer> {
        match self {
            Self::Allocate { kind, .. } => Some(kind.layer()),
            Self::AllocateAsync { .. } | Self::FreeAsync => Some(Layer::Used),
            Self::VmmCreate | Self::VmmRelease | Self::VmmUnmap => Some(Layer::Physical),
            Self::GraphLaunch => Some(Layer::Physical),
            Self::VmmImport => Some(Layer::Imported),
            Self::PoolGet | Self::GraphGet => Some(Layer::Reserved),
            _ => None,
        }
    }
}
