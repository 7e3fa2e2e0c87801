//! What each kind of call means: one description, from which the row for the probes, the class of a
//! loss, the probed group, the effect on objects and the coverage page derive.
//! [`crate::decode`] builds the events.

use engine::model::activity::CopyDirection;
use engine::model::cuda_object::ObjectKind;
use engine::model::event::FreeFunction;
use engine::model::ids::AddressType;
use engine::model::memory_kind::{MemoryKind, MemoryLayer};

use super::bpf_row::{ALLOC_PARAMETERS, NODE_PARAMETERS, allocation, copy, export, import, launch};
use super::{
    CallSemantics, CopyRoute, CopySpec, FlagsSource, HookGroup, ObjectEffect, PointerSource,
    PoolSource, ShareHandle, SizeSource,
};
use crate::wire::{self, WireHook};

/// The meaning of a kind of call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meaning {
    /// A short description.
    pub(crate) about: &'static str,
    /// The layer that its bytes count in.
    pub(crate) layer: Option<MemoryLayer>,
    pub(crate) group: HookGroup,
    /// The row for the probes, without the effect on objects.
    pub(crate) row: WireHook,
    /// Memory that it requests.
    pub(crate) requests: Option<(MemoryKind, SizeSource)>,
    /// What argument 0 is, if it is freed.
    pub(crate) frees: Option<AddressType>,
    /// The effect of a successful call on an object, independent of that on memory.
    pub(crate) object: Option<ObjectEffect>,
    /// It changes nothing, so nothing is lost if its results cannot be read.
    pub(crate) is_query: bool,
}

const PLAIN: WireHook = WireHook::PLAIN;
const OUT: WireHook = PLAIN.out(0, 0, 8);
const ALLOCATES: WireHook = PLAIN.class(wire::VS_CLASS_ALLOCATE);
const FREES: WireHook = PLAIN.class(wire::VS_CLASS_FREE);

const OBJECT: WireHook = PLAIN.class(wire::VS_CLASS_OBJECT);
const ENDS_CONTEXT: WireHook = PLAIN.flag(wire::VS_ENDS_CONTEXT);

const END: &str = "ends a context and all memory in it";

/// Returns the meaning of a call that affects memory or handles.
const fn memory(about: &'static str, row: WireHook) -> Meaning {
    Meaning {
        about,
        layer: None,
        group: HookGroup::Memory,
        row,
        requests: None,
        frees: None,
        object: None,
        is_query: false,
    }
}

impl Meaning {
    const fn layer(mut self, layer: MemoryLayer) -> Self {
        self.layer = Some(layer);
        self
    }

    const fn group(mut self, group: HookGroup) -> Self {
        self.group = group;
        self
    }

    const fn requests(mut self, kind: MemoryKind, size: SizeSource) -> Self {
        self.requests = Some((kind, size));
        self
    }

    const fn frees(mut self, space: AddressType) -> Self {
        self.frees = Some(space);
        self
    }

    const fn creates(mut self, kind: ObjectKind) -> Self {
        self.object = Some(ObjectEffect::Creates(kind));
        self
    }

    const fn destroys(mut self, kind: ObjectKind) -> Self {
        self.object = Some(ObjectEffect::Destroys(kind));
        self
    }

    const fn query(mut self) -> Self {
        self.is_query = true;
        self
    }
}

const ALLOCATE_ASYNC: Meaning = memory(
    "allocates from a pool, or adds a graph node",
    ALLOCATES.out(0, 0, 8).size(1).flag(wire::VS_STREAM_ORDERED),
)
.layer(MemoryLayer::Used)
.requests(MemoryKind::Async, SizeSource::Argument(1));

const FREE_ASYNC: Meaning =
    memory("frees to a pool, or adds a graph node", FREES.flag(wire::VS_STREAM_ORDERED))
        .layer(MemoryLayer::Used)
        .frees(AddressType::Pointer);

