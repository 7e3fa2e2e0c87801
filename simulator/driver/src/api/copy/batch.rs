//! Copies with attributes: single ones, and batches.

use crate::abi::{Code, Handle, InParam, OutParam, Outcome, plain};
use crate::api::copy::side::MemoryType;
use crate::api::copy::{CopyRequest, perform};
use crate::entry::{ActiveCall, exports};
use crate::oracle::activity::CopyDirection;
use crate::state;

exports! {
    activity cuMemcpyBatchAsync(to: InParam<u64>, from: InParam<u64>, sizes: InParam<usize>,
        count: usize, attributes: InParam<CopyAttributes>, indices: InParam<usize>,
        attribute_count: usize,
        failed: OutParam<usize>, stream: Handle) = batch_v1;
    activity cuMemcpyBatchAsync_ptsz(to: InParam<u64>, from: InParam<u64>, sizes: InParam<usize>,
        count: usize, attributes: InParam<CopyAttributes>, indices: InParam<usize>,
        attribute_count: usize,
        failed: OutParam<usize>, stream: Handle) = batch_v1;
    activity cuMemcpyBatchAsync_v2(to: InParam<u64>, from: InParam<u64>, sizes: InParam<usize>,
        count: usize, attributes: InParam<CopyAttributes>, indices: InParam<usize>,
        attribute_count: usize,
        stream: Handle) = batch;
    activity cuMemcpyBatchAsync_v2_ptsz(to: InParam<u64>, from: InParam<u64>, sizes: InParam<usize>,
        count: usize, attributes: InParam<CopyAttributes>, indices: InParam<usize>,
        attribute_count: usize,
        stream: Handle) = batch;
    activity cuMemcpy3DBatchAsync(count: usize, list: InParam<VolumeCopy>,
        failed: OutParam<usize>, flags: u64, stream: Handle) = volumes_v1;
    activity cuMemcpy3DBatchAsync_ptsz(count: usize, list: InParam<VolumeCopy>,
        failed: OutParam<usize>, flags: u64, stream: Handle) = volumes_v1;
    activity cuMemcpy3DBatchAsync_v2(count: usize, list: InParam<VolumeCopy>, flags: u64,
        stream: Handle) = volumes;
    activity cuMemcpy3DBatchAsync_v2_ptsz(count: usize, list: InParam<VolumeCopy>, flags: u64,
        stream: Handle) = volumes;
    activity cuMemcpyWithAttributesAsync(to: u64, from: u64, bytes: usize,
        attributes: InParam<CopyAttributes>, stream: Handle) = copy_with_attributes;
    activity cuMemcpyWithAttributesAsync_ptsz(to: u64, from: u64, bytes: usize,
        attributes: InParam<CopyAttributes>, stream: Handle) = copy_with_attributes;
}

/// `CUmemcpyAttributes`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CopyAttributes {
    /// In stream order (1), during the call (2), or any (3).
    order: u32,
    locations: [u32; 4],
    flags: u32,
}
plain!(CopyAttributes);

/// `CUmemcpy3DOperand`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct VolumeOperand {
    /// A pointer (1) or an array (2).
    kind: u64,
    pointer: u64,
    row_length: usize,
    layer_height: usize,
    location: [u32; 2],
}
plain!(VolumeOperand);

/// `CUDA_MEMCPY3D_BATCH_OP`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct VolumeCopy {
    from: VolumeOperand,
    to: VolumeOperand,
    extent: [usize; 3],
    order: u32,
    flags: u32,
}
plain!(VolumeCopy);

impl VolumeCopy {
    /// Returns the copy of a volume without gaps between its rows. Arrays are not simulated.
    fn request(&self, stream: Handle) -> Result<CopyRequest, Code> {
        if (self.from.kind as u32, self.to.kind as u32) != (1, 1) || !(1..=3).contains(&self.order)
        {
            return Err(Code::InvalidValue);
        }
        let (to, from) =
            (MemoryType::Unified(self.to.pointer), MemoryType::Unified(self.from.pointer));
        let bytes = self.extent.iter().fold(1_usize, |bytes, size| bytes.saturating_mul(*size));
        Ok(CopyRequest::plain(to, from, bytes, Some(stream)))
    }
}

/// Copies with attributes cannot use the legacy default stream.
fn stream_for_attributes(call: ActiveCall, stream: Handle) -> Result<Handle, Code> {
    let stream = call.stream(stream);
    if stream <= 1 { Err(Code::InvalidValue) } else { Ok(stream) }
}

fn check_attributes(attributes: CopyAttributes) -> Outcome {
    if (1..=3).contains(&attributes.order) { Ok(()) } else { Err(Code::InvalidValue) }
}

fn copy_with_attributes(
    call: ActiveCall,
    to: u64,
    from: u64,
    bytes: usize,
    attributes: InParam<CopyAttributes>,
    stream: Handle,
) -> Outcome {
    let (to, from) = (MemoryType::Unified(to), MemoryType::Unified(from));
    let request = CopyRequest::plain(to, from, bytes, Some(stream));
    let checked =
        stream_for_attributes(call, stream).and(attributes.get()).and_then(check_attributes);
    if let Err(code) = checked {
        let mut state = state::running()?;
        let direction = request.direction(&state);
        state.count_copy(call, direction, true, Err(code));
        return Err(code);
    }
    perform(call, &request)
}

