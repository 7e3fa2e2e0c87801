//! Pickle writer (protocol 4) for plain data, with the opcodes of PyTorch's own snapshots. The
//! output is only data: no opcode here can name or call anything.

use std::io::{self, Write};

use hashbrown::HashMap;

/// Items of a list or dictionary between two marks, as in Python's pickler.
const BATCH_ITEMS: u32 = 1000;

/// Writes values as a pickle.
pub(super) struct PickleWriter<'a> {
    out: &'a mut dyn Write,
    /// Number of memoized values; each gets the next number.
    memoized: u32,
    string_ids: HashMap<&'static str, u32>,
}

/// A list whose items are written one by one.
#[derive(Default)]
pub(super) struct PickleList {
    count: u32,
}

impl<'a> PickleWriter<'a> {
    /// Starts a pickle.
    pub(super) fn new(out: &'a mut dyn Write) -> io::Result<Self> {
        out.write_all(&[0x80, 4])?;
        Ok(Self { out, memoized: 0, string_ids: HashMap::new() })
    }

    /// Ends the pickle; the last value is its content.
    pub(super) fn stop(self) -> io::Result<()> {
        self.out.write_all(b".")?;
        self.out.flush()
    }

    /// Writes an integer. Readers in browsers support at most eight bytes, signed.
    pub(super) fn number(&mut self, value: u64) -> io::Result<()> {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        self.signed(value)
    }

    /// Writes a signed integer.
    pub(super) fn signed(&mut self, value: i64) -> io::Result<()> {
        let bytes = value.to_le_bytes();
        match value {
            0..=0xff => self.out.write_all(&[b'K', bytes[0]]),
            0x100..=0xffff => self.out.write_all(&[b'M', bytes[0], bytes[1]]),
            -0x8000_0000..=0x7fff_ffff => {
                self.out.write_all(&[b'J', bytes[0], bytes[1], bytes[2], bytes[3]])
            }
            _ => self.out.write_all(&[&[0x8a, 8], &bytes[..]].concat()),
        }
    }

    /// Writes a float.
    pub(super) fn float(&mut self, value: f64) -> io::Result<()> {
        self.out.write_all(b"G")?;
        self.out.write_all(&value.to_be_bytes())
    }

    /// Writes a boolean.
    pub(super) fn flag(&mut self, value: bool) -> io::Result<()> {
        self.out.write_all(&[if value { 0x88 } else { 0x89 }])
    }

    /// Writes a string.
    pub(super) fn text(&mut self, text: &str) -> io::Result<()> {
        match u8::try_from(text.len()) {
            Ok(length) => self.out.write_all(&[0x8c, length])?,
            Err(_) => {
                let length = u32::try_from(text.len()).map_err(io::Error::other)?;
                self.out.write_all(b"X")?;
                self.out.write_all(&length.to_le_bytes())?;
            }
        }
        self.out.write_all(text.as_bytes())
    }

    /// Writes a frequent string: the text only once, then references to it.
    pub(super) fn word(&mut self, word: &'static str) -> io::Result<()> {
        if let Some(known) = self.string_ids.get(word) {
            return self.again(*known);
        }
        self.text(word)?;
        let number = self.keep()?;
        self.string_ids.insert(word, number);
        Ok(())
    }

    /// Writes a pair of integers.
    pub(super) fn pair(&mut self, (one, other): (u64, u64)) -> io::Result<()> {
        self.number(one)?;
        self.number(other)?;
        self.out.write_all(&[0x86])
    }

    /// Memoizes the last value; returns its number.
    pub(super) fn keep(&mut self) -> io::Result<u32> {
        self.out.write_all(&[0x94])?;
        let number = self.memoized;
        // References have 32 bits.
        self.memoized = number.checked_add(1).ok_or_else(|| io::Error::other("too many values"))?;
        Ok(number)
    }

    /// Writes a reference to a memoized value.
    pub(super) fn again(&mut self, number: u32) -> io::Result<()> {
        match u8::try_from(number) {
            Ok(number) => self.out.write_all(&[b'h', number]),
            Err(_) => {
                self.out.write_all(b"j")?;
                self.out.write_all(&number.to_le_bytes())
            }
        }
    }

    /// Starts a dictionary: keys and values follow, until [`PickleWriter::close_dict`].
    pub(super) fn open_dict(&mut self) -> io::Result<()> {
        self.out.write_all(b"}(")
    }

    /// Ends a dictionary.
    pub(super) fn close_dict(&mut self) -> io::Result<()> {
        self.out.write_all(b"u")
    }

    /// Starts a list: items follow, each after [`PickleWriter::item`], until
    /// [`PickleWriter::close_list`].
    pub(super) fn open_list(&mut self) -> io::Result<PickleList> {
        self.out.write_all(b"](")?;
        Ok(PickleList::default())
    }

    /// Announces an item of a list.
    pub(super) fn item(&mut self, items: &mut PickleList) -> io::Result<()> {
        if items.count == BATCH_ITEMS {
            items.count = 0;
            self.out.write_all(b"e(")?;
        }
        items.count += 1;
        Ok(())
    }

    /// Ends a list.
    pub(super) fn close_list(&mut self) -> io::Result<()> {
        self.out.write_all(b"e")
    }

    /// Writes an empty list.
    pub(super) fn empty_list(&mut self) -> io::Result<()> {
        self.out.write_all(b"]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut PickleWriter<'_>) -> io::Result<()>) -> Vec<u8> {
        let mut out = Vec::new();
        let mut pickle = PickleWriter::new(&mut out).unwrap();
        write(&mut pickle).unwrap();
        pickle.stop().unwrap();
        out
    }

    /// The comments have the output of Python's `pickletools.dis`.
    #[test]
    fn numbers_use_the_shortest_common_encoding() {
        for (value, bytes) in [
            (0, &b"K\x00"[..]),                                         // BININT1 0
            (255, b"K\xff"),                                            // BININT1 255
            (256, b"M\x00\x01"),                                        // BININT2 256
            (65_536, b"J\x00\x00\x01\x00"),                             // BININT 65536
            (0x8000_0000, b"\x8a\x08\x00\x00\x00\x80\x00\x00\x00\x00"), // LONG1 2147483648
            (u64::MAX, b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"),    // LONG1 9223372036854775807
        ] {
            let want = [&b"\x80\x04"[..], bytes, b"."].concat();
            assert_eq!(written(|pickle| pickle.number(value)), want, "{value}");
        }
        assert_eq!(written(|pickle| pickle.signed(-1)), b"\x80\x04J\xff\xff\xff\xff.");
    }

    #[test]
    fn frequent_strings_are_written_once() {
        let bytes = written(|pickle| {
            let mut items = pickle.open_list()?;
            for _ in 0..2 {
                pickle.item(&mut items)?;
                pickle.word("addr")?;
            }
            pickle.close_list()
        });
        assert_eq!(bytes, b"\x80\x04](\x8c\x04addr\x94h\x00e.");
    }
}
