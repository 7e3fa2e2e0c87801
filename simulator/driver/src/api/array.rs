//! Arrays and mip-mapped arrays.

use std::ffi::c_uint;

use crate::abi::{Code, Handle, InParam, OutParam, Outcome, plain};
use crate::entry::exports;
use crate::oracle::EndReason;
use crate::state::handle::Slab;
use crate::state::{self, DriverState};

exports! {
    alloc cuArrayCreate_v2(array: OutParam<Handle>, descriptor: InParam<ArrayDescriptor>) = create;
    alloc cuArray3DCreate_v2(array: OutParam<Handle>, descriptor: InParam<Array3dDescriptor>) = create_3d;
    free cuArrayDestroy(array: Handle) = destroy;
    call cuArrayGetDescriptor_v2(descriptor: OutParam<ArrayDescriptor>, array: Handle) = descriptor;
    call cuArray3DGetDescriptor_v2(descriptor: OutParam<Array3dDescriptor>, array: Handle) = descriptor_3d;
    alloc cuMipmappedArrayCreate(array: OutParam<Handle>, descriptor: InParam<Array3dDescriptor>,
        levels: c_uint) = create_mipmapped;
    call cuMipmappedArrayGetLevel(array: OutParam<Handle>, mipmapped: Handle, level: c_uint) =
        get_level;
    free cuMipmappedArrayDestroy(array: Handle) = destroy_mipmapped;
}

/// Flags of sparse arrays and of arrays whose memory is mapped later: they have no memory yet.
const WITHOUT_MEMORY: u32 = 0x40 | 0x80;

/// `CUDA_ARRAY_DESCRIPTOR`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ArrayDescriptor {
    width: usize,
    height: usize,
    format: u32,
    channels: u32,
}
plain!(ArrayDescriptor);

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Array3dDescriptor {
    width: usize,
    height: usize,
    depth: usize,
    format: u32,
    channels: u32,
    flags: u32,
    padding: u32,
}
plain!(Array3dDescriptor);

/// The size of an array: bytes per row, rows and slices.
pub(crate) struct ArrayExtent {
    pub(crate) row: u64,
    pub(crate) rows: u64,
    pub(crate) slices: u64,
}

impl Array3dDescriptor {
    fn extent(&self) -> Result<ArrayExtent, Code> {
        let element = match self.format {
            0x01 | 0x08 => 1_u64,
            0x02 | 0x09 | 0x10 => 2,
            0x03 | 0x0a | 0x20 => 4,
            _ => return Err(Code::InvalidValue),
        };
        if !matches!(self.channels, 1 | 2 | 4) || self.width == 0 {
            return Err(Code::InvalidValue);
        }
        let row = (self.width as u64).checked_mul(element * u64::from(self.channels));
        Ok(ArrayExtent {
            row: row.ok_or(Code::OutOfMemory)?,
            rows: self.height.max(1) as u64,
            slices: self.depth.max(1) as u64,
        })
    }

    /// Returns the memory size in bytes.
    fn bytes(&self) -> Result<u64, Code> {
        let ArrayExtent { row, rows, slices } = self.extent()?;
        row.checked_mul(rows).and_then(|n| n.checked_mul(slices)).ok_or(Code::OutOfMemory)
    }

    /// Returns the descriptor of a mip level: every dimension is halved `level` times.
    fn level(&self, level: u32) -> Self {
        let half = |n: usize| if n == 0 { 0 } else { n.checked_shr(level).unwrap_or(0).max(1) };
        Self {
            width: half(self.width),
            height: half(self.height),
            depth: half(self.depth),
            ..*self
        }
    }
}

/// An array, a mip-mapped array, or one of its levels.
#[derive(Clone, Debug)]
pub(crate) struct Array {
    pub(crate) bytes: u64,
    /// Owner in the oracle; none for levels.
    pub(crate) owner: Option<u32>,
    pub(crate) thread: u32,
    context: u32,
    descriptor: Array3dDescriptor,
    level_count: u32,
    levels: Vec<(u32, u32)>,
}

/// All arrays.
pub(crate) struct Arrays {
    pub(crate) plain: Slab<Array>,
    pub(crate) mipmapped: Slab<Array>,
}

impl Arrays {
    pub(crate) const fn new() -> Self {
        Self { plain: Slab::new(6), mipmapped: Slab::new(7) }
    }
}

impl DriverState {
    fn open_array(&mut self, descriptor: Array3dDescriptor, levels: u32) -> Result<Array, Code> {
        let context = self.current()?;
        self.cannot_be_captured()?;
        let mut bytes = 0_u64;
        for level in 0..levels.max(1) {
            let more = descriptor.level(level).bytes()?;
            bytes = bytes.checked_add(more).ok_or(Code::OutOfMemory)?;
        }
        if descriptor.flags & WITHOUT_MEMORY != 0 {
            bytes = 0;
        }
        let owner = Some(context.array_owner);
        self.opened(context.array_owner, bytes)?;
        Ok(Array {
            bytes,
            owner,
            thread: state::thread(),
            context: context.index,
            descriptor,
            level_count: levels,
            levels: Vec::new(),
        })
    }

    fn close_array(&mut self, array: &Array, end: EndReason) {
        if let Some(owner) = array.owner {
            self.closed(owner, array.bytes, end);
        }
        for (_, index) in &array.levels {
            self.arrays.plain.remove(*index);
        }
    }

