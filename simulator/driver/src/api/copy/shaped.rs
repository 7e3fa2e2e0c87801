//! Copies of rectangles and boxes, and from and to arrays.

use crate::abi::{Code, DevicePointer, Handle, InParam, Outcome, plain};
use crate::api::copy::side::{CopySide, MemoryType};
use crate::api::copy::{CopyRequest, perform};
use crate::entry::{ActiveCall, exports};
use crate::oracle::activity::CopyDirection;
use crate::state;

exports! {
    activity cuMemcpy2D_v2(copy: InParam<Copy2d>) = rectangle;
    activity cuMemcpy2D_v2_ptds(copy: InParam<Copy2d>) = rectangle;
    activity cuMemcpy2DUnaligned_v2(copy: InParam<Copy2d>) = rectangle;
    activity cuMemcpy2DUnaligned_v2_ptds(copy: InParam<Copy2d>) = rectangle;
    activity cuMemcpy2DAsync_v2(copy: InParam<Copy2d>, stream: Handle) = rectangle_async;
    activity cuMemcpy2DAsync_v2_ptsz(copy: InParam<Copy2d>, stream: Handle) = rectangle_async;
    activity cuMemcpy3D_v2(copy: InParam<Copy3d>) = cuboid;
    activity cuMemcpy3D_v2_ptds(copy: InParam<Copy3d>) = cuboid;
    activity cuMemcpy3DAsync_v2(copy: InParam<Copy3d>, stream: Handle) = cuboid_async;
    activity cuMemcpy3DAsync_v2_ptsz(copy: InParam<Copy3d>, stream: Handle) = cuboid_async;
    activity cuMemcpy3DPeer(copy: InParam<Copy3d>) = peer_cuboid;
    activity cuMemcpy3DPeer_ptds(copy: InParam<Copy3d>) = peer_cuboid;
    activity cuMemcpy3DPeerAsync(copy: InParam<Copy3d>, stream: Handle) = peer_cuboid_async;
    activity cuMemcpy3DPeerAsync_ptsz(copy: InParam<Copy3d>, stream: Handle) = peer_cuboid_async;
    activity cuMemcpyDtoA_v2(to: Handle, offset: usize, from: DevicePointer, bytes: usize) =
        device_to_array;
    activity cuMemcpyDtoA_v2_ptds(to: Handle, offset: usize, from: DevicePointer, bytes: usize) =
        device_to_array;
    activity cuMemcpyAtoD_v2(to: DevicePointer, from: Handle, offset: usize, bytes: usize) =
        array_to_device;
    activity cuMemcpyAtoD_v2_ptds(to: DevicePointer, from: Handle, offset: usize, bytes: usize) =
        array_to_device;
    activity cuMemcpyHtoA_v2(to: Handle, offset: usize, from: u64, bytes: usize) = host_to_array;
    activity cuMemcpyHtoA_v2_ptds(to: Handle, offset: usize, from: u64, bytes: usize) =
        host_to_array;
    activity cuMemcpyHtoAAsync_v2(to: Handle, offset: usize, from: u64, bytes: usize,
        stream: Handle) = host_to_array_async;
    activity cuMemcpyHtoAAsync_v2_ptsz(to: Handle, offset: usize, from: u64, bytes: usize,
        stream: Handle) = host_to_array_async;
    activity cuMemcpyAtoH_v2(to: u64, from: Handle, offset: usize, bytes: usize) = array_to_host;
    activity cuMemcpyAtoH_v2_ptds(to: u64, from: Handle, offset: usize, bytes: usize) =
        array_to_host;
    activity cuMemcpyAtoHAsync_v2(to: u64, from: Handle, offset: usize, bytes: usize,
        stream: Handle) = array_to_host_async;
    activity cuMemcpyAtoHAsync_v2_ptsz(to: u64, from: Handle, offset: usize, bytes: usize,
        stream: Handle) = array_to_host_async;
    activity cuMemcpyAtoA_v2(to: Handle, to_offset: usize, from: Handle, from_offset: usize,
        bytes: usize) = array_to_array;
    activity cuMemcpyAtoA_v2_ptds(to: Handle, to_offset: usize, from: Handle, from_offset: usize,
        bytes: usize) = array_to_array;
}

