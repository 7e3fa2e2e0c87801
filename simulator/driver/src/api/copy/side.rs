//! The two sides of a copy: memory and start, and whether the copy fits.

use crate::abi::{Code, Handle, Outcome};
use crate::api::array::ArrayExtent;
use crate::oracle::MemoryKind;
use crate::oracle::activity::CopyDirection;
use crate::state::DriverState;

/// The size of a copy: bytes of a row, rows, and slices. Linear copies are one row.
pub(crate) type CopySize = [u64; 3];

/// The memory type of a side of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemoryType {
    Host(u64),
    Device(u64),
    /// Determined by the pointer.
    Unified(u64),
    Array(Handle),
    /// An array used as one row.
    FlatArray(Handle),
}

/// A side of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopySide {
    pub(crate) memory: MemoryType,
    /// Start of the copy: byte of the row, row, slice.
    pub(crate) origin: [u64; 3],
    /// Distance of rows in bytes, if the memory is not an array.
    pub(crate) pitch: u64,
    /// Distance of slices in rows.
    pub(crate) height: u64,
}

impl CopySide {
    /// Returns the side of a linear copy.
    pub(crate) const fn plain(memory: MemoryType) -> Self {
        Self { memory, origin: [0; 3], pitch: 0, height: 0 }
    }

    /// Returns the byte offset of the copy from the pointer, and the bytes that it spans.
    fn span(&self, size: CopySize) -> Option<(u64, u64)> {
        let [width, rows, slices] = size;
        let [x, y, z] = self.origin;
        let slice = self.pitch.checked_mul(self.height)?;
        if (rows > 1 || slices > 1 || y > 0) && self.pitch < x.checked_add(width)? {
            return None;
        }
        if (slices > 1 || z > 0) && self.height < y.checked_add(rows)? {
            return None;
        }
        let at = |x: u64, y: u64, z: u64| {
            z.checked_mul(slice)?.checked_add(y.checked_mul(self.pitch)?)?.checked_add(x)
        };
        let begin = at(x, y, z)?;
        let length = at(width, rows.checked_sub(1)?, slices.checked_sub(1)?)?;
        Some((begin, length))
    }
}

/// Returns the bytes of a copy.
pub(crate) fn bytes(size: CopySize) -> Result<u64, Code> {
    size.iter().try_fold(1_u64, |sum, n| sum.checked_mul(*n)).ok_or(Code::InvalidValue)
}

impl DriverState {
    /// Returns the allocation that contains an address, and whether it is host memory.
    fn allocation_at(&self, address: u64) -> Option<(u64, u64, bool)> {
        let is_host = |owner: u32| {
            self.owner(owner).is_ok_and(|owner| matches!(owner.kind, MemoryKind::HostAsync))
        };
        if let Some((base, record)) = self.arena.containing(address) {
            return Some((base, record.bytes, is_host(record.owner)));
        }
        if let Some((base, range)) = self.host_range(address) {
            return Some((base, range.bytes, true));
        }
        let (base, memory) = self.graphs.memory.range(..=address).next_back()?;
        let inside = memory.in_use && address - base < memory.bytes;
        inside.then_some((*base, memory.bytes, false))
    }

    /// Fails unless a whole range is in one allocation that devices can access.
    fn check_range(&self, address: u64, bytes: u64) -> Outcome {
        let valid = match self.allocation_at(address) {
            Some((base, size, _)) => {
                let end = address.checked_add(bytes);
                end.is_some_and(|end| end <= base.saturating_add(size))
            }
            None => self.vmm.is_mapped(address, bytes),
        };
        if valid { Ok(()) } else { Err(Code::InvalidValue) }
    }

    /// Returns whether a pointer of unknown type is host memory. Managed memory counts as device
    /// memory; memory that the driver does not know is host memory.
    fn is_host(&self, address: u64) -> bool {
        match self.allocation_at(address) {
            Some((_, _, host)) => host,
            None => !self.arena.covers(address),
        }
    }

    fn check_array(&self, array: Handle, origin: [u64; 3], size: CopySize) -> Outcome {
        let ArrayExtent { row, rows, slices } = self.array_extent(array)?;
        let fits = [row, rows, slices]
            .iter()
            .zip(origin.iter().zip(size))
            .all(|(max, (origin, size))| origin.checked_add(size).is_some_and(|end| end <= *max));
        if fits { Ok(()) } else { Err(Code::InvalidValue) }
    }

    /// Fails unless a copy fits into a side.
    pub(crate) fn check_side(&self, side: &CopySide, size: CopySize) -> Outcome {
        let empty = size.contains(&0);
        match side.memory {
            MemoryType::Array(array) if empty => self.array_extent(array).map(|_| ()),
            MemoryType::Array(array) => self.check_array(array, side.origin, size),
            MemoryType::FlatArray(array) => {
                let ArrayExtent { row, rows, slices } = self.array_extent(array)?;
                let all = bytes([row, rows, slices])?;
                let end = side.origin[0].checked_add(size[0]);
                let fits = end.is_some_and(|end| end <= all);
                if fits { Ok(()) } else { Err(Code::InvalidValue) }
            }
            _ if empty => Ok(()),
            MemoryType::Host(pointer)
            | MemoryType::Device(pointer)
            | MemoryType::Unified(pointer) => {
                let (begin, length) = side.span(size).ok_or(Code::InvalidValue)?;
                let address = pointer.checked_add(begin).ok_or(Code::InvalidValue)?;
                let unchecked = match side.memory {
                    MemoryType::Host(_) => true,
                    MemoryType::Unified(_) => {
                        self.allocation_at(address).is_none() && self.is_host(address)
                    }
                    _ => false,
                };
                match (pointer, unchecked) {
                    (0, _) => Err(Code::InvalidValue),
                    (_, true) => Ok(()),
                    (_, false) => self.check_range(address, length),
                }
            }
        }
    }

    /// Returns the direction of a copy.
    pub(crate) fn direction(&self, to: MemoryType, from: MemoryType) -> CopyDirection {
        let on_host = |memory| match memory {
            MemoryType::Host(_) => Some(true),
            MemoryType::Device(_) => Some(false),
            MemoryType::Unified(pointer) => Some(self.is_host(pointer)),
            MemoryType::Array(_) | MemoryType::FlatArray(_) => None,
        };
        match (on_host(from), on_host(to)) {
            (Some(true), Some(true)) => CopyDirection::HostToHost,
            (Some(true), Some(false)) => CopyDirection::HostToDevice,
            (Some(false), Some(true)) => CopyDirection::DeviceToHost,
            (Some(false), Some(false)) => CopyDirection::DeviceToDevice,
            _ => CopyDirection::Array,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_ends_with_last_row_not_its_pitch() {
        let side =
            CopySide { memory: MemoryType::Device(1), origin: [8, 2, 1], pitch: 512, height: 10 };
        // Slice 1, row 2, byte 8: 5120 + 1024 + 8. Two slices on: 3 rows and 100 bytes more.
        assert_eq!(side.span([100, 4, 3]), Some((6152, 2 * 5120 + 3 * 512 + 100)));
        assert_eq!(CopySide { origin: [0; 3], ..side }.span([512, 1, 1]), Some((0, 512)));
        assert_eq!(side.span([505, 4, 3]), None, "wider than the pitch");
        assert_eq!(side.span([100, 9, 3]), None, "higher than a slice");
        assert_eq!(side.span([u64::MAX, 1, 1]), None);
    }
}
