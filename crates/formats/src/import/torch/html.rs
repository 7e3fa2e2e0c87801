//! HTML pages of PyTorch's viewers, which contain the pickle as base64 inside JSON.

use std::io::{self, BufRead, Read};

use base64::prelude::BASE64_STANDARD;
use base64::read::DecoderReader;

/// Text before the pickle.
const BEFORE: &[u8] = b"\"base64\":";

/// Reads the bytes of the pickle inside a page.
pub(super) fn pickle<R: BufRead>(page: R) -> impl Read {
    let encoded = EncodedPickle { page, state: ScanState::Searching(0) };
    DecoderReader::new(encoded, &BASE64_STANDARD)
}

/// Reads the base64 of the pickle.
struct EncodedPickle<R> {
    page: R,
    state: ScanState,
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

impl ScanState {
    /// Returns the state after one byte before the pickle.
    fn after(self, byte: u8) -> Self {
        match self {
            Self::Searching(matched) => {
                let next = match BEFORE.get(matched) {
                    Some(&expected) if expected == byte => matched + 1,
                    _ => usize::from(BEFORE.first() == Some(&byte)),
                };
                if next == BEFORE.len() { Self::Opening } else { Self::Searching(next) }
            }
            Self::Opening => match byte {
                b'"' => Self::Inside,
                b' ' | b'\n' | b'\t' | b'\r' => self,
                _ => Self::Searching(0),
            },
            Self::Inside | Self::Done => self,
        }
    }
}

impl<R: BufRead> Read for EncodedPickle<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while !out.is_empty() && self.state != ScanState::Done {
            let bytes = self.page.fill_buf()?;
            let Some(&first) = bytes.first() else { break };
            if self.state != ScanState::Inside {
                self.state = self.state.after(first);
                self.page.consume(1);
            } else if first == b'"' {
                self.state = ScanState::Done;
            } else {
                let end = bytes.iter().position(|&byte| byte == b'"').unwrap_or(bytes.len());
                let read = bytes.get(..end).unwrap_or_default().read(out)?;
                self.page.consume(read);
                return Ok(read);
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pickle_is_found_and_decoded() {
        for (page, expected) in [
            (
                r#"<html> "base64" "base64": "gAR9lC4A" and "base64": "AAAA""#,
                b"\x80\x04}\x94.\0".as_slice(),
            ),
            (r#"[{"name":"x","base64":"gAR9lC4="}]"#, b"\x80\x04}\x94."),
            (r#"<html>no pickle: ""base64":null</html>"#, b""),
        ] {
            let mut bytes = Vec::new();
            pickle(page.as_bytes()).read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes, expected, "{page}");
        }
        let mut bytes = Vec::new();
        assert!(pickle(br#""base64":"a*""#.as_slice()).read_to_end(&mut bytes).is_err());
    }
}