/// The pointers of a side; the memory type selects one of them.
#[derive(Clone, Copy)]
#[repr(C)]
struct CopyEndpoint {
    kind: u32,
    host: u64,
    device: DevicePointer,
    array: Handle,
}

impl CopyEndpoint {
    fn memory(&self) -> Result<MemoryType, Code> {
        match self.kind {
            1 => Ok(MemoryType::Host(self.host)),
            2 => Ok(MemoryType::Device(self.device)),
            3 => Ok(MemoryType::Array(self.array)),
            4 => Ok(MemoryType::Unified(self.device)),
            _ => Err(Code::InvalidValue),
        }
    }
}

/// A side in `CUDA_MEMCPY2D`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Side2d {
    x: u64,
    y: u64,
    end: CopyEndpoint,
    pitch: u64,
}

/// `CUDA_MEMCPY2D`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Copy2d {
    from: Side2d,
    to: Side2d,
    width: u64,
    height: u64,
}
plain!(Copy2d);

/// A side in `CUDA_MEMCPY3D` and `CUDA_MEMCPY3D_PEER`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Side3d {
    x: u64,
    y: u64,
    z: u64,
    level: u64,
    end: CopyEndpoint,
    /// Set for copies between contexts; reserved otherwise.
    context: Handle,
    pitch: u64,
    height: u64,
}

/// `CUDA_MEMCPY3D` and `CUDA_MEMCPY3D_PEER`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Copy3d {
    from: Side3d,
    to: Side3d,
    width: u64,
    height: u64,
    depth: u64,
}
plain!(Copy3d);

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(offset_of!(Copy2d, from.end.kind) == 16 && offset_of!(Copy2d, to.end.kind) == 72);
    assert!(offset_of!(Copy2d, width) == 112 && size_of::<Copy2d>() == 128);
    assert!(offset_of!(Copy3d, from.end.kind) == 32 && offset_of!(Copy3d, to.end.kind) == 120);
    assert!(offset_of!(Copy3d, width) == 176 && size_of::<Copy3d>() == 200);
};

impl Side2d {
    fn side(&self) -> Result<CopySide, Code> {
        let memory = self.end.memory()?;
        Ok(CopySide { memory, origin: [self.x, self.y, 0], pitch: self.pitch, height: 0 })
    }
}

impl Side3d {
    fn side(&self) -> Result<CopySide, Code> {
        // Levels of mip-mapped arrays have their own handles.
        if self.level != 0 {
            return Err(Code::InvalidValue);
        }
        let memory = self.end.memory()?;
        let origin = [self.x, self.y, self.z];
        Ok(CopySide { memory, origin, pitch: self.pitch, height: self.height })
    }
}

/// Performs a copy whose parameters may be invalid.
fn described(
    call: ActiveCall,
    request: Result<CopyRequest, Code>,
    asynchronous: bool,
    peer: bool,
) -> Outcome {
    match request {
        Ok(request) => perform(call, &request),
        Err(code) => {
            let direction = if peer { CopyDirection::Peer } else { CopyDirection::DeviceToDevice };
            state::running()?.count_copy(call, direction, asynchronous, Err(code));
            Err(code)
        }
    }
}

impl Copy2d {
    fn request(&self, stream: Option<Handle>) -> Result<CopyRequest, Code> {
        let (to, from) = (self.to.side()?, self.from.side()?);
        Ok(CopyRequest { to, from, size: [self.width, self.height, 1], peers: None, stream })
    }
}

