//! Allocations as JSON: one array, one object per line.

use std::io::{self, Write};

use super::{COLUMNS, Cell, ColumnType, RowEncoder};
use crate::wall_clock::rfc3339;

/// Writes allocations as a JSON array.
pub struct JsonEncoder<'a> {
    out: &'a mut dyn Write,
    rows: u64,
}

impl<'a> JsonEncoder<'a> {
    /// Begins the array.
    pub fn new(out: &'a mut dyn Write) -> io::Result<Self> {
        out.write_all(b"[")?;
        Ok(Self { out, rows: 0 })
    }
}

impl RowEncoder for JsonEncoder<'_> {
    /// Frames contain no line breaks, so the text can be split again.
    const BETWEEN_FRAMES: &'static str = "\n";

    fn row(&mut self, cells: &[Cell<'_>]) -> io::Result<()> {
        self.out.write_all(if self.rows == 0 { b"\n" } else { b",\n" })?;
        self.rows += 1;
        for (at, (cell, (name, of, _))) in cells.iter().zip(COLUMNS).enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            write!(self.out, "{before}\"{name}\":")?;
            match *cell {
                Cell::Text(text) if *name == "stack" => {
                    let frames: Vec<&str> = text.split('\n').collect();
                    serde_json::to_writer(&mut *self.out, &frames)?;
                }
                Cell::Null if *name == "stack" => self.out.write_all(b"[]")?,
                Cell::Null => self.out.write_all(b"null")?,
                // Many JSON readers lose precision on 64-bit numbers.
                Cell::Number(value) if *of == ColumnType::Hex => {
                    write!(self.out, "\"{value:#x}\"")?;
                }
                Cell::Number(value) => write!(self.out, "{value}")?,
                Cell::Signed(value) if *of == ColumnType::Time => {
                    write!(self.out, "\"{}\"", rfc3339(value))?;
                }
                Cell::Signed(value) => write!(self.out, "{value}")?,
                Cell::Word(text) | Cell::Text(text) => {
                    serde_json::to_writer(&mut *self.out, text)?;
                }
            }
        }
        self.out.write_all(b"}")
    }

    fn finish(&mut self) -> io::Result<()> {
        self.out.write_all(b"\n]\n")?;
        self.out.flush()
    }
}