/// The arrays of a batch.
struct CopyBatch {
    to: InParam<u64>,
    from: InParam<u64>,
    sizes: InParam<usize>,
    count: usize,
    attributes: InParam<CopyAttributes>,
    indices: InParam<usize>,
    attribute_count: usize,
}

impl CopyBatch {
    fn request(&self, index: usize, stream: Handle) -> Result<CopyRequest, Code> {
        let (to, from) = (self.to.at(index)?, self.from.at(index)?);
        let (to, from) = (MemoryType::Unified(to), MemoryType::Unified(from));
        Ok(CopyRequest::plain(to, from, self.sizes.at(index)?, Some(stream)))
    }

    /// Fails unless the first copies have attributes and the ranges are in order.
    fn check(&self) -> Outcome {
        if self.count == 0 || self.attribute_count == 0 || self.attribute_count > self.count {
            return Err(Code::InvalidValue);
        }
        let mut before = None;
        for i in 0..self.attribute_count {
            check_attributes(self.attributes.at(i)?)?;
            let index = self.indices.at(i)?;
            let in_order = before.map_or(index == 0, |before| index > before);
            if !in_order || index >= self.count {
                return Err(Code::InvalidValue);
            }
            before = Some(index);
        }
        Ok(())
    }

    fn perform(
        &self,
        call: ActiveCall,
        stream: Handle,
        failed: Option<OutParam<usize>>,
    ) -> Outcome {
        let request = |index| self.request(index, stream);
        perform_batch(call, stream, failed, (self.count, self.check()), request)
    }
}

/// Performs a batch of copies. Checks everything first: a batch is performed completely or not at
/// all.
fn perform_batch(
    call: ActiveCall,
    stream: Handle,
    failed: Option<OutParam<usize>>,
    (count, checked): (usize, Outcome),
    request: impl Fn(usize) -> Result<CopyRequest, Code>,
) -> Outcome {
    let set_failed = |index: usize| {
        if let Some(failed) = failed {
            failed.set_if_not_null(index);
        }
    };
    let mut state = state::running()?;
    // Each part counts as a separate copy.
    let mut parts: Vec<(CopyDirection, u64)> = Vec::new();
    let result = call.attempt(|| {
        set_failed(usize::MAX);
        checked?;
        let done = state.begin(call, Some(stream_for_attributes(call, stream)?))?;
        for index in 0..count {
            let request = request(index)?;
            let direction = request.direction(&state);
            request.check(&state).inspect_err(|_| set_failed(index))?;
            let [bytes, ..] = request.size;
            parts.push((direction, bytes));
        }
        Ok(done)
    });
    match result {
        Ok(done) => {
            for (direction, bytes) in parts {
                state.count_copy(call, direction, true, Ok((done, bytes)));
            }
            Ok(())
        }
        Err(code) => {
            let first = if count > 0 { request(0).ok() } else { None };
            let direction = first.map(|first| first.direction(&state));
            let direction = direction.unwrap_or(CopyDirection::DeviceToDevice);
            state.count_copy(call, direction, true, Err(code));
            Err(code)
        }
    }
}

fn perform_volumes(
    call: ActiveCall,
    count: usize,
    list: InParam<VolumeCopy>,
    failed: Option<OutParam<usize>>,
    stream: Handle,
) -> Outcome {
    let checked = if count == 0 { Err(Code::InvalidValue) } else { Ok(()) };
    let request = |index| list.at(index)?.request(stream);
    perform_batch(call, stream, failed, (count, checked), request)
}

fn volumes_v1(
    call: ActiveCall,
    count: usize,
    list: InParam<VolumeCopy>,
    failed: OutParam<usize>,
    _flags: u64,
    stream: Handle,
) -> Outcome {
    perform_volumes(call, count, list, Some(failed), stream)
}

fn volumes(
    call: ActiveCall,
    count: usize,
    list: InParam<VolumeCopy>,
    _flags: u64,
    stream: Handle,
) -> Outcome {
    perform_volumes(call, count, list, None, stream)
}

#[expect(clippy::too_many_arguments, reason = "the prototype is the driver's")]
fn batch(
    call: ActiveCall,
    to: InParam<u64>,
    from: InParam<u64>,
    sizes: InParam<usize>,
    count: usize,
    attributes: InParam<CopyAttributes>,
    indices: InParam<usize>,
    attribute_count: usize,
    stream: Handle,
) -> Outcome {
    let batch = CopyBatch { to, from, sizes, count, attributes, indices, attribute_count };
    batch.perform(call, stream, None)
}

#[expect(clippy::too_many_arguments, reason = "the prototype is the driver's")]
fn batch_v1(
    call: ActiveCall,
    to: InParam<u64>,
    from: InParam<u64>,
    sizes: InParam<usize>,
    count: usize,
    attributes: InParam<CopyAttributes>,
    indices: InParam<usize>,
    attribute_count: usize,
    failed: OutParam<usize>,
    stream: Handle,
) -> Outcome {
    let batch = CopyBatch { to, from, sizes, count, attributes, indices, attribute_count };
    batch.perform(call, stream, Some(failed))
}
