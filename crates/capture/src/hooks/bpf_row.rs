//! Converts a row of the hook table to the format of the probes.

use engine::model::activity::CopyDirection;

use super::{
    CopyExtent, CopyRoute, CopySpec, DescriptorType, Hook, LaunchForm, ObjectEffect, PointerSource,
    ShareHandle, SizeSource,
};
use crate::wire::{self, WireHook};

const NONE: u8 = wire::VS_NONE as u8;

impl WireHook {
    pub(super) const PLAIN: Self = Self {
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

    pub(super) const fn class(mut self, class: u32) -> Self {
        self.loss_class = class as u8;
        self
    }

    pub(super) const fn action(mut self, action: u32) -> Self {
        self.action = action as u8;
        self
    }

    pub(super) const fn out(mut self, which: usize, argument: u8, bytes: u8) -> Self {
        self.out_argument[which] = argument;
        self.out_bytes[which] = bytes;
        self
    }

    pub(super) const fn size(mut self, argument: u8) -> Self {
        self.size_argument = argument;
        self
    }

    pub(super) const fn descriptor(mut self, argument: u8, bytes: u8) -> Self {
        self.descriptor_argument = argument;
        self.descriptor_bytes = bytes;
        self
    }

    pub(super) const fn flag(mut self, flag: u32) -> Self {
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
        let meaning = self.semantics.meaning();
        match meaning.object {
            Some(ObjectEffect::Creates(_)) if objects => {
                meaning.row.flag(wire::VS_OBJECT).flag(wire::VS_WITH_STACK)
            }
            Some(ObjectEffect::Destroys(_)) if objects => meaning.row.flag(wire::VS_OBJECT),
            _ => meaning.row,
        }
    }
}

pub(super) const fn launch(form: LaunchForm) -> WireHook {
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

pub(super) const fn copy(copy: CopySpec) -> WireHook {
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

/// Bytes of `CUipcMemHandle`, `CUmemPoolPtrExportData` and `CUmemFabricHandle`.
pub(crate) const SHARE_BYTES: u8 = 64;

/// Reads the handle of a call that exports memory.
pub(super) const fn export(handle: ShareHandle) -> WireHook {
    let row = WireHook::PLAIN.descriptor(0, SHARE_BYTES);
    match handle {
        ShareHandle::Ipc | ShareHandle::PoolPointer => row,
        ShareHandle::Shareable => {
            row.out(0, 0, 4).flag(wire::VS_DATA | wire::VS_FILE | wire::VS_FILE_OUT)
        }
    }
}

/// Reads the handle of a call that imports memory.
pub(super) const fn import(row: WireHook, handle: ShareHandle) -> WireHook {
    match handle {
        ShareHandle::Ipc => row.descriptor(1, SHARE_BYTES).flag(wire::VS_BY_VALUE),
        ShareHandle::PoolPointer => row.descriptor(2, SHARE_BYTES),
        ShareHandle::Shareable => {
            row.descriptor(1, SHARE_BYTES).flag(wire::VS_DATA | wire::VS_FILE)
        }
    }
}

pub(super) const fn allocation(pointer: PointerSource, size: SizeSource) -> WireHook {
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
        SizeSource::Exporter(handle) => import(row, handle),
    }
}
