//! Filters text for a terminal: colors pass, other control sequences do not.

use std::io::{self, Write};

use formats::sanitize::sanitize_up_to;

/// Writes text to a terminal. Reports escape what they quote; this is the last line of defense.
pub(crate) struct Guard<W> {
    out: W,
    /// The incomplete last line: its last character may be split.
    line: Vec<u8>,
}

impl<W: Write> Guard<W> {
    pub(crate) const fn new(out: W) -> Self {
        Self { out, line: Vec::new() }
    }

    fn emit(&mut self, length: usize) -> io::Result<()> {
        let text: Vec<u8> = self.line.drain(..length).collect();
        self.out.write_all(filter_controls(&String::from_utf8_lossy(&text)).as_bytes())
    }
}

impl<W: Write> Write for Guard<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(bytes);
        if let Some(end) = self.line.iter().rposition(|byte| *byte == b'\n') {
            self.emit(end + 1)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.emit(self.line.len())?;
        self.out.flush()
    }
}

fn filter_controls(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let (allowed, after) = rest.split_at(allowed(rest));
        let end = after.find(['\n', '\r', '\t', '\x1b']).unwrap_or(after.len());
        // A sequence that is not allowed begins with one character to escape.
        let end = if end == 0 && allowed.is_empty() { 1 } else { end };
        let (foreign, after) = after.split_at(end);
        out.push_str(allowed);
        out.push_str(&sanitize_up_to(foreign, usize::MAX));
        rest = after;
    }
    out
}

/// Returns the length of the line end, tab or color at the start of a text.
fn allowed(text: &str) -> usize {
    match text.as_bytes() {
        [b'\n' | b'\t', ..] => 1,
        [b'\r', b'\n', ..] => 2,
        [0x1b, b'[', parameters @ ..] => {
            let length = parameters.iter().take_while(|byte| matches!(byte, b'0'..=b'9' | b';'));
            let length = length.count();
            if parameters.get(length) == Some(&b'm') { length + 3 } else { 0 }
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(pieces: &[&[u8]]) -> String {
        let mut guard = Guard::new(Vec::new());
        for piece in pieces {
            guard.write_all(piece).unwrap();
        }
        guard.flush().unwrap();
        String::from_utf8(guard.out).unwrap()
    }

    #[test]
    fn colors_pass_and_other_sequences_are_escaped() {
        let colors = "a\x1b[1;31mred\x1b[0m\tb\n\n训练\n";
        assert_eq!(written(&[colors.as_bytes()]), colors);
        assert_eq!(
            written(&[b"a\x1b[2Jb\x1b]0;t\x07\rc\x1b"]),
            "a\\u{1b}[2Jb\\u{1b}]0;t\\u{7}\\u{d}c\\u{1b}"
        );
        assert_eq!(
            written(&["x\u{9b}31my\u{202e}\u{7f}".as_bytes()]),
            "x\\u{9b}31my\\u{202e}\\u{7f}"
        );
        assert_eq!(written(&[b"\x1b[31\x1b[m\x1b[3"]), "\\u{1b}[31\x1b[m\\u{1b}[3");
    }

    #[test]
    fn characters_and_colors_may_be_split_between_writes() {
        assert_eq!(written(&[b"\xe8\xae", b"\xad\x1b", b"[3", b"1mx\n"]), "训\x1b[31mx\n");
        assert_eq!(written(&[b"\xff\r\n"]), "\u{fffd}\r\n");
    }
}
