//! Converts a row of the hook table to the format of the probes.

use engine::work::Direction;

use super::{
    Copy, Descriptor, Extent, Hook, InstantiateFlags, Meaning, ObjectUse, Pointer, Route, Size,
};
use crate::wire::{self, WireHook};

const NONE: u8 = wire::VS_NONE as u8;

impl WireHook {
    const PLAIN: Self = Self {
        action: wire::VS_ACTION_RECORD as u8,
        loss_class: wire::VS_CLASS_OTHER as u8,
        size_argument: NONE,
        size_factor: NONE,
        out_argument: [NONE, NONE],
        out_bytes: [8, 8],
        descriptor_argument: NONE,
        descriptor_bytes: 0,
        flags: 0,
        measure: 0,
        direction: 0,
        asynchronous: 0,
        element: 1,
        stream_argument: NONE,
    };

    const fn class(mut self, class: u32) -> Self {
        self.loss_class = class as u8;
        self
    }

    const fn action(mut self, action: u32) -> Self {
        self.action = action as u8;
        self
    }

    const fn out(mut self, which: usize, argument: u8, bytes: u8) -> Self {
        self.out_argument[which] = argument;
        self.out_bytes[which] = bytes;
        self
    }

    const fn size(mut self, argument: u8) -> Self {
        self.size_argument = argument;
        self
    }

    const fn descriptor(mut self, argument: u8, bytes: u8) -> Self {
        self.descriptor_argument = argument;
        self.descriptor_bytes = bytes;
        self
    }

    const fn flag(mut self, flag: u32) -> Self {
        self.flags |= flag as u8;
        self
    }
}

impl Descriptor {
    /// Returns the bytes of the structure that are read.
    pub(crate) const fn bytes(self) -> u8 {
        match self {
            Self::Array => 24,
            Self::Array3d | Self::Mipmapped => 40,
            Self::ExternalBuffer => 16,
        }
    }

    /// Returns the argument that points to it.
    pub(crate) const fn argument(self) -> u8 {
        match self {
            Self::Array | Self::Array3d | Self::Mipmapped => 1,
            Self::ExternalBuffer => 2,
        }
    }
}

/// Bytes of `CUgraphNodeParams` up to the address of an allocation node.
pub(crate) const NODE_PARAMETERS: u8 = 136;

/// Bytes of `CUDA_MEM_ALLOC_NODE_PARAMS`.
pub(crate) const ALLOC_PARAMETERS: u8 = 120;

impl Hook {
    /// Converts the row. `objects`: objects are tracked.
    pub(crate) const fn wire(&self, objects: bool) -> WireHook {
        let row = self.plain();
        match self.meaning.object() {
            Some(ObjectUse::Creates(_)) if objects => {
                row.flag(wire::VS_OBJECT).flag(wire::VS_WITH_STACK)
            }
            Some(ObjectUse::Destroys(_)) if objects => row.flag(wire::VS_OBJECT),
            _ => row,
        }
    }

