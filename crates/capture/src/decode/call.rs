//! Decodes a call by its row of the hook table.

use engine::model::activity::GpuActivity;
use engine::model::cuda_object::{ObjectCall, ObjectKind};
use engine::model::event::{
    Allocate, ContextCall, Event, EventKind, FailedCall, Free, FreeFunction, GraphCall, LostDelta,
    MemoryLocation, PoolCall, VmmCall,
};
use engine::model::ids::{
    AddressType, AllocationKey, ContextId, DeviceId, FunctionId, GraphExecId, GraphId, KernelId,
    PhysicalHandleId, PoolId, SiteId, StreamId,
};
use engine::model::memory_kind::MemoryKind;
use engine::model::overhead::ContextLimit;
use engine::model::units::Timestamp;

use super::handles::BindingChange;
use super::{Handles, Record, RecordBody, StackRef, array, device, image, share};
use crate::hooks::{
    CallSemantics, DescriptorType, FlagsSource, HOOKS, ObjectEffect, PointerSource, PoolSource,
    SizeSource,
};
use crate::wire::{self, Call};

/// A call, with its semantics.
#[derive(Clone, Debug)]
pub struct CallRecord {
    call: Call,
    semantics: CallSemantics,
    /// The structure that was passed to it, if its row requests one.
    descriptor: Option<Box<[u8; wire::VS_DESCRIPTOR]>>,
}

/// Resolves the stack of a call to its site.
pub(super) type ResolveSite<'a> = &'a mut dyn FnMut(StackRef) -> Option<SiteId>;

/// The UUID of a device, as the driver returned it to a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceUuid {
    /// The ordinal.
    pub device: DeviceId,
    /// The GPU or MIG instance.
    pub uuid: [u8; 16],
}

/// An allocation of a successful call.
struct Allocated {
    key: AllocationKey,
    kind: MemoryKind,
    size: SizeSource,
    pool: Option<PoolId>,
    stream: Option<StreamId>,
}

