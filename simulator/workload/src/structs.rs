//! The driver's structures, as in `cuda.h`.

use std::ffi::c_int;

/// `CUmemAllocationProp`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct AllocationProp {
    pub(crate) allocation_type: c_int,
    pub(crate) handle_types: c_int,
    pub(crate) location_type: c_int,
    pub(crate) location_id: c_int,
    pub(crate) security: u64,
    pub(crate) flags: u64,
}

impl AllocationProp {
    /// Memory of a device, shareable by file descriptor or not.
    pub(crate) const fn device(device: c_int, shareable: bool) -> Self {
        Self {
            allocation_type: 1,
            handle_types: shareable as c_int,
            location_type: 1,
            location_id: device,
            security: 0,
            flags: 0,
        }
    }

    /// Memory of the host.
    pub(crate) const fn host() -> Self {
        let device = Self::device(0, false);
        Self { location_type: 2, ..device }
    }
}

/// `CUmemPoolProps`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct PoolProps {
    pub(crate) allocation_type: c_int,
    pub(crate) handle_types: c_int,
    pub(crate) location_type: c_int,
    pub(crate) location_id: c_int,
    pub(crate) security: u64,
    pub(crate) max_size: usize,
    pub(crate) reserved: [u64; 7],
}

impl PoolProps {
    /// A pool of device memory.
    pub(crate) fn device(device: c_int) -> Self {
        Self { allocation_type: 1, location_type: 1, location_id: device, ..Self::default() }
    }
}

/// `CUmemAccessDesc`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AccessDesc {
    pub(crate) location_type: c_int,
    pub(crate) location_id: c_int,
    pub(crate) flags: c_int,
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct AllocNode {
    pub(crate) pool: PoolProps,
    pub(crate) access: u64,
    pub(crate) access_count: usize,
    pub(crate) bytes: usize,
    pub(crate) pointer: u64,
}

/// `CUDA_ARRAY_DESCRIPTOR`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ArrayDescriptor {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) format: u32,
    pub(crate) channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Array3dDescriptor {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
    pub(crate) format: u32,
    pub(crate) channels: u32,
    pub(crate) flags: u32,
    pub(crate) padding: u32,
}

/// Elements of four bytes: `CU_AD_FORMAT_FLOAT`.
pub(crate) const FLOAT: u32 = 0x20;

/// `CUipcMemHandle`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IpcHandle {
    pub(crate) bytes: [u8; 64],
}

impl IpcHandle {
    /// Returns the handle in hexadecimal.
    pub(crate) fn to_text(self) -> String {
        self.bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads such a text.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let mut handle = Self { bytes: [0; 64] };
        for (byte, digits) in handle.bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(handle)
    }
}

/// `CUmulticastObjectProp`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MulticastProp {
    pub(crate) devices: u32,
    pub(crate) bytes: usize,
    pub(crate) handle_types: u64,
    pub(crate) flags: u64,
}

/// `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ExternalMemory {
    pub(crate) handle_type: u32,
    pub(crate) handle: [u64; 2],
    pub(crate) bytes: u64,
    pub(crate) flags: u32,
    pub(crate) reserved: [u32; 16],
}

/// `CUDA_EXTERNAL_MEMORY_BUFFER_DESC`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ExternalBuffer {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) flags: u32,
    pub(crate) reserved: [u32; 16],
}

/// `CUlaunchConfig`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) stream: u64,
    pub(crate) attributes: u64,
    pub(crate) attribute_count: u32,
}

/// `CUDA_LAUNCH_PARAMS`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct LaunchParams {
    pub(crate) function: u64,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) stream: u64,
    pub(crate) params: u64,
}

/// `CUmemcpy3DOperand` for a pointer: its type is 1.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct VolumeOperand {
    pub(crate) kind: u64,
    pub(crate) pointer: u64,
    pub(crate) row_length: usize,
    pub(crate) layer_height: usize,
    pub(crate) location: [u32; 2],
}

/// `CUDA_MEMCPY3D_BATCH_OP`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct VolumeCopy {
    pub(crate) from: VolumeOperand,
    pub(crate) to: VolumeOperand,
    pub(crate) extent: [usize; 3],
    /// In stream order (1), during the call (2), or any (3).
    pub(crate) order: u32,
    pub(crate) flags: u32,
}

/// `CUmemcpyAttributes`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct CopyAttributes {
    /// In stream order (1), during the call (2), or any (3).
    pub(crate) order: u32,
    pub(crate) locations: [u32; 4],
    pub(crate) flags: u32,
}

/// The memory of a side of a copy: `CUmemorytype`, and the pointer that it selects.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct CopyEndpoint {
    memory_type: u32,
    host: u64,
    device: u64,
    array: u64,
}

impl CopyEndpoint {
    /// Memory of the host.
    pub(crate) fn host(pointer: u64) -> Self {
        Self { memory_type: 1, host: pointer, ..Self::default() }
    }

    /// Memory of a device.
    pub(crate) fn device(pointer: u64) -> Self {
        Self { memory_type: 2, device: pointer, ..Self::default() }
    }

    /// An array.
    pub(crate) fn array(array: u64) -> Self {
        Self { memory_type: 3, array, ..Self::default() }
    }

    /// Memory whose type is determined by its pointer.
    pub(crate) fn unified(pointer: u64) -> Self {
        Self { memory_type: 4, device: pointer, ..Self::default() }
    }
}

/// A side in `CUDA_MEMCPY2D`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Side2d {
    pub(crate) x: u64,
    pub(crate) y: u64,
    pub(crate) endpoint: CopyEndpoint,
    pub(crate) pitch: usize,
}

/// `CUDA_MEMCPY2D`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Copy2d {
    pub(crate) from: Side2d,
    pub(crate) to: Side2d,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// A side in `CUDA_MEMCPY3D` and `CUDA_MEMCPY3D_PEER`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Side3d {
    pub(crate) x: u64,
    pub(crate) y: u64,
    pub(crate) z: u64,
    pub(crate) level: u64,
    pub(crate) endpoint: CopyEndpoint,
    /// Set for copies between contexts.
    pub(crate) context: u64,
    pub(crate) pitch: usize,
    pub(crate) height: usize,
}

/// `CUDA_MEMCPY3D` and `CUDA_MEMCPY3D_PEER`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Copy3d {
    pub(crate) from: Side3d,
    pub(crate) to: Side3d,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}
