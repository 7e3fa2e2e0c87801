//! Text in progress: the writer of a report and its style.

use std::io::{self, Write};

use super::live::text::TextStyle;
use super::view::wrap;

/// A report that is being written. Texts must be sanitized.
pub(crate) struct TextPage<'a> {
    out: &'a mut dyn Write,
    pub(crate) style: TextStyle,
}

impl<'a> TextPage<'a> {
    pub(crate) fn new(out: &'a mut dyn Write, style: TextStyle) -> Self {
        Self { out, style }
    }

    /// Writes a line in bold.
    pub(crate) fn bold(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "{}", self.style.bold(text))
    }

    /// Writes a line of little importance.
    pub(crate) fn dim(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "{}", self.style.dim(text))
    }

    /// Writes a line that needs attention.
    pub(crate) fn alarm(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "{}", self.style.alarm(text))
    }

    /// Writes a text on as many lines as it needs, the later ones indented; `paint`: how each line
    /// looks.
    pub(crate) fn wrapped(
        &mut self,
        paint: fn(TextStyle, &str) -> String,
        text: &str,
        indent: usize,
    ) -> io::Result<()> {
        let style = self.style;
        wrap(text, style.width, indent)
            .iter()
            .try_for_each(|line| writeln!(self.out, "{}", paint(style, line)))
    }

    /// Writes that a list has more entries than it shows, if it has.
    pub(crate) fn more(&mut self, count: u64, what: &str) -> io::Result<()> {
        if count > 0 { self.dim(&format!("… {count} {what}")) } else { Ok(()) }
    }
}

impl Write for TextPage<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
