//! Mutators. Those of a format keep its structure: they change a field, a row or an operation, so
//! that the input still gets past the first parser.

pub mod arrow;
pub mod elf;
mod fields;
pub mod http;
pub mod pickle;
mod pieces;
pub mod records;
pub mod sqlite;
pub mod text;
pub mod toml;

use libfuzzer_sys::fuzzer_mutate;

pub use fields::Field;

/// A mutator of a format: returns the new input, or `None` if it cannot read the old one.
pub type Mutator = fn(&[u8], &mut Random) -> Option<Vec<u8>>;

/// One in this many mutations is that of the fuzzer: any change of any bytes. An input is the result
/// of several mutations, one after the other.
const PLAIN: usize = 32;

/// Number of tries to get an input that is not too long.
const TRIES: usize = 4;

/// Mutates the input in `data`.
pub fn mutate(mutator: Mutator, data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let mut random = Random::new(seed);
    let tries = if random.below(PLAIN) == 0 { 0 } else { TRIES };
    let mut changed = (0..tries).filter_map(|_| mutator(&data[..size], &mut random));
    match changed.find(|new| !new.is_empty() && new.len() <= max_size) {
        Some(new) => {
            data[..new.len()].copy_from_slice(&new);
            new.len()
        }
        None => fuzzer_mutate(data, size, max_size),
    }
}

/// No mutator of a format.
pub fn plain(_: &[u8], _: &mut Random) -> Option<Vec<u8>> {
    None
}

/// Changes bytes in a part of the input, with the methods of the fuzzer, but not its length.
fn change_part(bytes: &mut [u8], random: &mut Random) {
    let (start, length) = random.part(bytes.len(), 64);
    let part = &mut bytes[start..start + length];
    let mut copy = part.to_vec();
    if !copy.is_empty() {
        let size = copy.len();
        let new = fuzzer_mutate(&mut copy, size, size);
        part[..new].copy_from_slice(&copy[..new]);
    }
}

/// Random numbers of one mutation.
pub struct Random(u64);

impl Random {
    fn new(seed: u32) -> Self {
        Self(u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `limit`, 0 if there is none.
    fn below(&mut self, limit: usize) -> usize {
        ((self.next() >> 33) as usize).checked_rem(limit).unwrap_or(0)
    }

    fn one_of<'a, T>(&mut self, list: &'a [T]) -> Option<&'a T> {
        list.get(self.below(list.len()))
    }

    /// Returns the start and length of a random part.
    fn part(&mut self, total: usize, max: usize) -> (usize, usize) {
        let start = self.below(total);
        (start, (total - start).min(1 + self.below(max)))
    }

    /// Returns a number that is often at a limit.
    fn number(&mut self) -> u64 {
        const SPECIAL: [u64; 12] = [
            0,
            1,
            2,
            8,
            0x7f,
            0xff,
            0xffff,
            0x7fff_ffff,
            0xffff_ffff,
            i64::MAX as u64,
            1 << 63,
            u64::MAX,
        ];
        match self.below(4) {
            0 => SPECIAL[self.below(SPECIAL.len())],
            1 => self.next() % 256,
            2 => 1 << self.below(64),
            _ => self.next() >> self.below(64),
        }
    }
}
