//! The hooked driver functions. To support another function, add its row to [`HOOKS`]. New semantics
//! are a variant of [`CallSemantics`], its meaning in `meaning.rs` and its event in [`crate::decode`];
//! nothing compiles while one of them is missing.

mod activity;
pub(crate) mod bpf_row;
mod meaning;
mod objects;
mod table;
#[cfg(test)]
mod tests;
mod unhooked;

pub(crate) use bpf_row::SHARE_BYTES;
pub use objects::ObjectEffect;
pub use table::HOOKS;
pub use unhooked::{
    is_unlisted_memory_function, looks_like_memory_function, looks_like_object_function, unhooked,
    unhooked_object,
};

use engine::model::activity::CopyDirection;
use engine::model::cuda_object::ObjectKind;
use engine::model::event::FreeFunction;
use engine::model::ids::{AddressType, FunctionId};
use engine::model::memory_kind::MemoryKind;

/// Source of the size of an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SizeSource {
    /// An argument.
    Argument(u8),
    /// A 32-bit argument, in functions from before CUDA 3.2.
    Narrow(u8),
    /// The pitch that the driver chose (out value of argument 1) times the height.
    Pitch {
        /// The argument with the width in bytes, used for failed calls.
        width: u8,
        /// The argument with the height.
        height: u8,
    },
    /// In a structure that an argument points to.
    Descriptor(DescriptorType),
    /// Unknown: imported memory, whose size only the exporter knows.
    Exporter(ShareHandle),
}

/// The handle with which a process exports memory, and another one imports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShareHandle {
    /// `CUipcMemHandle`.
    Ipc,
    /// `CUmemPoolPtrExportData`.
    PoolPointer,
    /// A file descriptor or a `CUmemFabricHandle`; argument 2 has the type.
    Shareable,
}

/// A structure that describes memory, with the offsets of `cuda.h`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DescriptorType {
    /// `CUDA_ARRAY_DESCRIPTOR`.
    Array,
    /// `CUDA_ARRAY3D_DESCRIPTOR`.
    Array3d,
    /// `CUDA_ARRAY3D_DESCRIPTOR`; the number of mip levels is argument 2.
    Mipmapped,
    /// `CUDA_EXTERNAL_MEMORY_BUFFER_DESC`.
    ExternalBuffer,
}

/// Source of the address or handle of an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PointerSource {
    /// Out value of argument 0.
    Out,
    /// Out value of argument 0, 32 bits wide.
    NarrowOut,
    /// Argument 0.
    Argument,
}

/// Source of a handle of a device's pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolSource {
    /// Query of the default pool.
    GetDefault,
    /// Query of the current pool, which stream-ordered memory comes from.
    GetCurrent,
    /// Sets the current pool.
    SetCurrent,
}

/// Effect of a successful call. Variants without fields list the arguments; `*` marks an out value
/// or a pointer to a structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallSemantics {
    /// Allocates memory.
    Allocate {
        /// The memory kind.
        kind: MemoryKind,
        /// What identifies it: an address or a handle.
        space: AddressType,
        /// Source of the address or handle.
        pointer: PointerSource,
        /// Source of the size.
        size: SizeSource,
    },
    /// Allocates stream-ordered memory; the size is argument 1.
    AllocateAsync {
        /// The argument with the pool.
        pool: Option<u8>,
        /// The argument with the stream.
        stream: u8,
    },
    /// Frees the memory in argument 0.
    Free {
        /// What argument 0 is: an address or a handle.
        space: AddressType,
        /// The function family.
        by: FreeFunction,
    },
    /// Frees the stream-ordered memory in argument 0, in the order of the stream in argument 1.
    FreeAsync,
    /// Creates physical memory: handle*, size, properties*.
    VmmCreate,
    /// Imports physical memory: handle*.
    VmmImport,
    /// Exports memory: handle*, memory.
    Export {
        /// What identifies the memory: an address or a handle.
        space: AddressType,
        /// The exported handle.
        handle: ShareHandle,
    },
    /// Creates a multicast handle: handle*.
    VmmMulticast,
    /// Adds a reference: handle*, address.
    VmmRetain,
    /// Drops a reference: handle.
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
    /// Returns or sets the pool of a device.
    PoolOfDevice(PoolSource),
    /// Begins a capture on the stream in argument 0.
    CaptureBegin {
        /// The argument with the graph to capture into, if any.
        graph: Option<u8>,
    },
    /// Ends the capture on the stream in argument 0: graph* is argument 1.
    CaptureEnd,
    /// node*, graph, dependencies*, count, parameters*.
    GraphAllocNode,
    /// node*, graph, dependencies*, count, address.
    GraphFreeNode,
    /// The generic form of both.
    GraphNode {
        /// The argument with the parameters.
        parameters: u8,
    },
    /// graph*: an older graph with that handle has ended.
    GraphCreate,
    /// exec*, graph.
    GraphInstantiate(FlagsSource),
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
    /// Replaces the thread's current context by argument 0.
    ContextSet,
    /// Pushes argument 0.
    ContextPush,
    /// Pops the thread's current context.
    ContextPop,
    /// Returns the thread's current context.
    ContextGet,
    /// Returns the device of a context.
    ContextDevice {
        /// The argument with the context; `None`: the current context.
        context: Option<u8>,
    },
    /// Creates and pushes a context.
    ContextCreate {
        /// The argument with the device.
        device: u8,
    },
    /// Destroys the context in argument 0 and everything in it.
    ContextDestroy,
    /// limit, value: of the thread's context.
    ContextLimit,
    /// stream*: in the thread's context.
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
    /// The process starts using the driver.
    Initialize,
    /// uuid*, device.
    DeviceUuid,
    /// Adds a reference to the primary context of the device in argument 1.
    PrimaryRetain,
    /// Drops a reference to the primary context of the device in argument 0.
    PrimaryRelease,
    /// Resets the primary context of the device in argument 0, which destroys everything in it.
    PrimaryReset,
    /// kernel*, owner, name.
    KernelByName,
    /// name*, kernel.
    KernelName,
    /// function*, kernel.
    KernelFunction,
    /// Launches a kernel.
    Launch(LaunchForm),
    /// Copies or sets memory.
    Copy(CopySpec),
    /// Creates an object that does not affect memory.
    ObjectCreate {
        /// The object kind.
        kind: ObjectKind,
        /// The argument that receives the handle.
        handle: u8,
        /// The argument with the image of a module or library in memory.
        image: Option<u8>,
    },
    /// Destroys the object in argument 0.
    ObjectDestroy(ObjectKind),
}