/// `CU_POOL_ATTR_RESERVED_MEM_CURRENT` of `cuMemPoolGetAttribute`.
const POOL_RESERVED: u64 = 5;
/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT` of `cuDeviceGetGraphMemAttribute`.
const GRAPH_RESERVED: u64 = 2;
/// Node types in `CUgraphNodeParams`.
const NODE_ALLOC: u32 = 10;
const NODE_FREE: u32 = 11;
/// Offset of the parameters in `CUgraphNodeParams`.
const NODE_UNION: usize = 16;

impl CallRecord {
    /// Returns the record of a call; `None` if its function is unknown.
    pub(super) fn record(
        call: Call,
        descriptor: Option<Box<[u8; wire::VS_DESCRIPTOR]>>,
    ) -> Option<Record> {
        let semantics = HOOKS.get(usize::from(call.head.hook))?.semantics;
        let record =
            Record::new(&call.head, RecordBody::Call(Self { call, semantics, descriptor }));
        Some(Record { entry_time: Timestamp(call.entered), ..record })
    }

    /// Adds the events of the call: its effect on memory or handles, then on objects.
    pub(super) fn events(
        &self,
        record: &Record,
        handles: &mut Handles,
        tracks_objects: bool,
        site: ResolveSite<'_>,
        events: &mut Vec<Event>,
    ) {
        // A new graph ends an older one with the same handle, at the latest when it returns.
        let at_return = self.semantics == CallSemantics::GraphCreate;
        let entry_time = if at_return { record.time } else { record.entry_time };
        let mut push = |kind| events.push(Event { entry_time, ..record.event(kind) });
        let effect = match self.binding() {
            Some(change) => handles.apply(change),
            None => self.effect(handles, site),
        };
        for kind in effect.into_iter().chain(self.capture_end()) {
            handles.observe(&kind).into_iter().for_each(&mut push);
            push(kind);
        }
        let share = share::event(self.semantics, &self.call, self.descriptor.as_deref());
        share.into_iter().for_each(&mut push);
        // After the effect on memory: the context of a new stream is known by then.
        if tracks_objects && let Some(kind) = self.object(handles, site) {
            let image = self.image(&kind);
            events.extend(std::iter::once(kind).chain(image).map(|kind| record.event(kind)));
        }
    }

    fn effect(&self, handles: &Handles, site: ResolveSite<'_>) -> Option<EventKind> {
        match self.call.head.result {
            0 if self.is_unreadable() => self.loss(),
            0 => self.success(handles, site),
            _ => Some(self.failure(handles, site)),
        }
    }

    /// Returns the second handle of a kernel, and the kernel.
    pub(crate) fn alias(&self) -> Option<(KernelId, KernelId)> {
        let has_alias = self.semantics == CallSemantics::KernelFunction
            && self.call.head.result == 0
            && !self.is_unreadable();
        has_alias.then(|| (KernelId(self.call.outs[0]), KernelId(self.argument(1))))
    }

    /// Returns the UUID that the call returned, if it is such a query.
    pub(crate) fn device_uuid(&self) -> Option<DeviceUuid> {
        let is_query = self.semantics == CallSemantics::DeviceUuid;
        if !is_query || self.call.head.result != 0 || self.is_unreadable() {
            return None;
        }
        let uuid = *self.descriptor.as_ref()?.first_chunk()?;
        Some(DeviceUuid { device: self.device_argument(1)?, uuid })
    }

    /// Returns whether the call changes a handle or names a device.
    #[cfg(test)]
    pub(super) fn has_effect(&self) -> bool {
        self.binding().is_some() || self.device_uuid().is_some()
    }

    /// Returns how a successful call changes a stream or a green context.
    fn binding(&self) -> Option<BindingChange> {
        if self.call.head.result != 0 || self.is_unreadable() {
            return None;
        }
        let (first, second, out) = (self.argument(0), self.argument(1), self.call.outs[0]);
        let (stream, context) = (StreamId(out), ContextId(self.call.context));
        Some(match self.semantics {
            CallSemantics::StreamCreate => BindingChange::StreamCreated { stream, context },
            CallSemantics::GreenStreamCreate => {
                BindingChange::GreenStreamCreated { stream, green: second }
            }
            CallSemantics::StreamDestroy => {
                BindingChange::StreamDestroyed { stream: StreamId(first) }
            }
            CallSemantics::GreenCreate => {
                BindingChange::GreenCreated { green: out, device: self.device_argument(2)? }
            }
            CallSemantics::GreenDestroy => BindingChange::GreenDestroyed { green: first },
            CallSemantics::ContextFromGreen => {
                BindingChange::FromGreen { context: ContextId(out), green: second }
            }
            _ => return None,
        })
    }

    /// Returns the end of a capture that the effect of the call does not imply: the call failed, or
    /// the graph that it returned could not be read.
    fn capture_end(&self) -> Option<EventKind> {
        let is_end = self.semantics == CallSemantics::CaptureEnd;
        let has_ended = is_end && self.call.flags & wire::VS_CAPTURE_ENDED != 0;
        let not_implied = self.call.head.result != 0 || self.is_unreadable();
        let stream = StreamId(self.argument(0));
        let ended = GraphCall::CaptureEnded { stream, graph: None };
        (has_ended && not_implied).then_some(EventKind::Graph(ended))
    }

    /// Returns the effect of a successful call on an object.
    fn object(&self, handles: &mut Handles, site: ResolveSite<'_>) -> Option<EventKind> {
        let effect = self.semantics.object().filter(|_| self.call.head.result == 0)?;
        let (first, second) = (self.argument(0), self.argument(1));
        let kind = match effect {
            ObjectEffect::Destroys(kind) => {
                return Some(EventKind::Object(ObjectCall::Destroyed { kind, handle: first }));
            }
            ObjectEffect::Creates(kind) => kind,
        };
        let handle = self.call.outs[0];
        let is_capture = self.semantics == CallSemantics::CaptureEnd;
        // The caller did not request the graph, so it has none.
        if is_capture && second == 0 {
            return None;
        }
        // Textures and surfaces are numbers, all others pointers.
        let may_be_zero = matches!(kind, ObjectKind::Texture | ObjectKind::Surface);
        if self.is_unreadable() || (handle == 0 && !may_be_zero) {
            // An object was created, but its handle is unknown.
            return Some(EventKind::Lost(LostDelta { objects: 1, ..LostDelta::default() }));
        }
        if is_capture && handles.keeps_graph(StreamId(first), handle) {
            return None;
        }
        let context = self.context().filter(|_| kind.ends_with_context());
        let context = handles.context_of_object(kind, handle, context);
        let site = self.stack().and_then(site);
        Some(EventKind::Object(ObjectCall::Created { kind, handle, context, site }))
    }

    /// Returns the size of the image that a module or library was loaded from, if its header has one.
    fn image(&self, created: &EventKind) -> Option<EventKind> {
        let EventKind::Object(ObjectCall::Created { kind, handle, .. }) = *created else {
            return None;
        };
        let CallSemantics::ObjectCreate { image: Some(_), .. } = self.semantics else {
            return None;
        };
        let bytes = image::bytes(self.descriptor.as_ref()?.first_chunk()?)?;
        Some(EventKind::Object(ObjectCall::Image { kind, handle, bytes }))
    }

    fn stack(&self) -> Option<StackRef> {
        let Call { stack, python, flags, head, .. } = self.call;
        StackRef::new(head.hook, stack, python, flags)
    }

    fn argument(&self, index: u8) -> u64 {
        self.call.args.get(usize::from(index)).copied().unwrap_or(0)
    }

    /// Reads an int in a 64-bit register, whose upper half is undefined.
    fn device_argument(&self, index: u8) -> Option<DeviceId> {
        device(self.argument(index) as u32 as i32)
    }

    pub(super) fn u64_at(&self, offset: usize) -> Option<u64> {
        Some(u64::from_ne_bytes(*self.descriptor.as_ref()?.get(offset..)?.first_chunk()?))
    }

    pub(super) fn u32_at(&self, offset: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(*self.descriptor.as_ref()?.get(offset..)?.first_chunk()?))
    }

    fn is_unreadable(&self) -> bool {
        self.call.flags & wire::VS_OUT_UNREADABLE != 0
    }

    fn context(&self) -> Option<ContextId> {
        let known = self.call.flags & wire::VS_CONTEXT_KNOWN != 0 && self.call.context != 0;
        known.then_some(ContextId(self.call.context))
    }

    /// Returns the device that a query returned for a thread whose context is unknown.
    fn thread_device(&self) -> Option<DeviceId> {
        let known = self.call.flags & wire::VS_DEVICE_KNOWN != 0;
        let needed = self.call.flags & wire::VS_CONTEXT_KNOWN == 0;
        if known && needed { device(self.call.device) } else { None }
    }

    /// Reads a `CUmemLocation`, type and id, at an offset of the structure.
    fn location(&self, offset: usize) -> Option<MemoryLocation> {
        match self.u32_at(offset)? {
            1 => device(self.u32_at(offset + 4)?.cast_signed()).map(MemoryLocation::Device),
            _ => Some(MemoryLocation::Host),
        }
    }

    /// Returns the requested bytes, a lower bound of what a failed or lost call would allocate.
    fn requested(&self, size: SizeSource) -> u64 {
        match size {
            SizeSource::Argument(index) => self.argument(index),
            SizeSource::Narrow(index) => u64::from(self.argument(index) as u32),
            SizeSource::Pitch { width, height } => {
                self.argument(width).saturating_mul(self.argument(height))
            }
            SizeSource::Descriptor(descriptor) => self.described(descriptor).unwrap_or(0),
            SizeSource::Exporter(_) => 0,
        }
    }

    fn described(&self, descriptor: DescriptorType) -> Option<u64> {
        match descriptor {
            DescriptorType::Array => array::bytes_2d(self),
            DescriptorType::Array3d => array::bytes_3d(self, 1),
            DescriptorType::Mipmapped => array::bytes_3d(self, self.argument(2) as u32),
            DescriptorType::ExternalBuffer => self.u64_at(8),
        }
    }

    /// Returns the allocated bytes, which exceed the requested ones if rows are padded.
    fn allocated(&self, size: SizeSource) -> u64 {
        match size {
            SizeSource::Pitch { height, .. } => {
                self.call.outs[1].saturating_mul(self.argument(height))
            }
            other => self.requested(other),
        }
    }

    fn failure(&self, handles: &Handles, site: ResolveSite<'_>) -> EventKind {
        let meaning = self.semantics.meaning();
        let device = match self.semantics {
            CallSemantics::VmmCreate => match self.location(8) {
                Some(MemoryLocation::Device(device)) => Some(device),
                _ => None,
            },
            _ => self.thread_device(),
        };
        EventKind::Failed(FailedCall {
            function: FunctionId(self.call.head.hook),
            code: self.call.head.result,
            requested: meaning.requests.map(|(kind, size)| (kind, self.requested(size))),
            freed: meaning.frees.map(|space| AllocationKey { space, value: self.argument(0) }),
            device,
            context: self.context().map(|context| handles.owner(context)),
            site: self.stack().and_then(site),
        })
    }

    fn success(&self, handles: &Handles, site: ResolveSite<'_>) -> Option<EventKind> {
        let semantics = self.semantics;
        match semantics {
            CallSemantics::Allocate { kind, space, pointer, size } => {
                let value = match pointer {
                    PointerSource::Out | PointerSource::NarrowOut => self.call.outs[0],
                    PointerSource::Argument => self.argument(0),
                };
                let key = AllocationKey { space, value };
                self.allocate(Allocated { key, kind, size, pool: None, stream: None }, handles, site)
            }
            CallSemantics::AllocateAsync { pool, stream } => {
                let key = AllocationKey::address(self.call.outs[0]);
                let pool = pool.map(|index| PoolId(self.argument(index)));
                let stream = Some(StreamId(self.argument(stream)));
                let (kind, size) = (MemoryKind::Async, SizeSource::Argument(1));
                self.allocate(Allocated { key, kind, size, pool, stream }, handles, site)
            }
            CallSemantics::Free { space, by } => self.free(space, by, None),
            CallSemantics::FreeAsync => {
                let stream = Some(StreamId(self.argument(1)));
                self.free(AddressType::Pointer, FreeFunction::FreeAsync, stream)
            }
            CallSemantics::ContextCreate { .. }
            | CallSemantics::ContextDestroy
            | CallSemantics::PrimaryRetain
            | CallSemantics::PrimaryRelease
            | CallSemantics::PrimaryReset => self.context_change(semantics).map(EventKind::Context),
            CallSemantics::ContextLimit => self.limit(),
            CallSemantics::PoolCreate
            | CallSemantics::PoolImport
            | CallSemantics::PoolDestroy
            | CallSemantics::PoolTrim
            | CallSemantics::PoolGet
            | CallSemantics::PoolOfDevice(_) => self.pool(semantics).map(EventKind::Pool),
            // Handled by the probes, which send no record.
            CallSemantics::ContextSet
            | CallSemantics::ContextPush
            | CallSemantics::ContextPop
            | CallSemantics::ContextGet
            | CallSemantics::ContextDevice { .. }
            | CallSemantics::Initialize
            | CallSemantics::Export { .. }
            | CallSemantics::DeviceUuid
            | CallSemantics::StreamCreate
            | CallSemantics::GreenStreamCreate
            | CallSemantics::StreamDestroy
            | CallSemantics::GreenCreate
            | CallSemantics::GreenDestroy
            | CallSemantics::ContextFromGreen
            | CallSemantics::KernelByName
            | CallSemantics::KernelName
            | CallSemantics::Launch(_)
            | CallSemantics::Copy(_)
            // Only an object is affected.
            | CallSemantics::ObjectCreate { .. }
            | CallSemantics::ObjectDestroy(_) => None,
            CallSemantics::KernelFunction => {
                let (function, kernel) = self.alias()?;
                Some(EventKind::Activity(GpuActivity::Alias { function, kernel }))
            }
            CallSemantics::VmmCreate
            | CallSemantics::VmmImport
            | CallSemantics::VmmMulticast
            | CallSemantics::VmmRetain
            | CallSemantics::VmmRelease
            | CallSemantics::VmmMap
            | CallSemantics::VmmUnmap
            | CallSemantics::VmmReserve
            | CallSemantics::VmmUnreserve => self.vmm(semantics, site).map(EventKind::Vmm),
            CallSemantics::CaptureBegin { .. }
            | CallSemantics::CaptureEnd
            | CallSemantics::GraphAllocNode
            | CallSemantics::GraphFreeNode
            | CallSemantics::GraphNode { .. }
            | CallSemantics::GraphCreate
            | CallSemantics::GraphInstantiate(_)
            | CallSemantics::GraphLaunch
            | CallSemantics::GraphExecDestroy
            | CallSemantics::GraphDestroy
            | CallSemantics::GraphTrim
            | CallSemantics::GraphGet => self.graph(semantics).map(EventKind::Graph),
        }
    }

    /// Decodes a successful call whose results or structures could not be read: a loss, unless the
    /// call was only a query.
    fn loss(&self) -> Option<EventKind> {
        let meaning = self.semantics.meaning();
        match meaning.requests {
            Some((_, size)) => Some(self.lost_allocation(size)),
            None if meaning.is_query => None,
            None => Some(EventKind::Lost(LostDelta { other: 1, ..LostDelta::default() })),
        }
    }

    /// Returns the loss of an allocation whose address or handle could not be read.
    fn lost_allocation(&self, size: SizeSource) -> EventKind {
        let allocated_bytes = match size {
            SizeSource::Descriptor(_) if self.is_unreadable() => wire::VS_UNKNOWN_BYTES as u64,
            size => self.requested(size),
        };
        EventKind::Lost(LostDelta { allocations: 1, allocated_bytes, ..LostDelta::default() })
    }

    fn allocate(
        &self,
        allocated: Allocated,
        handles: &Handles,
        site: ResolveSite<'_>,
    ) -> Option<EventKind> {
        let Allocated { key, kind, size, pool, stream } = allocated;
        if key.value == 0 && self.requested(size) == 0 {
            return None; // nothing requested, nothing allocated
        }
        if key.value == 0 {
            return Some(self.lost_allocation(size));
        }
        // The memory belongs to the context of the stream, else to that of the thread.
        let (context, device) = match stream.and_then(|stream| handles.stream_context(stream)) {
            Some(owner) => (owner, None),
            None => (self.context().map(|id| handles.owner(id)), self.thread_device()),
        };
        let (bytes, site) = (self.allocated(size), self.stack().and_then(site));
        Some(EventKind::Allocate(Allocate {
            key,
            kind,
            bytes,
            context,
            device,
            pool,
            stream,
            site,
        }))
    }

    fn free(
        &self,
        space: AddressType,
        by: FreeFunction,
        stream: Option<StreamId>,
    ) -> Option<EventKind> {
        let value = self.argument(0);
        (value != 0).then_some(EventKind::Free(Free {
            key: AllocationKey { space, value },
            by,
            stream,
        }))
    }

    fn limit(&self) -> Option<EventKind> {
        let limit = ContextLimit::from_code(self.argument(0) & u64::from(u32::MAX))?;
        Some(EventKind::Limit { limit, value: self.argument(1) })
    }

    fn context_change(&self, semantics: CallSemantics) -> Option<ContextCall> {
        let out = ContextId(self.call.outs[0]);
        Some(match semantics {
            CallSemantics::ContextCreate { device } => {
                ContextCall::Created { context: out, device: self.device_argument(device)? }
            }
            CallSemantics::ContextDestroy => {
                ContextCall::Destroyed { context: ContextId(self.argument(0)) }
            }
            CallSemantics::PrimaryRetain => {
                ContextCall::PrimaryRetained { context: out, device: self.device_argument(1)? }
            }
            CallSemantics::PrimaryRelease => {
                ContextCall::PrimaryReleased { device: self.device_argument(0)? }
            }
            CallSemantics::PrimaryReset => {
                ContextCall::PrimaryReset { device: self.device_argument(0)? }
            }
            _ => return None,
        })
    }

    fn vmm(&self, semantics: CallSemantics, site: ResolveSite<'_>) -> Option<VmmCall> {
        let out = PhysicalHandleId(self.call.outs[0]);
        let (address, bytes) = (self.argument(0), self.argument(1));
        Some(match semantics {
            CallSemantics::VmmCreate => {
                let location = self.location(8)?;
                let site = self.stack().and_then(site);
                VmmCall::Create { handle: out, bytes, location, site }
            }
            CallSemantics::VmmImport => VmmCall::Import { handle: out },
            CallSemantics::VmmMulticast => VmmCall::Multicast { handle: out },
            CallSemantics::VmmRetain => VmmCall::Retain { handle: out },
            CallSemantics::VmmRelease => VmmCall::Release { handle: PhysicalHandleId(address) },
            CallSemantics::VmmMap => {
                VmmCall::Map { address, bytes, handle: PhysicalHandleId(self.argument(3)) }
            }
            CallSemantics::VmmUnmap => VmmCall::Unmap { address, bytes },
            CallSemantics::VmmReserve => VmmCall::Reserve { address: self.call.outs[0], bytes },
            CallSemantics::VmmUnreserve => VmmCall::Unreserve { address, bytes },
            _ => return None,
        })
    }

    fn pool(&self, semantics: CallSemantics) -> Option<PoolCall> {
        let out = PoolId(self.call.outs[0]);
        let pool = PoolId(self.argument(0));
        Some(match semantics {
            CallSemantics::PoolCreate => {
                PoolCall::Created { pool: out, location: self.location(8) }
            }
            CallSemantics::PoolImport => PoolCall::Created { pool: out, location: None },
            CallSemantics::PoolDestroy => PoolCall::Destroyed { pool },
            CallSemantics::PoolTrim => PoolCall::Trimmed { pool, keep: self.argument(1) },
            CallSemantics::PoolGet if self.argument(1) as u32 == POOL_RESERVED as u32 => {
                PoolCall::ReservedReported { pool, bytes: self.call.outs[0] }
            }
            CallSemantics::PoolOfDevice(PoolSource::SetCurrent) => PoolCall::OfDevice {
                pool: PoolId(self.argument(1)),
                device: self.device_argument(0)?,
                current: true,
            },
            CallSemantics::PoolOfDevice(source) => PoolCall::OfDevice {
                pool: out,
                device: self.device_argument(1)?,
                current: source == PoolSource::GetCurrent,
            },
            _ => return None,
        })
    }

    fn graph(&self, semantics: CallSemantics) -> Option<GraphCall> {
        let first = self.argument(0);
        let graph = GraphId(self.argument(1));
        Some(match semantics {
            CallSemantics::CaptureBegin { graph } => GraphCall::CaptureBegan {
                stream: StreamId(first),
                graph: graph.map(|index| GraphId(self.argument(index))),
            },
            CallSemantics::CaptureEnd => {
                let graph = Some(GraphId(self.call.outs[0])).filter(|graph| graph.0 != 0);
                GraphCall::CaptureEnded { stream: StreamId(first), graph }
            }
            CallSemantics::GraphAllocNode => self.alloc_node(0)?,
            CallSemantics::GraphFreeNode => {
                GraphCall::FreeNode { graph, address: self.argument(4) }
            }
            CallSemantics::GraphNode { .. } => match self.u32_at(0)? {
                NODE_ALLOC => self.alloc_node(NODE_UNION)?,
                NODE_FREE => GraphCall::FreeNode { graph, address: self.u64_at(NODE_UNION)? },
                _ => return None,
            },
            CallSemantics::GraphInstantiate(flags) => GraphCall::Instantiated {
                exec: GraphExecId(self.call.outs[0]),
                graph,
                frees_before_launch: 1 & match flags {
                    FlagsSource::None => 0,
                    FlagsSource::Argument(index) => self.argument(index),
                    FlagsSource::Parameters => self.u64_at(0)?,
                } == 1,
            },
            CallSemantics::GraphLaunch => GraphCall::Launched { exec: GraphExecId(first) },
            CallSemantics::GraphExecDestroy => {
                GraphCall::ExecDestroyed { exec: GraphExecId(first) }
            }
            CallSemantics::GraphCreate => {
                GraphCall::GraphDestroyed { graph: GraphId(self.call.outs[0]) }
            }
            CallSemantics::GraphDestroy => GraphCall::GraphDestroyed { graph: GraphId(first) },
            CallSemantics::GraphTrim => GraphCall::Trimmed { device: self.device_argument(0)? },
            CallSemantics::GraphGet if self.argument(1) as u32 == GRAPH_RESERVED as u32 => {
                let device = self.device_argument(0)?;
                GraphCall::ReservedReported { device, bytes: self.call.outs[0] }
            }
            _ => return None,
        })
    }

    /// Reads `CUDA_MEM_ALLOC_NODE_PARAMS`: pool properties first, size at 104, address at 112.
    fn alloc_node(&self, base: usize) -> Option<GraphCall> {
        Some(GraphCall::AllocNode {
            graph: GraphId(self.argument(1)),
            address: self.u64_at(base + 112)?,
            bytes: self.u64_at(base + 104)?,
            location: self.location(base + 8)?,
        })
    }
}