const VMM_CREATE: Meaning = memory(
    "creates physical memory (one reference)",
    ALLOCATES.out(0, 0, 8).size(1).descriptor(2, 32),
)
.layer(MemoryLayer::Physical)
.requests(MemoryKind::Physical, SizeSource::Argument(1));

const VMM_IMPORT_ROW: WireHook = import(ALLOCATES.out(0, 0, 8), ShareHandle::Shareable);
const VMM_IMPORT: Meaning = memory("imports physical memory (one reference)", VMM_IMPORT_ROW)
    .layer(MemoryLayer::Imported)
    .requests(MemoryKind::Imported, SizeSource::Exporter(ShareHandle::Shareable));

const VMM_RELEASE: Meaning = memory("drops a reference; the last one frees unmapped memory", FREES)
    .layer(MemoryLayer::Physical)
    .frees(AddressType::Handle);

const VMM_UNMAP: Meaning =
    memory("removes mappings; frees memory without references", FREES).layer(MemoryLayer::Physical);

const POOL_CREATE: Meaning =
    memory("creates a pool", OUT.descriptor(1, 88)).creates(ObjectKind::Pool);
const POOL_DESTROY: Meaning =
    memory("destroys a pool once its last allocation ends", PLAIN).destroys(ObjectKind::Pool);
const POOL_GET: Meaning = memory("returns the reserved size of a pool", PLAIN.out(0, 2, 8))
    .layer(MemoryLayer::Reserved)
    .query();

const CAPTURE_BEGIN: Meaning =
    memory("calls on the stream become nodes", PLAIN.action(wire::VS_ACTION_CAPTURE_BEGIN));
const CAPTURE_END: Meaning = memory(
    "calls on the stream become nodes",
    PLAIN.action(wire::VS_ACTION_CAPTURE_END).out(0, 1, 8),
)
.creates(ObjectKind::Graph);

const GRAPH_CREATE: Meaning =
    memory("creates a graph; the handle may be reused", OUT).creates(ObjectKind::Graph);
const GRAPH_LAUNCH: Meaning = memory(
    "launch: memory that the graph does not free is live",
    PLAIN.action(wire::VS_ACTION_GRAPH_LAUNCH),
)
.layer(MemoryLayer::Physical);
const GRAPH_DESTROY: Meaning = memory("drops nodes, not memory", PLAIN).destroys(ObjectKind::Graph);
const GRAPH_EXEC_DESTROY: Meaning =
    memory("drops nodes, not memory", PLAIN).destroys(ObjectKind::GraphExec);
const GRAPH_GET: Meaning = memory("returns the reserved size of graphs", PLAIN.out(0, 2, 8))
    .layer(MemoryLayer::Reserved)
    .query();

const CONTEXT_GET: Meaning =
    memory("context query", OUT.action(wire::VS_ACTION_CONTEXT_GET)).group(HookGroup::Queries);
const CONTEXT_CREATE: Meaning =
    memory("creates or shares a context", OUT.action(wire::VS_ACTION_CONTEXT_CREATE))
        .creates(ObjectKind::Context);
const CONTEXT_DESTROY: Meaning =
    memory(END, ENDS_CONTEXT.action(wire::VS_ACTION_CONTEXT_DESTROY)).destroys(ObjectKind::Context);

const STREAM_CREATE: Meaning =
    memory("maps a stream to its context", OUT).creates(ObjectKind::Stream);
const STREAM_DESTROY: Meaning =
    memory("maps a stream to its context", PLAIN.action(wire::VS_ACTION_STREAM_DESTROY))
        .destroys(ObjectKind::Stream);
const GREEN_CREATE: Meaning =
    memory("view of a primary context", OUT).creates(ObjectKind::GreenContext);
const GREEN_DESTROY: Meaning =
    memory("view of a primary context", PLAIN).destroys(ObjectKind::GreenContext);

const DEVICE_UUID: Meaning = memory("maps an ordinal to a GPU", PLAIN.descriptor(0, 16)).query();

const KERNEL_BY_NAME: Meaning =
    memory("returns the name of a kernel", OUT.action(wire::VS_ACTION_NAME).size(2))
        .group(HookGroup::Activity);
