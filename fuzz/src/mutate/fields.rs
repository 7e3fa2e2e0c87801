//! Numbers of a binary format at known places.

use super::Random;

/// A number in the input.
#[derive(Clone, Copy)]
pub struct Field {
    pub at: usize,
    pub bytes: usize,
    pub big_endian: bool,
}

impl Field {
    pub(super) fn little(at: usize, bytes: usize) -> Self {
        Self { at, bytes, big_endian: false }
    }

    pub(super) fn big(at: usize, bytes: usize) -> Self {
        Self { at, bytes, big_endian: true }
    }

    pub(super) fn get(&self, data: &[u8]) -> Option<u64> {
        let bytes = data.get(self.at..self.at.checked_add(self.bytes)?)?;
        let join = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        Some(match self.big_endian {
            true => bytes.iter().fold(0, join),
            false => bytes.iter().rev().fold(0, join),
        })
    }

    fn set(&self, data: &mut [u8], value: u64) {
        let Some(end) = self.at.checked_add(self.bytes) else { return };
        let Some(bytes) = data.get_mut(self.at..end) else { return };
        for (n, byte) in bytes.iter_mut().enumerate() {
            let shift = if self.big_endian { self.bytes - 1 - n } else { n };
            *byte = (value >> (8 * shift.min(7))) as u8;
        }
    }
}

/// Changes one of the fields: to a number near its own, to that of another field, or to any.
pub(super) fn change(data: &mut [u8], fields: &[Field], random: &mut Random) -> Option<()> {
    let field = random.one_of(fields)?;
    let old = field.get(data)?;
    let value = match random.below(6) {
        0 => old.wrapping_add(1 + random.next() % 16),
        1 => old.wrapping_sub(1 + random.next() % 16),
        2 => old ^ 1 << random.below(field.bytes * 8),
        3 => random.one_of(fields)?.get(data)?,
        4 => data.len() as u64 - random.next() % (data.len() as u64 + 1),
        _ => random.number(),
    };
    field.set(data, value);
    Some(())
}
