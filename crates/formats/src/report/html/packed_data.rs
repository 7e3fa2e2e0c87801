//! Compact encoding of the report's data: numbers with seven bits per byte, compressed, as base64.

use std::io::{self, Write};

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
        let mut gzip = GzEncoder::new(Base64Writer::new(out), Compression::new(7));
        let length = u32::try_from(object.len()).map_err(|_| too_long())?;
        gzip.write_all(&length.to_le_bytes())?;
        gzip.write_all(object)?;
        gzip.write_all(&self.0)?;
        gzip.finish()?.end()
    }
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, "a page cannot hold more than 4 GiB of text")
}

/// Writer that encodes base64.
struct Base64Writer<'a> {
    out: &'a mut dyn Write,
    pending: Vec<u8>,
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

impl<'a> Base64Writer<'a> {
    fn new(out: &'a mut dyn Write) -> Self {
        Self { out, pending: Vec::new() }
    }

    fn end(self) -> io::Result<()> {
        if self.pending.is_empty() { Ok(()) } else { self.out.write_all(&four(&self.pending)) }
    }
}

impl Write for Base64Writer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        let complete = self.pending.len() / 3 * 3;
        let mut text = Vec::with_capacity(complete / 3 * 4);
        for three in self.pending.get(..complete).unwrap_or(&[]).chunks(3) {
            text.extend(four(three));
        }
        self.pending.drain(..complete);
        self.out.write_all(&text)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Encodes bytes as base64.
#[must_use]
pub fn base64(bytes: &[u8]) -> String {
    bytes.chunks(3).flat_map(four).map(char::from).collect()
}

/// Encodes up to three bytes as four characters.
fn four(bytes: &[u8]) -> [u8; 4] {
    let byte = |index: usize| bytes.get(index).map_or(0, |byte| u32::from(*byte));
    let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
    let letter = |index: usize| {
        let six = bits >> (18 - 6 * index) & 63;
        if index > bytes.len() { b'=' } else { ALPHABET[six as usize] }
    };
    [letter(0), letter(1), letter(2), letter(3)]
}

/// Returns the SHA-256 of a text as base64, for the content security policy.
pub(super) fn digest(text: &str) -> String {
    let digest = hmac_sha256::Hash::hash(text.as_bytes());
    let letters: Vec<u8> = digest.chunks(3).flat_map(four).collect();
    String::from_utf8_lossy(&letters).into_owned()
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
    fn base64_matches_rfc_4648() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            for size in 1..4 {
                let mut out = Vec::new();
                let mut writer = Base64Writer::new(&mut out);
                for piece in bytes.as_bytes().chunks(size) {
                    writer.write_all(piece).unwrap();
                }
                writer.end().unwrap();
                assert_eq!(String::from_utf8(out).unwrap(), text);
            }
        }
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
        let bytes: Vec<u8> = out
            .iter()
            .filter_map(|letter| ALPHABET.iter().position(|known| known == letter))
            .collect::<Vec<_>>()
            .chunks(4)
            .flat_map(|four| {
                let bits = four.iter().fold(0, |bits, six| bits << 6 | *six as u32);
                let bits = bits << (6 * (4 - four.len()));
                (bits << 8).to_be_bytes()[..four.len() - 1].to_vec()
            })
            .collect();
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&*bytes).read_to_end(&mut plain).unwrap();
        assert_eq!(plain, [2, 0, 0, 0, b'{', b'}', 5, 5, 7, 0, 0, 0, 0, 0, 0, 0]);
    }
}