const KERNEL_NAME: Meaning =
    memory("returns the name of a kernel", OUT.action(wire::VS_ACTION_GET_NAME))
        .group(HookGroup::Activity);
const KERNEL_FUNCTION: Meaning =
    memory("second handle of a kernel", OUT).group(HookGroup::Activity).query();

const fn allocate(kind: MemoryKind, pointer: PointerSource, size: SizeSource) -> Meaning {
    let about = match kind {
        MemoryKind::Imported => "opens imported memory",
        MemoryKind::Registered => "pins host memory",
        _ => "allocates memory",
    };
    memory(about, allocation(pointer, size)).layer(kind.layer()).requests(kind, size)
}

const fn free(space: AddressType, by: FreeFunction) -> Meaning {
    let about = match by {
        FreeFunction::CloseImport => "closes imported memory",
        _ => "frees memory",
    };
    memory(about, FREES).frees(space)
}

const fn pool_of_device(source: PoolSource) -> Meaning {
    match source {
        PoolSource::SetCurrent => memory("sets the pool of a device", PLAIN).query(),
        _ => memory("returns the pool of a device", OUT).query(),
    }
}

/// Returns the meaning of a call that adds a node, with its parameters in an argument.
const fn node(parameters: Option<(u8, u8)>) -> Meaning {
    let row = PLAIN.action(wire::VS_ACTION_GRAPH_NODE);
    let row = match parameters {
        Some((argument, bytes)) => row.descriptor(argument, bytes),
        None => row,
    };
    memory("graph node: an address, no memory yet", row)
}

const fn instantiate(flags: FlagsSource) -> Meaning {
    let row = match flags {
        FlagsSource::Parameters => OUT.descriptor(2, 8),
        FlagsSource::None | FlagsSource::Argument(_) => OUT,
    };
    memory("instantiates a graph", row).creates(ObjectKind::GraphExec)
}

/// Returns the meaning of a call that changes the context stack of the thread.
const fn current(action: u32) -> Meaning {
    memory("sets the thread's context (tracked in BPF)", PLAIN.action(action))
}

const fn context_device(context: Option<u8>) -> Meaning {
    let row = PLAIN.action(wire::VS_ACTION_CONTEXT_DEVICE).out(0, 0, 4);
    let row = match context {
        // Zero bytes: the probe uses the argument itself as the context.
        Some(argument) => row.descriptor(argument, 0),
        None => row,
    };
    memory("context query", row).group(HookGroup::Queries)
}

const fn copies(spec: CopySpec) -> Meaning {
    let about = match spec.route {
        CopyRoute::Fixed(CopyDirection::Memset) => "memset, counted in BPF",
        _ => "copy, counted in BPF",
    };
    memory(about, copy(spec)).group(HookGroup::Activity)
}

/// Bytes of the header of an ELF file, which is larger than that of a fat binary.
const IMAGE_HEADER: u8 = 64;

/// Returns the meaning of a call that creates an object; a loss is counted as one of an object.
const fn create(kind: ObjectKind, handle: u8, image: Option<u8>) -> Meaning {
    let row = OBJECT.out(0, handle, 8);
    let row = match image {
        Some(argument) => row.descriptor(argument, IMAGE_HEADER).flag(wire::VS_DATA),
        None => row,
    };
    memory("creates an object", row).group(HookGroup::Objects).creates(kind).query()
}

const fn destroy(kind: ObjectKind) -> Meaning {
    memory("destroys an object", OBJECT).group(HookGroup::Objects).destroys(kind)
}

