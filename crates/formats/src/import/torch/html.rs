//! HTML pages of PyTorch's viewers, which contain the pickle as base64 inside JSON.

use std::io::{self, BufRead, Read};

/// Text before the pickle.
const BEFORE: &[u8] = b"\"base64\":";

/// Reads the bytes of the pickle inside a page.
pub(super) struct HtmlPickleReader<R> {
    page: R,
    state: ScanState,
    /// Bits that are not a whole byte yet, and their count.
    bits: u32,
    count: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ScanState {
    /// This much of the text before the pickle was matched.
    Searching(usize),
    /// The quotation mark comes next.
    Opening,
    Inside,
    Done,
}

impl<R: BufRead> HtmlPickleReader<R> {
    pub(super) fn new(page: R) -> Self {
        Self { page, state: ScanState::Searching(0), bits: 0, count: 0 }
    }

    /// Processes one byte of the page; may return one byte of the pickle.
    fn step(&mut self, byte: u8) -> io::Result<Option<u8>> {
        match self.state {
            ScanState::Searching(matched) => {
                let next = match BEFORE.get(matched) {
                    Some(&expected) if expected == byte => matched + 1,
                    _ => usize::from(BEFORE.first() == Some(&byte)),
                };
                let found = next == BEFORE.len();
                self.state = if found { ScanState::Opening } else { ScanState::Searching(next) };
            }
            ScanState::Opening => match byte {
                b'"' => self.state = ScanState::Inside,
                b' ' | b'\n' | b'\t' | b'\r' => {}
                _ => self.state = ScanState::Searching(0),
            },
            ScanState::Inside => return self.decode(byte),
            ScanState::Done => {}
        }
        Ok(None)
    }

    fn decode(&mut self, byte: u8) -> io::Result<Option<u8>> {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            b'"' | b'=' => {
                self.state = ScanState::Done;
                return Ok(None);
            }
            _ => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the page's base64 is broken",
                ));
            }
        };
        self.bits = self.bits << 6 | u32::from(value);
        self.count += 6;
        if self.count < 8 {
            return Ok(None);
        }
        self.count -= 8;
        let decoded = u8::try_from(self.bits >> self.count & 0xff).unwrap_or(0);
        self.bits &= (1 << self.count) - 1;
        Ok(Some(decoded))
    }
}

impl<R: BufRead> Read for HtmlPickleReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut written = 0;
        while written < out.len() && self.state != ScanState::Done {
            let Some(byte) = self.page.fill_buf()?.first().copied() else { break };
            self.page.consume(1);
            if let Some(decoded) = self.step(byte)?
                && let Some(slot) = out.get_mut(written)
            {
                *slot = decoded;
                written += 1;
            }
        }
        Ok(written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pickle_is_found_and_decoded() {
        for (page, pickle) in [
            (
                r#"<html> "base64" "base64": "gAR9lC4A" and "base64": "AAAA""#,
                b"\x80\x04}\x94.\0".as_slice(),
            ),
            (r#"[{"name":"x","base64":"gAR9lC4="}]"#, b"\x80\x04}\x94."),
            (r#"<html>no pickle: ""base64":null</html>"#, b""),
        ] {
            let mut bytes = Vec::new();
            HtmlPickleReader::new(page.as_bytes()).read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes, pickle, "{page}");
        }
        let mut bytes = Vec::new();
        assert!(
            HtmlPickleReader::new(br#""base64":"a*""#.as_slice()).read_to_end(&mut bytes).is_err()
        );
    }
}