    /// Frees the arrays of a context.
    pub(crate) fn release_arrays(&mut self, context: u32) {
        let of = |slab: &Slab<Array>| -> Vec<u32> {
            slab.iter().filter(|(_, array)| array.context == context).map(|(i, _)| i).collect()
        };
        for index in of(&self.arrays.mipmapped) {
            if let Some(array) = self.arrays.mipmapped.remove(index) {
                self.close_array(&array, EndReason::Released);
            }
        }
        for index in of(&self.arrays.plain) {
            if let Some(array) = self.arrays.plain.remove(index) {
                self.close_array(&array, EndReason::Released);
            }
        }
    }

    /// Returns the size of an array.
    pub(crate) fn array_extent(&self, array: Handle) -> Result<ArrayExtent, Code> {
        self.array(array)?.descriptor.extent()
    }

    fn array(&self, array: Handle) -> Result<&Array, Code> {
        let key = self.arrays.plain.find(array).ok_or(Code::InvalidHandle)?;
        self.arrays.plain.get(key.index).ok_or(Code::InvalidHandle)
    }
}

fn create(array: OutParam<Handle>, descriptor: InParam<ArrayDescriptor>) -> Outcome {
    let ArrayDescriptor { width, height, format, channels } = descriptor.get()?;
    let descriptor =
        Array3dDescriptor { width, height, depth: 0, format, channels, flags: 0, padding: 0 };
    create_from(array, descriptor)
}

fn create_3d(array: OutParam<Handle>, descriptor: InParam<Array3dDescriptor>) -> Outcome {
    create_from(array, descriptor.get()?)
}

fn create_from(array: OutParam<Handle>, descriptor: Array3dDescriptor) -> Outcome {
    array.check()?;
    let mut state = state::running()?;
    let new = state.open_array(descriptor, 1)?;
    let key = state.arrays.plain.insert(new);
    array.set(state.arrays.plain.handle(key.index))
}

fn destroy(array: Handle) -> Outcome {
    let mut state = state::running()?;
    let key = state.arrays.plain.find(array).ok_or(Code::InvalidHandle)?;
    let array = state.arrays.plain.remove(key.index).ok_or(Code::InvalidHandle)?;
    // A destroyed level has no memory of its own.
    let context = array.context;
    for index in state.mipmapped_of(context) {
        if let Some(parent) = state.arrays.mipmapped.get_mut(index) {
            parent.levels.retain(|(_, level)| *level != key.index);
        }
    }
    state.close_array(&array, EndReason::Freed);
    Ok(())
}

impl DriverState {
    fn mipmapped_of(&self, context: u32) -> Vec<u32> {
        let all = self.arrays.mipmapped.iter();
        all.filter(|(_, array)| array.context == context).map(|(index, _)| index).collect()
    }
}

fn descriptor(descriptor: OutParam<ArrayDescriptor>, array: Handle) -> Outcome {
    let state = state::running()?;
    let Array3dDescriptor { width, height, format, channels, .. } = state.array(array)?.descriptor;
    descriptor.set(ArrayDescriptor { width, height, format, channels })
}

fn descriptor_3d(descriptor: OutParam<Array3dDescriptor>, array: Handle) -> Outcome {
    let state = state::running()?;
    descriptor.set(state.array(array)?.descriptor)
}

fn create_mipmapped(
    array: OutParam<Handle>,
    descriptor: InParam<Array3dDescriptor>,
    levels: c_uint,
) -> Outcome {
    array.check()?;
    let descriptor = descriptor.get()?;
    let mut state = state::running()?;
    let largest = descriptor.width.max(descriptor.height).max(descriptor.depth);
    if levels == 0 || largest == 0 {
        return Err(Code::InvalidValue);
    }
    let new = state.open_array(descriptor, levels.min(1 + largest.ilog2()))?;
    let key = state.arrays.mipmapped.insert(new);
    array.set(state.arrays.mipmapped.handle(key.index))
}

fn get_level(array: OutParam<Handle>, mipmapped: Handle, level: c_uint) -> Outcome {
    array.check()?;
    let mut state = state::running()?;
    let key = state.arrays.mipmapped.find(mipmapped).ok_or(Code::InvalidHandle)?;
    let parent = state.arrays.mipmapped.get(key.index).ok_or(Code::InvalidHandle)?;
    if level >= parent.level_count {
        return Err(Code::InvalidValue);
    }
    if let Some((_, index)) = parent.levels.iter().find(|(known, _)| *known == level) {
        return array.set(state.arrays.plain.handle(*index));
    }
    let part = Array {
        bytes: 0,
        owner: None,
        thread: state::thread(),
        context: parent.context,
        descriptor: parent.descriptor.level(level),
        level_count: 1,
        levels: Vec::new(),
    };
    let new = state.arrays.plain.insert(part);
    if let Some(parent) = state.arrays.mipmapped.get_mut(key.index) {
        parent.levels.push((level, new.index));
    }
    array.set(state.arrays.plain.handle(new.index))
}

fn destroy_mipmapped(array: Handle) -> Outcome {
    let mut state = state::running()?;
    let key = state.arrays.mipmapped.find(array).ok_or(Code::InvalidHandle)?;
    let array = state.arrays.mipmapped.remove(key.index).ok_or(Code::InvalidHandle)?;
    state.close_array(&array, EndReason::Freed);
    Ok(())
}