impl CallSemantics {
    /// Returns a short description.
    #[must_use]
    pub const fn describe(&self) -> &'static str {
        self.meaning().about
    }

    /// Returns the layer that its bytes count in.
    #[must_use]
    pub const fn layer(&self) -> Option<MemoryLayer> {
        self.meaning().layer
    }

    /// Returns the effect on an object.
    #[must_use]
    pub const fn object(&self) -> Option<ObjectEffect> {
        self.meaning().object
    }

    /// Returns the meaning.
    pub(crate) const fn meaning(&self) -> Meaning {
        match *self {
            Self::Allocate { kind, pointer, size, .. } => allocate(kind, pointer, size),
            Self::AllocateAsync { .. } => ALLOCATE_ASYNC,
            Self::Free { space, by } => free(space, by),
            Self::FreeAsync => FREE_ASYNC,
            Self::VmmCreate => VMM_CREATE,
            Self::VmmImport => VMM_IMPORT,
            Self::Export { handle, .. } => {
                memory("exports memory; it still counts for the exporter", export(handle)).query()
            }
            Self::VmmMulticast => memory("handle without memory of its own", OUT),
            Self::VmmRetain => memory("adds a reference", OUT),
            Self::VmmRelease => VMM_RELEASE,
            Self::VmmMap => memory("adds a mapping", PLAIN),
            Self::VmmUnmap => VMM_UNMAP,
            Self::VmmReserve => memory("address range, never memory", OUT),
            Self::VmmUnreserve => memory("address range, never memory", PLAIN),
            Self::PoolCreate => POOL_CREATE,
            Self::PoolImport => memory("imports a pool", OUT).creates(ObjectKind::Pool),
            Self::PoolDestroy => POOL_DESTROY,
            Self::PoolTrim => memory("trims a pool: reserved size unknown again", PLAIN),
            Self::PoolGet => POOL_GET,
            Self::PoolOfDevice(source) => pool_of_device(source),
            Self::CaptureBegin { .. } => CAPTURE_BEGIN,
            Self::CaptureEnd => CAPTURE_END,
            Self::GraphAllocNode => node(Some((4, ALLOC_PARAMETERS))),
            Self::GraphNode { parameters } => node(Some((parameters, NODE_PARAMETERS))),
            Self::GraphFreeNode => node(None),
            Self::GraphCreate => GRAPH_CREATE,
            Self::GraphInstantiate(flags) => instantiate(flags),
            Self::GraphLaunch => GRAPH_LAUNCH,
            Self::GraphExecDestroy => GRAPH_EXEC_DESTROY,
            Self::GraphDestroy => GRAPH_DESTROY,
            Self::GraphTrim => memory("trims graph memory: reserved size unknown again", PLAIN),
            Self::GraphGet => GRAPH_GET,
            Self::ContextSet => current(wire::VS_ACTION_CONTEXT_SET),
            Self::ContextPush => current(wire::VS_ACTION_CONTEXT_PUSH),
            Self::ContextPop => current(wire::VS_ACTION_CONTEXT_POP),
            Self::ContextGet => CONTEXT_GET,
            Self::ContextDevice { context } => context_device(context),
            Self::ContextCreate { .. } => CONTEXT_CREATE,
            Self::ContextDestroy => CONTEXT_DESTROY,
            Self::ContextLimit => memory("sizes heaps and stacks that are driver memory", PLAIN),
            Self::PrimaryRetain => memory("creates or shares a context", OUT),
            Self::PrimaryRelease | Self::PrimaryReset => memory(END, ENDS_CONTEXT),
            Self::StreamCreate | Self::GreenStreamCreate => STREAM_CREATE,
            Self::StreamDestroy => STREAM_DESTROY,
            Self::GreenCreate => GREEN_CREATE,
            Self::GreenDestroy => GREEN_DESTROY,
            Self::ContextFromGreen => memory("view of a primary context", OUT),
            Self::Initialize => memory("a process starts using the driver", PLAIN),
            Self::DeviceUuid => DEVICE_UUID,
            Self::KernelByName => KERNEL_BY_NAME,
            Self::KernelName => KERNEL_NAME,
            Self::KernelFunction => KERNEL_FUNCTION,
            Self::Launch(form) => {
                memory("launch, counted in BPF", launch(form)).group(HookGroup::Launches)
            }
            Self::Copy(spec) => copies(spec),
            Self::ObjectCreate { kind, handle, image } => create(kind, handle, image),
            Self::ObjectDestroy(kind) => destroy(kind),
        }
    }
}
