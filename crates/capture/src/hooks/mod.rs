//! The hooked driver functions. To support another function is to add its row to [`HOOKS`] and,
//! where its meaning is new, a case in [`crate::decode`]; nothing else changes.

mod about;
mod known;
mod objects;
pub(crate) mod row;
mod table;
mod work;

pub use known::{is_about_memory, is_about_objects, no_object, unhooked};
pub use objects::ObjectUse;
pub use table::HOOKS;

use engine::event::FreeBy;
use engine::ids::{FunctionId, Space};
use engine::kind::Kind;
use engine::object::ObjectKind;
use engine::work::Direction;

/// Where a call says how many bytes it gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// An argument.
    Argument(u8),
    /// An argument of 32 bits, in functions of before CUDA 3.2.
    Narrow(u8),
    /// The pitch that the driver chose (an out value of argument 1) times the height.
    Pitch {
        /// The argument with the width in bytes, for calls that failed.
        width: u8,
        /// The argument with the height.
        height: u8,
    },
    /// In a structure that an argument points to.
    Descriptor(Descriptor),
    /// Not said: memory of somebody else, whose size the exporter knows.
    Unknown,
}

/// Structures that describe memory. Offsets are those of `cuda.h`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Descriptor {
    /// `CUDA_ARRAY_DESCRIPTOR`.
    Array,
    /// `CUDA_ARRAY3D_DESCRIPTOR`.
    Array3d,
    /// `CUDA_ARRAY3D_DESCRIPTOR`, and as many mip levels as argument 2 says.
    Mipmapped,
    /// `CUDA_EXTERNAL_MEMORY_BUFFER_DESC`.
    ExternalBuffer,
}

/// Where a call says which memory it is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pointer {
    /// Behind the pointer in argument 0, at return.
    Out,
    /// The same, 32 bits wide.
    NarrowOut,
    /// Argument 0 itself.
    Argument,
}

/// Where a pool handle comes from that is a device's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DevicePool {
    /// Told: the device's default pool.
    GetDefault,
    /// Told: the pool that stream-ordered memory comes from now.
    GetCurrent,
    /// Set: the pool that it will come from.
    SetCurrent,
}

/// What a successful call of a function means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meaning {
    /// Memory begins.
    Allocate {
        /// Its sort.
        kind: Kind,
        /// What its name is.
        space: Space,
        /// Where its name is.
        pointer: Pointer,
        /// Where its size is.
        size: Size,
    },
    /// Stream-ordered memory begins; its size is argument 1.
    AllocateAsync {
        /// The argument with the pool.
        pool: Option<u8>,
        /// The argument with the stream.
        stream: u8,
    },
    /// The memory named by argument 0 ends.
    Free {
        /// What argument 0 is.
        space: Space,
        /// The function family.
        by: FreeBy,
    },
    /// The stream-ordered memory of argument 0 ends, in the order of the stream in argument 1.
    FreeAsync,
    /// Physical memory begins: handle*, size, properties*.
    VmmCreate,
    /// Physical memory of somebody else is opened: handle*.
    VmmImport,
    /// A multicast handle: handle*.
    VmmMulticast,
    /// One more reference: handle*, address.
    VmmRetain,
    /// One reference less: handle.
    VmmRelease,
    /// address, size, offset, handle.
    VmmMap,
    /// address, size.
    VmmUnmap,
    /// address*, size.
    VmmReserve,
    /// address, size.
    VmmUnreserve,
    /// pool*, properties*.
    PoolCreate,
    /// pool*.
    PoolImport,
    /// pool.
    PoolDestroy,
    /// pool, bytes to keep.
    PoolTrim,
    /// pool, attribute, value*.
    PoolGet,
    /// A device's pool.
    PoolOfDevice(DevicePool),
    /// The stream in argument 0 begins to capture.
    CaptureBegin {
        /// The argument with the graph, where there is one.
        graph: Option<u8>,
    },
    /// The stream in argument 0 ends its capture: graph* is argument 1.
    CaptureEnd,
    /// node*, graph, dependencies*, count, parameters*.
    GraphAllocNode,
    /// node*, graph, dependencies*, count, address.
    GraphFreeNode,
    /// The generic form, with the parameters in this argument.
    GraphNode {
        /// The argument.
        parameters: u8,
    },
    /// graph*: whatever had that name before is gone.
    GraphCreate,
    /// exec*, graph.
    GraphInstantiate(InstantiateFlags),
    /// exec, stream.
    GraphLaunch,
    /// exec.
    GraphExecDestroy,
    /// graph.
    GraphDestroy,
    /// device.
    GraphTrim,
    /// device, attribute, value*.
    GraphGet,
    /// Argument 0 replaces the thread's current context.
    ContextSet,
    /// Argument 0 is pushed.
    ContextPush,
    /// The thread's current context is popped.
    ContextPop,
    /// The thread's current context is told.
    ContextGet,
    /// The device of a context is told.
    ContextDevice {
        /// The argument that names the context; without one it is the current context.
        context: Option<u8>,
    },
    /// A context begins and is pushed.
    ContextCreate {
        /// The argument with the device.
        device: u8,
    },
    /// The context in argument 0 ends with everything in it.
    ContextDestroy,
    /// stream*: made in the thread's context.
    StreamCreate,
    /// stream*, green context.
    GreenStreamCreate,
    /// stream.
    StreamDestroy,
    /// green*, resources, device.
    GreenCreate,
    /// green.
    GreenDestroy,
    /// context*, green.
    ContextFromGreen,
    /// The process will use the driver.
    Initialise,
    /// The UUID of the device in argument 1 is told, behind argument 0.
    DeviceUuid,
    /// The primary context of the device in argument 1 has one user more.
    PrimaryRetain,
    /// The primary context of the device in argument 0 has one user less.
    PrimaryRelease,
    /// The primary context of the device in argument 0 ends with everything in it.
    PrimaryReset,
    /// kernel*, owner, name.
    KernelByName,
    /// name*, kernel.
    KernelName,
    /// function*, kernel.
    KernelFunction,
    /// A kernel is launched.
    Launch {
        /// The shape is in a structure that argument 0 points to, and the kernel is argument 1.
        config: bool,
    },
    /// Memory is copied or filled.
    Copy(Copy),
    /// An object begins that has nothing to do with memory.
    ObjectCreate {
        /// Its sort.
        kind: ObjectKind,
        /// The argument that points to where its handle goes.
        handle: u8,
    },
    /// The object in argument 0 ends.
    ObjectDestroy(ObjectKind),
}

