//! Decodes a call by its row of the hook table.

use engine::event::{
    Allocate, ContextChange, Event, Failed, Free, FreeBy, GraphCall, Lost, Place, PoolCall,
    VmmCall, What,
};
use engine::ids::{
    ContextId, DeviceId, ExecId, FunctionId, GraphId, HandleId, KernelId, Key, Pid, PoolId, Space,
    StreamId, Tid,
};
use engine::kind::Kind;
use engine::units::Moment;
use engine::work::Work;

use super::{Unreadable, array, device};
use crate::hooks::{Descriptor, DevicePool, HOOKS, InstantiateFlags, Meaning, Pointer, Size};
use crate::wire::{self, Call};

/// A call, with the structure that was passed to it if its row requests one.
pub(super) struct Seen<'a> {
    pub(super) call: &'a Call,
    pub(super) descriptor: &'a [u8],
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

impl Seen<'_> {
    pub(super) fn event(&self) -> Result<Option<Event>, Unreadable> {
        let call = self.call;
        let hook = HOOKS.get(usize::from(call.head.hook)).ok_or(Unreadable)?;
        let what = match call.head.result {
            0 if self.unreadable() => self.unread(hook.meaning),
            0 => self.success(hook.meaning),
            _ => Some(self.failure(hook.meaning)),
        };
        Ok(what.map(|what| match hook.meaning {
            // It ends an older graph with the same handle, at the latest now.
            Meaning::GraphCreate => Event { entered: Moment(call.head.at), ..self.at(what) },
            _ => self.at(what),
        }))
    }

    fn at(&self, what: What) -> Event {
        let Call { head, entered, .. } = self.call;
        let (pid, tid) = (Pid(head.pid), Tid(head.tid));
        Event { pid, tid, entered: Moment(*entered), at: Moment(head.at), what }
    }

    /// Returns the end of a capture that the decoded call does not imply: the call failed, or the
    /// graph that it returned could not be read.
    pub(super) fn capture_end(&self) -> Option<Event> {
        let over = self.call.flags & wire::VS_CAPTURE_OVER != 0;
        let silent = self.call.head.result != 0 || self.unreadable();
        let stream = StreamId(self.argument(0));
        let ended = GraphCall::CaptureEnded { stream, graph: None };
        (over && silent).then(|| self.at(What::Graph(ended)))
    }

    fn argument(&self, index: u8) -> u64 {
        self.call.args.get(usize::from(index)).copied().unwrap_or(0)
    }

    /// Reads an int in a 64-bit register, whose upper half is undefined.
    fn device_argument(&self, index: u8) -> Option<DeviceId> {
        device(self.argument(index) as u32 as i32)
    }

    pub(super) fn word(&self, offset: usize) -> Option<u64> {
        Some(u64::from_ne_bytes(*self.descriptor.get(offset..)?.first_chunk()?))
    }

    pub(super) fn half(&self, offset: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(*self.descriptor.get(offset..)?.first_chunk()?))
    }

    fn unreadable(&self) -> bool {
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
    fn place(&self, offset: usize) -> Option<Place> {
        match self.half(offset)? {
            1 => device(self.half(offset + 4)?.cast_signed()).map(Place::Device),
            _ => Some(Place::Host),
        }
    }

    /// Returns the requested bytes, a lower bound of what a failed or lost call would allocate.
    fn requested(&self, size: Size) -> u64 {
        match size {
            Size::Argument(index) => self.argument(index),
            Size::Narrow(index) => u64::from(self.argument(index) as u32),
            Size::Pitch { width, height } => {
                self.argument(width).saturating_mul(self.argument(height))
            }
            Size::Descriptor(descriptor) => self.described(descriptor).unwrap_or(0),
            Size::Unknown => 0,
        }
    }

    fn described(&self, descriptor: Descriptor) -> Option<u64> {
        match descriptor {
            Descriptor::Array => array::flat(self),
            Descriptor::Array3d => array::deep(self, 1),
            Descriptor::Mipmapped => array::deep(self, self.argument(2) as u32),
            Descriptor::ExternalBuffer => self.word(8),
        }
    }

    /// Returns the allocated bytes, which exceed the requested ones if rows are padded.
    fn allocated(&self, size: Size) -> u64 {
        match size {
            Size::Pitch { height, .. } => self.call.outs[1].saturating_mul(self.argument(height)),
            other => self.requested(other),
        }
    }

    fn failure(&self, meaning: Meaning) -> What {
        let size = Size::Argument(1);
        let asked = match meaning {
            Meaning::Allocate { kind, size, .. } => Some((kind, self.requested(size))),
            Meaning::AllocateAsync { .. } => Some((Kind::Async, self.requested(size))),
            Meaning::VmmCreate => Some((Kind::Physical, self.requested(size))),
            Meaning::VmmImport => Some((Kind::Imported, 0)),
            _ => None,
        };
        let device = match meaning {
            Meaning::VmmCreate => match self.place(8) {
                Some(Place::Device(device)) => Some(device),
                _ => None,
            },
            _ => self.thread_device(),
        };
        let freed = match meaning {
            Meaning::Free { space, .. } => Some(Key { space, value: self.argument(0) }),
            Meaning::FreeAsync => Some(Key::address(self.argument(0))),
            Meaning::VmmRelease => Some(Key { space: Space::Handle, value: self.argument(0) }),
            _ => None,
        };
        What::Failed(Failed {
            function: FunctionId(self.call.head.hook),
            code: self.call.head.result,
            asked,
            freed,
            device,
            context: self.context(),
            site: None,
        })
    }

    fn success(&self, meaning: Meaning) -> Option<What> {
        match meaning {
            Meaning::Allocate { kind, space, pointer, size } => {
                self.allocate(kind, space, pointer, size)
            }
            Meaning::AllocateAsync { pool, stream } => self.allocate_async(pool, stream),
            Meaning::Free { space, by } => self.free(space, by, None),
            Meaning::FreeAsync => {
                self.free(Space::Address, FreeBy::FreeAsync, Some(StreamId(self.argument(1))))
            }
            Meaning::ContextCreate { .. }
            | Meaning::ContextDestroy
            | Meaning::PrimaryRetain
            | Meaning::PrimaryRelease
            | Meaning::PrimaryReset => self.context_change(meaning).map(What::Context),
            Meaning::PoolCreate
            | Meaning::PoolImport
            | Meaning::PoolDestroy
            | Meaning::PoolTrim
            | Meaning::PoolGet
            | Meaning::PoolOfDevice(_) => self.pool(meaning).map(What::Pool),
            // Handled by the probes, which send no record.
            Meaning::ContextSet
            | Meaning::ContextPush
            | Meaning::ContextPop
            | Meaning::ContextGet
            | Meaning::ContextDevice { .. }
            | Meaning::Initialize
            | Meaning::DeviceUuid
            | Meaning::StreamCreate
            | Meaning::GreenStreamCreate
            | Meaning::StreamDestroy
            | Meaning::GreenCreate
            | Meaning::GreenDestroy
            | Meaning::ContextFromGreen
            | Meaning::KernelByName
            | Meaning::KernelName
            | Meaning::Launch { .. }
            | Meaning::Copy(_)
            // Decoded separately, by `object`.
            | Meaning::ObjectCreate { .. }
            | Meaning::ObjectDestroy(_) => None,
            Meaning::KernelFunction => {
                let (function, kernel) = (KernelId(self.call.outs[0]), KernelId(self.argument(1)));
                Some(What::Work(Work::Alias { function, kernel }))
            }
            other => match self.vmm(other) {
                Some(call) => Some(What::Vmm(call)),
                None => self.graph(other).map(What::Graph),
            },
        }
    }

    /// Decodes a successful call whose results or structures could not be read: a loss, unless the
    /// call was only a query.
    fn unread(&self, meaning: Meaning) -> Option<What> {
        match meaning {
            Meaning::Allocate { size, .. } => Some(self.lost(size)),
            Meaning::AllocateAsync { .. } | Meaning::VmmCreate => {
                Some(self.lost(Size::Argument(1)))
            }
            Meaning::PoolGet
            | Meaning::PoolOfDevice(_)
            | Meaning::GraphGet
            | Meaning::DeviceUuid
            | Meaning::KernelFunction
            // Counted as a lost object.
            | Meaning::ObjectCreate { .. } => None,
            _ => Some(What::Lost(Lost { other: 1, ..Lost::default() })),
        }
    }

    /// Returns the loss of an allocation whose address or handle could not be read.
    fn lost(&self, size: Size) -> What {
        let allocated_bytes = match size {
            Size::Descriptor(_) if self.unreadable() => wire::VS_UNKNOWN_BYTES as u64,
            size => self.requested(size),
        };
        What::Lost(Lost { allocations: 1, allocated_bytes, ..Lost::default() })
    }

    fn allocate(&self, kind: Kind, space: Space, pointer: Pointer, size: Size) -> Option<What> {
        let value = match pointer {
            Pointer::Out | Pointer::NarrowOut => self.call.outs[0],
            Pointer::Argument => self.argument(0),
        };
        if value == 0 && self.requested(size) == 0 {
            return None; // nothing requested, nothing allocated
        }
        if value == 0 {
            return Some(self.lost(size));
        }
        Some(What::Allocate(Allocate {
            key: Key { space, value },
            kind,
            bytes: self.allocated(size),
            context: self.context(),
            device: self.thread_device(),
            pool: None,
            stream: None,
            site: None,
        }))
    }

    fn allocate_async(&self, pool: Option<u8>, stream: u8) -> Option<What> {
        let value = self.call.outs[0];
        if value == 0 && self.argument(1) == 0 {
            return None; // nothing requested, nothing allocated
        }
        if value == 0 {
            return Some(self.lost(Size::Argument(1)));
        }
        Some(What::Allocate(Allocate {
            key: Key::address(value),
            kind: Kind::Async,
            bytes: self.argument(1),
            context: self.context(),
            device: self.thread_device(),
            pool: pool.map(|index| PoolId(self.argument(index))),
            stream: Some(StreamId(self.argument(stream))),
            site: None,
        }))
    }

    fn free(&self, space: Space, by: FreeBy, stream: Option<StreamId>) -> Option<What> {
        let value = self.argument(0);
        (value != 0).then_some(What::Free(Free { key: Key { space, value }, by, stream }))
    }

    fn context_change(&self, meaning: Meaning) -> Option<ContextChange> {
        let out = ContextId(self.call.outs[0]);
        Some(match meaning {
            Meaning::ContextCreate { device } => {
                ContextChange::Created { context: out, device: self.device_argument(device)? }
            }
            Meaning::ContextDestroy => {
                ContextChange::Destroyed { context: ContextId(self.argument(0)) }
            }
            Meaning::PrimaryRetain => {
                ContextChange::PrimaryRetained { context: out, device: self.device_argument(1)? }
            }
            Meaning::PrimaryRelease => {
                ContextChange::PrimaryReleased { device: self.device_argument(0)? }
            }
            Meaning::PrimaryReset => {
                ContextChange::PrimaryReset { device: self.device_argument(0)? }
            }
            _ => return None,
        })
    }

    fn vmm(&self, meaning: Meaning) -> Option<VmmCall> {
        let out = HandleId(self.call.outs[0]);
        let (address, bytes) = (self.argument(0), self.argument(1));
        Some(match meaning {
            Meaning::VmmCreate => {
                VmmCall::Create { handle: out, bytes, place: self.place(8)?, site: None }
            }
            Meaning::VmmImport => VmmCall::Import { handle: out },
            Meaning::VmmMulticast => VmmCall::Multicast { handle: out },
            Meaning::VmmRetain => VmmCall::Retain { handle: out },
            Meaning::VmmRelease => VmmCall::Release { handle: HandleId(address) },
            Meaning::VmmMap => VmmCall::Map { address, bytes, handle: HandleId(self.argument(3)) },
            Meaning::VmmUnmap => VmmCall::Unmap { address, bytes },
            Meaning::VmmReserve => VmmCall::Reserve { address: self.call.outs[0], bytes },
            Meaning::VmmUnreserve => VmmCall::Unreserve { address, bytes },
            _ => return None,
        })
    }

    fn pool(&self, meaning: Meaning) -> Option<PoolCall> {
        let out = PoolId(self.call.outs[0]);
        let pool = PoolId(self.argument(0));
        Some(match meaning {
            Meaning::PoolCreate => PoolCall::Created { pool: out, place: self.place(8) },
            Meaning::PoolImport => PoolCall::Created { pool: out, place: None },
            Meaning::PoolDestroy => PoolCall::Destroyed { pool },
            Meaning::PoolTrim => PoolCall::Trimmed { pool, keep: self.argument(1) },
            Meaning::PoolGet if self.argument(1) as u32 == POOL_RESERVED as u32 => {
                PoolCall::ToldReserved { pool, bytes: self.call.outs[0] }
            }
            Meaning::PoolOfDevice(DevicePool::SetCurrent) => PoolCall::OfDevice {
                pool: PoolId(self.argument(1)),
                device: self.device_argument(0)?,
                current: true,
            },
            Meaning::PoolOfDevice(which) => PoolCall::OfDevice {
                pool: out,
                device: self.device_argument(1)?,
                current: which == DevicePool::GetCurrent,
            },
            _ => return None,
        })
    }

    fn graph(&self, meaning: Meaning) -> Option<GraphCall> {
        let first = self.argument(0);
        let graph = GraphId(self.argument(1));
        Some(match meaning {
            Meaning::CaptureBegin { graph } => GraphCall::CaptureBegan {
                stream: StreamId(first),
                graph: graph.map(|index| GraphId(self.argument(index))),
            },
            Meaning::CaptureEnd => {
                let graph = Some(GraphId(self.call.outs[0])).filter(|graph| graph.0 != 0);
                GraphCall::CaptureEnded { stream: StreamId(first), graph }
            }
            Meaning::GraphAllocNode => self.alloc_node(0)?,
            Meaning::GraphFreeNode => GraphCall::FreeNode { graph, address: self.argument(4) },
            Meaning::GraphNode { .. } => match self.half(0)? {
                NODE_ALLOC => self.alloc_node(NODE_UNION)?,
                NODE_FREE => GraphCall::FreeNode { graph, address: self.word(NODE_UNION)? },
                _ => return None,
            },
            Meaning::GraphInstantiate(flags) => GraphCall::Instantiated {
                exec: ExecId(self.call.outs[0]),
                graph,
                frees_before_launch: 1 & match flags {
                    InstantiateFlags::None => 0,
                    InstantiateFlags::Argument(index) => self.argument(index),
                    InstantiateFlags::Parameters => self.word(0)?,
                } == 1,
            },
            Meaning::GraphLaunch => GraphCall::Launched { exec: ExecId(first) },
            Meaning::GraphExecDestroy => GraphCall::ExecDestroyed { exec: ExecId(first) },
            Meaning::GraphCreate => GraphCall::GraphDestroyed { graph: GraphId(self.call.outs[0]) },
            Meaning::GraphDestroy => GraphCall::GraphDestroyed { graph: GraphId(first) },
            Meaning::GraphTrim => GraphCall::Trimmed { device: self.device_argument(0)? },
            Meaning::GraphGet if self.argument(1) as u32 == GRAPH_RESERVED as u32 => {
                let device = self.device_argument(0)?;
                GraphCall::ToldReserved { device, bytes: self.call.outs[0] }
            }
            _ => return None,
        })
    }

    /// Reads `CUDA_MEM_ALLOC_NODE_PARAMS`: pool properties first, size at 104, address at 112.
    fn alloc_node(&self, base: usize) -> Option<GraphCall> {
        Some(GraphCall::AllocNode {
            graph: GraphId(self.argument(1)),
            address: self.word(base + 112)?,
            bytes: self.word(base + 104)?,
            place: self.place(base + 8)?,
        })
    }
}
