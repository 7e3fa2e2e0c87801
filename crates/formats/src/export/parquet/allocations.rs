//! Allocations as Parquet.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use arrow_array::builder::{
    Int64Builder, StringBuilder, TimestampNanosecondBuilder, UInt16Builder, UInt32Builder,
    UInt64Builder,
};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};

use super::{Day, Make, Table, day};
use crate::export::allocations::{COLUMNS, Cell, Encoder, Type};

/// Rows, and bytes of text, that are buffered before they are written.
const ROWS: usize = 8192;
const TEXT: usize = 8 << 20;

/// Writes rows of allocations, one file per day.
pub struct Rows<'a, W: Write + Send> {
    table: Option<Table<'a, W>>,
    buffers: BTreeMap<Day, Sheet>,
    schema: SchemaRef,
    /// Index of the column that gives the day of a row.
    day_column: usize,
    done: &'a mut Done<W>,
}

/// The files, and notes for the user.
pub type Done<W> = (Vec<W>, Vec<String>);

impl<'a, W: Write + Send> Rows<'a, W> {
    /// Files are created by `make` on demand, and stored in `done` when they are complete.
    pub fn new(host: Option<&str>, make: Make<'a, W>, done: &'a mut Done<W>) -> Self {
        let fields: Vec<Field> =
            COLUMNS.iter().map(|(name, of, _)| Field::new(*name, data_type(*of), true)).collect();
        let schema = Arc::new(Schema::new(fields));
        let table = Table::new("allocations", host, SchemaRef::clone(&schema), make);
        let day_column = COLUMNS.iter().position(|(name, ..)| *name == "alloc_time").unwrap_or(0);
        Self { table: Some(table), buffers: BTreeMap::new(), schema, day_column, done }
    }

    fn flush(&mut self, day: Day) -> io::Result<()> {
        let (Some(table), Some(buffer)) = (&mut self.table, self.buffers.get_mut(&day)) else {
            return Ok(());
        };
        let batch = buffer.finish(SchemaRef::clone(&self.schema))?;
        table.write(day, &batch)
    }
}

impl<W: Write + Send> Encoder for Rows<'_, W> {
    const BETWEEN_FRAMES: &'static str = " <- ";

    fn row(&mut self, cells: &[Cell<'_>]) -> io::Result<()> {
        let day = match cells.get(self.day_column) {
            Some(Cell::Signed(utc)) => Some(day(*utc)),
            _ => None,
        };
        let Some(table) = &mut self.table else { return Ok(()) };
        let is_known = self.buffers.contains_key(&day);
        let day = if is_known { day } else { table.partition_day(day, 1) };
        let buffer = self.buffers.entry(day).or_insert_with(Sheet::new);
        buffer.row(cells);
        if buffer.rows >= ROWS || buffer.text >= TEXT {
            self.flush(day)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        let days: Vec<Day> = self.buffers.keys().copied().collect();
        for day in days {
            self.flush(day)?;
        }
        if let Some(table) = self.table.take() {
            *self.done = table.finish()?;
        }
        Ok(())
    }
}

fn data_type(of: Type) -> DataType {
    match of {
        Type::U16 => DataType::UInt16,
        Type::U32 => DataType::UInt32,
        Type::U64 | Type::Hex => DataType::UInt64,
        Type::I64 => DataType::Int64,
        Type::Time => DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())),
        Type::Word | Type::Text => DataType::Utf8,
    }
}

/// Buffered rows of a day.
struct Sheet {
    columns: Vec<Column>,
    rows: usize,
    text: usize,
}

enum Column {
    U16(UInt16Builder),
    U32(UInt32Builder),
    U64(UInt64Builder),
    I64(Int64Builder),
    Time(TimestampNanosecondBuilder),
    Text(StringBuilder),
}

impl Sheet {
    fn new() -> Self {
        let column = |of: Type| match of {
            Type::U16 => Column::U16(UInt16Builder::new()),
            Type::U32 => Column::U32(UInt32Builder::new()),
            Type::U64 | Type::Hex => Column::U64(UInt64Builder::new()),
            Type::I64 => Column::I64(Int64Builder::new()),
            Type::Time => Column::Time(TimestampNanosecondBuilder::new().with_timezone("UTC")),
            Type::Word | Type::Text => Column::Text(StringBuilder::new()),
        };
        Self { columns: COLUMNS.iter().map(|(_, of, _)| column(*of)).collect(), rows: 0, text: 0 }
    }

    fn row(&mut self, cells: &[Cell<'_>]) {
        self.rows += 1;
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            let number = match cell {
                Cell::Number(number) => Some(*number),
                _ => None,
            };
            let signed = match cell {
                Cell::Signed(number) => Some(*number),
                _ => None,
            };
            match column {
                Column::U16(cells) => {
                    cells.append_option(number.and_then(|number| u16::try_from(number).ok()));
                }
                Column::U32(cells) => {
                    cells.append_option(number.and_then(|number| u32::try_from(number).ok()));
                }
                Column::U64(cells) => cells.append_option(number),
                Column::I64(cells) => cells.append_option(signed),
                Column::Time(cells) => cells.append_option(signed),
                Column::Text(cells) => {
                    let text = match cell {
                        Cell::Word(text) | Cell::Text(text) => Some(*text),
                        _ => None,
                    };
                    self.text += text.map_or(0, str::len);
                    cells.append_option(text);
                }
            }
        }
    }

    fn finish(&mut self, schema: SchemaRef) -> io::Result<RecordBatch> {
        (self.rows, self.text) = (0, 0);
        let columns = self.columns.iter_mut().map(|column| -> ArrayRef {
            match column {
                Column::U16(cells) => Arc::new(cells.finish()),
                Column::U32(cells) => Arc::new(cells.finish()),
                Column::U64(cells) => Arc::new(cells.finish()),
                Column::I64(cells) => Arc::new(cells.finish()),
                Column::Time(cells) => Arc::new(cells.finish()),
                Column::Text(cells) => Arc::new(cells.finish()),
            }
        });
        RecordBatch::try_new(schema, columns.collect()).map_err(io::Error::other)
    }
}
