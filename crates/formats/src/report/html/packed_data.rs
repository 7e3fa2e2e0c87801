//! Compact encoding of the report's data: numbers with seven bits per byte, compressed, as base64.

use std::io::{self, Write};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use base64::write::EncoderWriter;
use flate2::Compression;
use flate2::write::GzEncoder;

/// A sequence of numbers. The script reads them in the same order.
#[derive(Clone, Debug, Default)]
pub(super) struct NumberPacker(Vec<u8>);

impl NumberPacker {
    /// Appends a number: seven bits per byte, lowest first; all but the last byte have the highest
    /// bit set.
    pub(super) fn put(&mut self, mut number: u64) {
        while number >= 0x80 {
            // The mask leaves seven bits.
            self.0.push((number & 0x7f) as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    /// Appends the difference of two numbers, with the sign as the lowest bit.
    pub(super) fn step(&mut self, from: u64, to: u64) {
        let size = from.abs_diff(to).min(u64::MAX >> 1);
        self.put(size << 1 | u64::from(to < from));
    }

    /// Appends all eight bytes, lowest first.
    pub(super) fn put_fixed(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }
}

/// Blocks of numbers that a JSON object refers to by offset and length.
#[derive(Clone, Debug, Default)]
pub(super) struct PackedData(Vec<u8>);

impl PackedData {
    /// Appends a block; returns its offset and length.
    pub(super) fn add(&mut self, numbers: NumberPacker) -> [usize; 2] {
        let begin = self.0.len();
        self.0.extend(numbers.0);
        [begin, self.0.len() - begin]
    }

    /// Writes the length of the object in four bytes, the object and the blocks; compressed, as
    /// base64.
    pub(super) fn write(self, object: &[u8], out: &mut dyn Write) -> io::Result<()> {
        let mut gzip =
            GzEncoder::new(EncoderWriter::new(out, &BASE64_STANDARD), Compression::new(7));
        let length = u32::try_from(object.len()).map_err(|_| too_long())?;
        gzip.write_all(&length.to_le_bytes())?;
        gzip.write_all(object)?;
        gzip.write_all(&self.0)?;
        gzip.finish()?.finish()?;
        Ok(())
    }
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, "a page cannot hold more than 4 GiB of text")
}

/// Returns the SHA-256 of a text as base64, for the content security policy.
pub(super) fn digest(text: &str) -> String {
    BASE64_STANDARD.encode(hmac_sha256::Hash::hash(text.as_bytes()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn numbers_have_seven_bits_per_byte() {
        let mut numbers = NumberPacker::default();
        for number in [0, 127, 128, 300, u64::MAX] {
            numbers.put(number);
        }
        let expected = [0, 127, 0x80, 1, 0xac, 2];
        assert_eq!(numbers.0[..6], expected);
        assert_eq!(numbers.0[6..], [255, 255, 255, 255, 255, 255, 255, 255, 255, 1]);
        let mut steps = NumberPacker::default();
        steps.step(5, 8);
        steps.step(8, 5);
        steps.step(0, u64::MAX);
        assert_eq!(steps.0[..2], [6, 7]);
    }

    #[test]
    fn digest_matches_fips_180_4() {
        // The empty string and "abc".
        assert_eq!(digest(""), "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
        assert_eq!(digest("abc"), "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
    }

    #[test]
    fn packed_data_is_restored() {
        let mut parts = PackedData::default();
        let mut numbers = NumberPacker::default();
        numbers.put(5);
        assert_eq!(parts.add(numbers.clone()), [0, 1]);
        numbers.put_fixed(7);
        assert_eq!(parts.add(numbers), [1, 9]);
        let mut out = Vec::new();
        parts.write(b"{}", &mut out).unwrap();
        assert!(out.is_ascii() && !out.contains(&b'<'));
        let bytes = BASE64_STANDARD.decode(&out).unwrap();
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&*bytes).read_to_end(&mut plain).unwrap();
        assert_eq!(plain, [2, 0, 0, 0, b'{', b'}', 5, 5, 7, 0, 0, 0, 0, 0, 0, 0]);
    }
}