impl Copy3d {
    fn request(&self, stream: Option<Handle>, peer: bool) -> Result<CopyRequest, Code> {
        let (to, from) = (self.to.side()?, self.from.side()?);
        let size = [self.width, self.height, self.depth];
        let peers = peer.then_some([self.to.context, self.from.context]);
        Ok(CopyRequest { to, from, size, peers, stream })
    }
}

fn rectangle(call: ActiveCall, copy: InParam<Copy2d>) -> Outcome {
    described(call, copy.get().and_then(|copy| copy.request(None)), false, false)
}

fn rectangle_async(call: ActiveCall, copy: InParam<Copy2d>, stream: Handle) -> Outcome {
    described(call, copy.get().and_then(|copy| copy.request(Some(stream))), true, false)
}

fn cuboid(call: ActiveCall, copy: InParam<Copy3d>) -> Outcome {
    described(call, copy.get().and_then(|copy| copy.request(None, false)), false, false)
}

fn cuboid_async(call: ActiveCall, copy: InParam<Copy3d>, stream: Handle) -> Outcome {
    described(call, copy.get().and_then(|copy| copy.request(Some(stream), false)), true, false)
}

fn peer_cuboid(call: ActiveCall, copy: InParam<Copy3d>) -> Outcome {
    described(call, copy.get().and_then(|copy| copy.request(None, true)), false, true)
}

fn peer_cuboid_async(call: ActiveCall, copy: InParam<Copy3d>, stream: Handle) -> Outcome {
    described(call, copy.get().and_then(|copy| copy.request(Some(stream), true)), true, true)
}

/// Returns an array as a single row, starting at a byte offset.
fn flat(array: Handle, offset: usize) -> CopySide {
    CopySide { origin: [offset as u64, 0, 0], ..CopySide::plain(MemoryType::FlatArray(array)) }
}

fn row(
    call: ActiveCall,
    to: CopySide,
    from: CopySide,
    bytes: usize,
    stream: Option<Handle>,
) -> Outcome {
    let request = CopyRequest { to, from, size: [bytes as u64, 1, 1], peers: None, stream };
    perform(call, &request)
}

fn device_to_array(
    call: ActiveCall,
    to: Handle,
    offset: usize,
    from: DevicePointer,
    bytes: usize,
) -> Outcome {
    row(call, flat(to, offset), CopySide::plain(MemoryType::Device(from)), bytes, None)
}

fn array_to_device(
    call: ActiveCall,
    to: DevicePointer,
    from: Handle,
    offset: usize,
    bytes: usize,
) -> Outcome {
    row(call, CopySide::plain(MemoryType::Device(to)), flat(from, offset), bytes, None)
}

fn host_to_array(call: ActiveCall, to: Handle, offset: usize, from: u64, bytes: usize) -> Outcome {
    row(call, flat(to, offset), CopySide::plain(MemoryType::Host(from)), bytes, None)
}

fn host_to_array_async(
    call: ActiveCall,
    to: Handle,
    offset: usize,
    from: u64,
    bytes: usize,
    stream: Handle,
) -> Outcome {
    row(call, flat(to, offset), CopySide::plain(MemoryType::Host(from)), bytes, Some(stream))
}

fn array_to_host(call: ActiveCall, to: u64, from: Handle, offset: usize, bytes: usize) -> Outcome {
    row(call, CopySide::plain(MemoryType::Host(to)), flat(from, offset), bytes, None)
}

fn array_to_host_async(
    call: ActiveCall,
    to: u64,
    from: Handle,
    offset: usize,
    bytes: usize,
    stream: Handle,
) -> Outcome {
    row(call, CopySide::plain(MemoryType::Host(to)), flat(from, offset), bytes, Some(stream))
}

fn array_to_array(
    call: ActiveCall,
    to: Handle,
    to_offset: usize,
    from: Handle,
    from_offset: usize,
    bytes: usize,
) -> Outcome {
    row(call, flat(to, to_offset), flat(from, from_offset), bytes, None)
}