    const fn plain(&self) -> WireHook {
        let plain = WireHook::PLAIN;
        let allocates = plain.class(wire::VS_CLASS_ALLOCATE);
        let frees = plain.class(wire::VS_CLASS_FREE);
        match self.meaning {
            Meaning::Allocate { pointer, size, .. } => allocation(pointer, size),
            Meaning::AllocateAsync { .. } => {
                allocates.out(0, 0, 8).size(1).flag(wire::VS_STREAM_ORDERED)
            }
            Meaning::Free { .. } | Meaning::VmmRelease | Meaning::VmmUnmap => frees,
            Meaning::FreeAsync => frees.flag(wire::VS_STREAM_ORDERED),
            Meaning::VmmCreate => allocates.out(0, 0, 8).size(1).descriptor(2, 32),
            Meaning::VmmImport => allocates.out(0, 0, 8),
            Meaning::VmmMulticast | Meaning::VmmRetain => plain.out(0, 0, 8),
            Meaning::VmmReserve | Meaning::PoolImport => plain.out(0, 0, 8),
            Meaning::PoolCreate => plain.out(0, 0, 8).descriptor(1, 88),
            Meaning::PoolGet | Meaning::GraphGet => plain.out(0, 2, 8),
            Meaning::PoolOfDevice(super::DevicePool::SetCurrent) => plain,
            Meaning::PoolOfDevice(_) => plain.out(0, 0, 8),
            Meaning::CaptureBegin { .. } => plain.action(wire::VS_ACTION_CAPTURE_BEGIN),
            Meaning::CaptureEnd => plain.action(wire::VS_ACTION_CAPTURE_END).out(0, 1, 8),
            Meaning::GraphAllocNode => {
                plain.action(wire::VS_ACTION_GRAPH_NODE).descriptor(4, ALLOC_PARAMETERS)
            }
            Meaning::GraphNode { parameters } => {
                plain.action(wire::VS_ACTION_GRAPH_NODE).descriptor(parameters, NODE_PARAMETERS)
            }
            Meaning::GraphFreeNode => plain.action(wire::VS_ACTION_GRAPH_NODE),
            Meaning::GraphInstantiate(InstantiateFlags::Parameters) => {
                plain.out(0, 0, 8).descriptor(2, 8)
            }
            Meaning::GraphInstantiate(_) | Meaning::GraphCreate => plain.out(0, 0, 8),
            Meaning::GraphLaunch => plain.action(wire::VS_ACTION_GRAPH_LAUNCH),
            Meaning::ContextSet => plain.action(wire::VS_ACTION_CONTEXT_SET),
            Meaning::ContextPush => plain.action(wire::VS_ACTION_CONTEXT_PUSH),
            Meaning::ContextPop => plain.action(wire::VS_ACTION_CONTEXT_POP),
            Meaning::ContextGet => plain.action(wire::VS_ACTION_CONTEXT_GET).out(0, 0, 8),
            Meaning::ContextDevice { context } => {
                let row = plain.action(wire::VS_ACTION_CONTEXT_DEVICE).out(0, 0, 4);
                match context {
                    // Zero bytes: the probe uses the argument itself as the context.
                    Some(argument) => row.descriptor(argument, 0),
                    None => row,
                }
            }
            Meaning::ContextCreate { .. } => {
                plain.action(wire::VS_ACTION_CONTEXT_CREATE).out(0, 0, 8)
            }
            Meaning::ContextDestroy => {
                plain.action(wire::VS_ACTION_CONTEXT_DESTROY).flag(wire::VS_ENDS_CONTEXT)
            }
            Meaning::PrimaryRelease | Meaning::PrimaryReset => plain.flag(wire::VS_ENDS_CONTEXT),
            Meaning::StreamDestroy => plain.action(wire::VS_ACTION_STREAM_DESTROY),
            Meaning::PrimaryRetain => plain.out(0, 0, 8),
            Meaning::DeviceUuid => plain.descriptor(0, 16),
            Meaning::StreamCreate | Meaning::GreenStreamCreate => plain.out(0, 0, 8),
            Meaning::GreenCreate | Meaning::ContextFromGreen => plain.out(0, 0, 8),
            Meaning::KernelByName => plain.action(wire::VS_ACTION_NAME).out(0, 0, 8).size(2),
            Meaning::KernelName => plain.action(wire::VS_ACTION_GET_NAME).out(0, 0, 8),
            Meaning::KernelFunction => plain.out(0, 0, 8),
            Meaning::Launch { config: false } => plain.action(wire::VS_ACTION_LAUNCH),
            Meaning::Launch { config: true } => plain.action(wire::VS_ACTION_LAUNCH_CONFIG),
            Meaning::Copy(copy) => self::copy(copy),
            Meaning::ObjectCreate { handle, .. } => {
                plain.class(wire::VS_CLASS_OBJECT).out(0, handle, 8)
            }
            Meaning::ObjectDestroy(_) => plain.class(wire::VS_CLASS_OBJECT),
            Meaning::Initialize
            | Meaning::VmmMap
            | Meaning::VmmUnreserve
            | Meaning::PoolDestroy
            | Meaning::PoolTrim
            | Meaning::GraphExecDestroy
            | Meaning::GraphDestroy
            | Meaning::GraphTrim
            | Meaning::GreenDestroy => plain,
        }
    }
}

