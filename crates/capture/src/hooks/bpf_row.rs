//! Converts a row of the hook table to the format of the probes.

use engine::model::activity::CopyDirection;

use super::{
    CallSemantics, CopyExtent, CopyRoute, CopySpec, DescriptorType, FlagsSource, Hook, LaunchForm,
    ObjectEffect, PointerSource, SizeSource,
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

impl DescriptorType {
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
    pub(crate) const fn to_wire(self, objects: bool) -> WireHook {
        let row = self.plain();
        match self.semantics.object() {
            Some(ObjectEffect::Creates(_)) if objects => {
                row.flag(wire::VS_OBJECT).flag(wire::VS_WITH_STACK)
            }
            Some(ObjectEffect::Destroys(_)) if objects => row.flag(wire::VS_OBJECT),
            _ => row,
        }
    }

    const fn plain(&self) -> WireHook {
        let plain = WireHook::PLAIN;
        let allocates = plain.class(wire::VS_CLASS_ALLOCATE);
        let frees = plain.class(wire::VS_CLASS_FREE);
        match self.semantics {
            CallSemantics::Allocate { pointer, size, .. } => allocation(pointer, size),
            CallSemantics::AllocateAsync { .. } => {
                allocates.out(0, 0, 8).size(1).flag(wire::VS_STREAM_ORDERED)
            }
            CallSemantics::Free { .. } | CallSemantics::VmmRelease | CallSemantics::VmmUnmap => {
                frees
            }
            CallSemantics::FreeAsync => frees.flag(wire::VS_STREAM_ORDERED),
            CallSemantics::VmmCreate => allocates.out(0, 0, 8).size(1).descriptor(2, 32),
            CallSemantics::VmmImport => allocates.out(0, 0, 8),
            CallSemantics::VmmMulticast | CallSemantics::VmmRetain => plain.out(0, 0, 8),
            CallSemantics::VmmReserve | CallSemantics::PoolImport => plain.out(0, 0, 8),
            CallSemantics::PoolCreate => plain.out(0, 0, 8).descriptor(1, 88),
            CallSemantics::PoolGet | CallSemantics::GraphGet => plain.out(0, 2, 8),
            CallSemantics::PoolOfDevice(super::PoolSource::SetCurrent) => plain,
            CallSemantics::PoolOfDevice(_) => plain.out(0, 0, 8),
            CallSemantics::CaptureBegin { .. } => plain.action(wire::VS_ACTION_CAPTURE_BEGIN),
            CallSemantics::CaptureEnd => plain.action(wire::VS_ACTION_CAPTURE_END).out(0, 1, 8),
            CallSemantics::GraphAllocNode => {
                plain.action(wire::VS_ACTION_GRAPH_NODE).descriptor(4, ALLOC_PARAMETERS)
            }
            CallSemantics::GraphNode { parameters } => {
                plain.action(wire::VS_ACTION_GRAPH_NODE).descriptor(parameters, NODE_PARAMETERS)
            }
            CallSemantics::GraphFreeNode => plain.action(wire::VS_ACTION_GRAPH_NODE),
            CallSemantics::GraphInstantiate(FlagsSource::Parameters) => {
                plain.out(0, 0, 8).descriptor(2, 8)
            }
            CallSemantics::GraphInstantiate(_) | CallSemantics::GraphCreate => plain.out(0, 0, 8),
            CallSemantics::GraphLaunch => plain.action(wire::VS_ACTION_GRAPH_LAUNCH),
            CallSemantics::ContextSet => plain.action(wire::VS_ACTION_CONTEXT_SET),
            CallSemantics::ContextPush => plain.action(wire::VS_ACTION_CONTEXT_PUSH),
            CallSemantics::ContextPop => plain.action(wire::VS_ACTION_CONTEXT_POP),
            CallSemantics::ContextGet => plain.action(wire::VS_ACTION_CONTEXT_GET).out(0, 0, 8),
            CallSemantics::ContextDevice { context } => {
                let row = plain.action(wire::VS_ACTION_CONTEXT_DEVICE).out(0, 0, 4);
                match context {
                    // Zero bytes: the probe uses the argument itself as the context.
                    Some(argument) => row.descriptor(argument, 0),
                    None => row,
                }
            }
            CallSemantics::ContextCreate { .. } => {
                plain.action(wire::VS_ACTION_CONTEXT_CREATE).out(0, 0, 8)
            }
            CallSemantics::ContextDestroy => {
                plain.action(wire::VS_ACTION_CONTEXT_DESTROY).flag(wire::VS_ENDS_CONTEXT)
            }
            CallSemantics::PrimaryRelease | CallSemantics::PrimaryReset => {
                plain.flag(wire::VS_ENDS_CONTEXT)
            }
            CallSemantics::StreamDestroy => plain.action(wire::VS_ACTION_STREAM_DESTROY),
            CallSemantics::PrimaryRetain => plain.out(0, 0, 8),
            CallSemantics::DeviceUuid => plain.descriptor(0, 16),
            CallSemantics::StreamCreate | CallSemantics::GreenStreamCreate => plain.out(0, 0, 8),
            CallSemantics::GreenCreate | CallSemantics::ContextFromGreen => plain.out(0, 0, 8),
            CallSemantics::KernelByName => plain.action(wire::VS_ACTION_NAME).out(0, 0, 8).size(2),
            CallSemantics::KernelName => plain.action(wire::VS_ACTION_GET_NAME).out(0, 0, 8),
            CallSemantics::KernelFunction => plain.out(0, 0, 8),
            CallSemantics::Launch(form) => launch(form),
            CallSemantics::Copy(copy) => self::copy(copy),
            CallSemantics::ObjectCreate { handle, .. } => {
                plain.class(wire::VS_CLASS_OBJECT).out(0, handle, 8)
            }
            CallSemantics::ObjectDestroy(_) => plain.class(wire::VS_CLASS_OBJECT),
            CallSemantics::Initialize
            | CallSemantics::VmmMap
            | CallSemantics::VmmUnreserve
            | CallSemantics::PoolDestroy
            | CallSemantics::PoolTrim
            | CallSemantics::GraphExecDestroy
            | CallSemantics::GraphDestroy
            | CallSemantics::GraphTrim
            | CallSemantics::GreenDestroy => plain,
        }
    }
}

const fn launch(form: LaunchForm) -> WireHook {
    let plain = WireHook::PLAIN;
    match form {
        LaunchForm::Shaped => plain.action(wire::VS_ACTION_LAUNCH),
        LaunchForm::Config => plain.action(wire::VS_ACTION_LAUNCH_CONFIG),
        LaunchForm::List => plain.action(wire::VS_ACTION_LAUNCH_LIST),
        LaunchForm::Unshaped { stream } => {
            let mut row = plain.action(wire::VS_ACTION_LAUNCH_UNSHAPED);
            if let Some(stream) = stream {
                row.stream_argument = stream;
            }
            row
        }
    }
}

const fn copy(copy: CopySpec) -> WireHook {
    let row = WireHook::PLAIN.class(wire::VS_CLASS_COPY).action(wire::VS_ACTION_COPY);
    let mut row = match copy.extent {
        CopyExtent::Elements { argument, element } => {
            let mut row = row.size(argument);
            row.element = element;
            row.stream_argument = argument + 1;
            row
        }
        CopyExtent::Area { element } => {
            let mut row = row.size(3);
            row.size_factor = 4;
            row.element = element;
            row.stream_argument = 5;
            row
        }
        CopyExtent::Flat | CopyExtent::Deep => {
            let mut row = row;
            row.stream_argument = 1;
            row
        }
        CopyExtent::Batch => row,
        CopyExtent::Volumes { stream } => {
            let mut row = row;
            row.stream_argument = stream;
            row
        }
    };
    row.measure = match copy.extent {
        CopyExtent::Elements { .. } | CopyExtent::Area { .. } => wire::VS_MEASURE_ARGUMENT,
        CopyExtent::Flat => wire::VS_MEASURE_2D,
        CopyExtent::Deep => wire::VS_MEASURE_3D,
        CopyExtent::Batch => wire::VS_MEASURE_BATCH,
        CopyExtent::Volumes { .. } => wire::VS_MEASURE_VOLUMES,
    } as u8;
    row.direction = match copy.route {
        CopyRoute::Fixed(direction) => direction_number(direction),
        CopyRoute::Described | CopyRoute::Pointers => wire::VS_UNIFIED as u8,
    };
    row.asynchronous = copy.asynchronous as u8;
    row
}

const fn direction_number(direction: CopyDirection) -> u8 {
    (match direction {
        CopyDirection::HostToDevice => wire::VS_H2D,
        CopyDirection::DeviceToHost => wire::VS_D2H,
        CopyDirection::DeviceToDevice => wire::VS_D2D,
        CopyDirection::HostToHost => wire::VS_H2H,
        CopyDirection::Peer => wire::VS_PEER,
        CopyDirection::Array => wire::VS_ARRAY,
        CopyDirection::Memset => wire::VS_MEMSET,
        CopyDirection::Unknown => wire::VS_UNIFIED,
    }) as u8
}

/// Returns the direction of a number; the inverse of `direction_number`.
pub(crate) const fn direction(number: u8) -> CopyDirection {
    match number as u32 {
        wire::VS_H2D => CopyDirection::HostToDevice,
        wire::VS_D2H => CopyDirection::DeviceToHost,
        wire::VS_D2D => CopyDirection::DeviceToDevice,
        wire::VS_H2H => CopyDirection::HostToHost,
        wire::VS_PEER => CopyDirection::Peer,
        wire::VS_ARRAY => CopyDirection::Array,
        wire::VS_MEMSET => CopyDirection::Memset,
        _ => CopyDirection::Unknown,
    }
}

const fn allocation(pointer: PointerSource, size: SizeSource) -> WireHook {
    let row = WireHook::PLAIN.class(wire::VS_CLASS_ALLOCATE);
    let row = match pointer {
        PointerSource::Out => row.out(0, 0, 8),
        PointerSource::NarrowOut => row.out(0, 0, 4),
        PointerSource::Argument => row,
    };
    match size {
        SizeSource::Argument(index) | SizeSource::Narrow(index) => row.size(index),
        SizeSource::Pitch { width, height } => {
            let mut row = row.out(1, 1, 8).size(width);
            row.size_factor = height;
            row.measure = wire::VS_MEASURE_PITCH as u8;
            row
        }
        SizeSource::Descriptor(descriptor) => {
            let mut row = row.descriptor(descriptor.argument(), descriptor.bytes());
            row.measure = match descriptor {
                DescriptorType::Array => wire::VS_MEASURE_ARRAY,
                DescriptorType::Array3d => wire::VS_MEASURE_ARRAY3D,
                DescriptorType::Mipmapped => wire::VS_MEASURE_MIPMAPPED,
                DescriptorType::ExternalBuffer => wire::VS_MEASURE_ARGUMENT,
            } as u8;
            if matches!(descriptor, DescriptorType::Mipmapped) {
                row.size_factor = 2;
            }
            row
        }
        SizeSource::Unknown => row,
    }
}