/// Where a function finds the kernel and its shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaunchForm {
    /// The kernel is argument 0; its shape follows.
    Shaped,
    /// The shape is in a structure in argument 0, and the kernel is argument 1.
    Config,
    /// The kernel is argument 0; at least its block was set before, by other functions.
    Unshaped {
        /// The argument with the stream; `None`: the default stream.
        stream: Option<u8>,
    },
    /// A list of `CUDA_LAUNCH_PARAMS`, and its length.
    List,
}

/// A copy or a memset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopySpec {
    /// Source of the direction.
    pub route: CopyRoute,
    /// Source of the size.
    pub extent: CopyExtent,
    /// The call returns before the copy is complete.
    pub asynchronous: bool,
}

/// Source of the direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyRoute {
    /// Fixed by the function.
    Fixed(CopyDirection),
    /// The memory types of the descriptor.
    Described,
    /// The pointers.
    Pointers,
}

/// Source of the size of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyExtent {
    /// A number of elements.
    Elements {
        /// The argument with the number.
        argument: u8,
        /// Bytes of an element.
        element: u8,
    },
    /// Width and height in arguments 3 and 4.
    Area {
        /// Bytes of an element.
        element: u8,
    },
    /// In a `CUDA_MEMCPY2D`.
    Flat,
    /// In a `CUDA_MEMCPY3D`.
    Deep,
    /// The arguments are destinations*, sources*, sizes* and count.
    Batch,
    /// The arguments are count and `CUDA_MEMCPY3D_BATCH_OP`*.
    Volumes {
        /// The argument with the stream.
        stream: u8,
    },
}

/// Functions that are probed together. Frameworks query their context all the time, so context queries
/// are probed only while a context is unknown, and activity only on request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum HookGroup {
    /// Functions that affect memory.
    Memory,
    /// Context queries.
    Queries,
    /// Copies and kernel names.
    Activity,
    /// Launches, which have their own program.
    Launches,
    /// Functions that only create or destroy objects.
    Objects,
}

/// Source of the flags of an instantiation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlagsSource {
    /// No flags.
    None,
    /// An argument.
    Argument(u8),
    /// The first field of the parameters in argument 2.
    Parameters,
}

/// A hooked function.
#[derive(Clone, Copy, Debug)]
pub struct Hook {
    /// The exported name.
    pub symbol: &'static str,
    /// The effect of a call.
    pub semantics: CallSemantics,
}

/// Returns the row of a driver function by its name.
#[must_use]
pub fn function_id(name: &str) -> Option<FunctionId> {
    let row = HOOKS.iter().position(|hook| hook.symbol == name)?;
    u16::try_from(row).ok().map(FunctionId)
}

/// Returns the name of a driver function by its row.
#[must_use]
pub fn function_name(function: FunctionId) -> &'static str {
    HOOKS.get(usize::from(function.0)).map_or("an unknown function", |hook| hook.symbol)
}
