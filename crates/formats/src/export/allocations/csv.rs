//! Allocations as comma-separated values, RFC 4180.

use std::io::{self, Write};

use super::{COLUMNS, Cell, ColumnType, RowEncoder};
use crate::wall_clock::rfc3339;

/// Writes allocations as CSV rows.
pub struct CsvEncoder<'a> {
    out: &'a mut dyn Write,
}

impl<'a> CsvEncoder<'a> {
    /// Writes the header.
    pub fn new(out: &'a mut dyn Write) -> io::Result<Self> {
        let names: Vec<&str> = COLUMNS.iter().map(|(name, ..)| *name).collect();
        write!(out, "{}\r\n", names.join(","))?;
        Ok(Self { out })
    }
}

impl RowEncoder for CsvEncoder<'_> {
    const BETWEEN_FRAMES: &'static str = " <- ";

    fn row(&mut self, cells: &[Cell<'_>]) -> io::Result<()> {
        for (at, (cell, (_, of, _))) in cells.iter().zip(COLUMNS).enumerate() {
            if at > 0 {
                self.out.write_all(b",")?;
            }
            match *cell {
                Cell::Null => {}
                Cell::Number(value) if *of == ColumnType::Hex => write!(self.out, "{value:#x}")?,
                Cell::Number(value) => write!(self.out, "{value}")?,
                Cell::Signed(value) if *of == ColumnType::Time => {
                    self.out.write_all(rfc3339(value).as_bytes())?;
                }
                Cell::Signed(value) => write!(self.out, "{value}")?,
                Cell::Word(word) => self.out.write_all(word.as_bytes())?,
                Cell::Text(text) => self.text(text)?,
            }
        }
        self.out.write_all(b"\r\n")
    }

    fn finish(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl CsvEncoder<'_> {
    /// Writes text, quoted if needed. Text that a spreadsheet would read as a formula gets a
    /// leading apostrophe.
    fn text(&mut self, text: &str) -> io::Result<()> {
        let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
        let quoted = text.contains(['"', ',', '\r', '\n']);
        let guard = if formula { "'" } else { "" };
        if quoted {
            return write!(self.out, "\"{guard}{}\"", text.replace('"', "\"\""));
        }
        write!(self.out, "{guard}{text}")
    }
}