const fn copy(copy: Copy) -> WireHook {
    let row = WireHook::PLAIN.class(wire::VS_CLASS_COPY).action(wire::VS_ACTION_COPY);
    let mut row = match copy.extent {
        Extent::Elements { argument, element } => {
            let mut row = row.size(argument);
            row.element = element;
            row.stream_argument = argument + 1;
            row
        }
        Extent::Area { element } => {
            let mut row = row.size(3);
            row.size_factor = 4;
            row.element = element;
            row.stream_argument = 5;
            row
        }
        Extent::Flat | Extent::Deep => {
            let mut row = row;
            row.stream_argument = 1;
            row
        }
        Extent::Batch => row,
    };
    row.measure = match copy.extent {
        Extent::Elements { .. } | Extent::Area { .. } => wire::VS_MEASURE_ARGUMENT,
        Extent::Flat => wire::VS_MEASURE_2D,
        Extent::Deep => wire::VS_MEASURE_3D,
        Extent::Batch => wire::VS_MEASURE_BATCH,
    } as u8;
    row.direction = match copy.route {
        Route::Fixed(direction) => direction_number(direction),
        Route::Described | Route::Pointers => wire::VS_UNIFIED as u8,
    };
    row.asynchronous = copy.asynchronous as u8;
    row
}

const fn direction_number(direction: Direction) -> u8 {
    (match direction {
        Direction::HostToDevice => wire::VS_H2D,
        Direction::DeviceToHost => wire::VS_D2H,
        Direction::DeviceToDevice => wire::VS_D2D,
        Direction::HostToHost => wire::VS_H2H,
        Direction::Peer => wire::VS_PEER,
        Direction::Array => wire::VS_ARRAY,
        Direction::Fill => wire::VS_MEMSET,
        Direction::Unknown => wire::VS_UNIFIED,
    }) as u8
}

/// Returns the direction of a number; the inverse of `direction_number`.
pub(crate) const fn direction(number: u8) -> Direction {
    match number as u32 {
        wire::VS_H2D => Direction::HostToDevice,
        wire::VS_D2H => Direction::DeviceToHost,
        wire::VS_D2D => Direction::DeviceToDevice,
        wire::VS_H2H => Direction::HostToHost,
        wire::VS_PEER => Direction::Peer,
        wire::VS_ARRAY => Direction::Array,
        wire::VS_MEMSET => Direction::Fill,
        _ => Direction::Unknown,
    }
}

const fn allocation(pointer: Pointer, size: Size) -> WireHook {
    let row = WireHook::PLAIN.class(wire::VS_CLASS_ALLOCATE);
    let row = match pointer {
        Pointer::Out => row.out(0, 0, 8),
        Pointer::NarrowOut => row.out(0, 0, 4),
        Pointer::Argument => row,
    };
    match size {
        Size::Argument(index) | Size::Narrow(index) => row.size(index),
        Size::Pitch { width, height } => {
            let mut row = row.out(1, 1, 8).size(width);
            row.size_factor = height;
            row.measure = wire::VS_MEASURE_PITCH as u8;
            row
        }
        Size::Descriptor(descriptor) => {
            let mut row = row.descriptor(descriptor.argument(), descriptor.bytes());
            row.measure = match descriptor {
                Descriptor::Array => wire::VS_MEASURE_ARRAY,
                Descriptor::Array3d => wire::VS_MEASURE_ARRAY3D,
                Descriptor::Mipmapped => wire::VS_MEASURE_MIPMAPPED,
                Descriptor::ExternalBuffer => wire::VS_MEASURE_ARGUMENT,
            } as u8;
            if matches!(descriptor, Descriptor::Mipmapped) {
                row.size_factor = 2;
            }
            row
        }
        Size::Unknown => row,
    }
}