/// A copy, or a fill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copy {
    /// Which way, where the function says so.
    pub route: Route,
    /// Where its size is.
    pub extent: Extent,
    /// It returns before it is done.
    pub asynchronous: bool,
}

/// Which way a copy goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// This way.
    Fixed(Direction),
    /// As the memory types of its descriptor say.
    Described,
    /// As the pointers say.
    Pointers,
}

/// Where the size of a copy is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// Elements of this many bytes: their number is an argument.
    Elements {
        /// The argument.
        argument: u8,
        /// Bytes of each.
        element: u8,
    },
    /// Width and height are arguments 3 and 4.
    Area {
        /// Bytes of each element.
        element: u8,
    },
    /// In a `CUDA_MEMCPY2D`.
    Flat,
    /// In a `CUDA_MEMCPY3D`.
    Deep,
    /// Destinations, sources, sizes and count are the arguments.
    Batch,
}

/// Which calls are probed together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Group {
    /// What changes memory.
    Memory,
    /// What only tells a thread's context.
    Queries,
    /// Copies and names of kernels.
    Work,
    /// Launches, which have a program of their own.
    Launches,
    /// Objects that have nothing to do with memory.
    Objects,
}

impl Meaning {
    /// With which others it is probed. Frameworks ask for their context all the time, so these
    /// questions are probed only while something is not known; work only where it is asked for.
    pub(crate) const fn group(&self) -> Group {
        match self {
            Self::ContextGet | Self::ContextDevice { .. } => Group::Queries,
            Self::KernelByName | Self::KernelName | Self::KernelFunction | Self::Copy(_) => {
                Group::Work
            }
            Self::Launch { .. } => Group::Launches,
            Self::ObjectCreate { .. } | Self::ObjectDestroy(_) => Group::Objects,
            _ => Group::Memory,
        }
    }

    /// Whether it tells what a handle stands for, and nothing else.
    pub(crate) const fn binds(&self) -> bool {
        matches!(
            self,
            Self::StreamCreate
                | Self::GreenStreamCreate
                | Self::StreamDestroy
                | Self::GreenCreate
                | Self::GreenDestroy
                | Self::ContextFromGreen
        )
    }
}

/// Where an instantiation has its flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InstantiateFlags {
    /// It has none.
    None,
    /// In this argument.
    Argument(u8),
    /// At the front of the parameters in argument 2.
    Parameters,
}

/// A hooked function.
#[derive(Clone, Copy, Debug)]
pub struct Hook {
    /// The exported name.
    pub symbol: &'static str,
    /// What it means.
    pub meaning: Meaning,
}

/// The row of a driver function by its name.
#[must_use]
pub fn function_id(name: &str) -> Option<FunctionId> {
    let row = HOOKS.iter().position(|hook| hook.symbol == name)?;
    u16::try_from(row).ok().map(FunctionId)
}

/// The name of a driver function by its row.
#[must_use]
pub fn function_name(function: FunctionId) -> &'static str {
    HOOKS.get(usize::from(function.0)).map_or("an unknown function", |hook| hook.symbol)
}
