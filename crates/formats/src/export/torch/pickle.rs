//! Writes plain data as a pickle of protocol 4, with the opcodes that PyTorch's own snapshots have.
//! Whatever is written is data: no opcode here can name or call anything.

use std::io::{self, Write};

use hashbrown::HashMap;

/// Items of a list or dictionary between two marks, as Python's pickler has it.
const BATCH: u32 = 1000;

/// See the module.
pub(super) struct Pickle<'a> {
    out: &'a mut dyn Write,
    /// Values that were kept so far; each has the next number.
    kept: u32,
    words: HashMap<&'static str, u32>,
}

/// A list whose items come one by one.
#[derive(Default)]
pub(super) struct Items {
    count: u32,
}

impl<'a> Pickle<'a> {
    /// Begins a pickle.
    pub(super) fn new(out: &'a mut dyn Write) -> io::Result<Self> {
        out.write_all(&[0x80, 4])?;
        Ok(Self { out, kept: 0, words: HashMap::new() })
    }

    /// The last value is the pickle's.
    pub(super) fn stop(self) -> io::Result<()> {
        self.out.write_all(b".")?;
        self.out.flush()
    }

    /// A whole number. Readers in browsers take at most eight bytes with a sign.
    pub(super) fn number(&mut self, value: u64) -> io::Result<()> {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        self.signed(value)
    }

    /// A whole number with a sign.
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

    /// A number with a fraction.
    pub(super) fn float(&mut self, value: f64) -> io::Result<()> {
        self.out.write_all(b"G")?;
        self.out.write_all(&value.to_be_bytes())
    }

    /// True or false.
    pub(super) fn flag(&mut self, value: bool) -> io::Result<()> {
        self.out.write_all(&[if value { 0x88 } else { 0x89 }])
    }

    /// A text.
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

    /// A text that comes often: it is written once.
    pub(super) fn word(&mut self, word: &'static str) -> io::Result<()> {
        if let Some(known) = self.words.get(word) {
            return self.again(*known);
        }
        self.text(word)?;
        let kept = self.keep()?;
        self.words.insert(word, kept);
        Ok(())
    }

    /// Two numbers.
    pub(super) fn pair(&mut self, (one, other): (u64, u64)) -> io::Result<()> {
        self.number(one)?;
        self.number(other)?;
        self.out.write_all(&[0x86])
    }

    /// Keeps the last value under a number.
    pub(super) fn keep(&mut self) -> io::Result<u32> {
        self.out.write_all(&[0x94])?;
        let number = self.kept;
        // More would not fit into the references to them.
        self.kept = number.checked_add(1).ok_or_else(|| io::Error::other("too many values"))?;
        Ok(number)
    }

    /// A value that was kept.
    pub(super) fn again(&mut self, number: u32) -> io::Result<()> {
        match u8::try_from(number) {
            Ok(number) => self.out.write_all(&[b'h', number]),
            Err(_) => {
                self.out.write_all(b"j")?;
                self.out.write_all(&number.to_le_bytes())
            }
        }
    }

    /// A dictionary: keys and values follow, until [`Pickle::close_dict`].
    pub(super) fn open_dict(&mut self) -> io::Result<()> {
        self.out.write_all(b"}(")
    }

    /// The end of a dictionary.
    pub(super) fn close_dict(&mut self) -> io::Result<()> {
        self.out.write_all(b"u")
    }

    /// A list: items follow, each after [`Pickle::item`], until [`Pickle::close_list`].
    pub(super) fn open_list(&mut self) -> io::Result<Items> {
        self.out.write_all(b"](")?;
        Ok(Items::default())
    }

    /// An item of a list comes.
    pub(super) fn item(&mut self, items: &mut Items) -> io::Result<()> {
        if items.count == BATCH {
            items.count = 0;
            self.out.write_all(b"e(")?;
        }
        items.count += 1;
        Ok(())
    }

    /// The end of a list.
    pub(super) fn close_list(&mut self) -> io::Result<()> {
        self.out.write_all(b"e")
    }

    /// A list without items.
    pub(super) fn empty_list(&mut self) -> io::Result<()> {
        self.out.write_all(b"]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Pickle<'_>) -> io::Result<()>) -> Vec<u8> {
        let mut out = Vec::new();
        let mut pickle = Pickle::new(&mut out).unwrap();
        write(&mut pickle).unwrap();
        pickle.stop().unwrap();
        out
    }

    /// What `pickletools.dis` of Python calls these bytes is in the comments.
    #[test]
    fn numbers_take_the_shortest_form_that_all_readers_know() {
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
    fn words_are_written_once() {
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
