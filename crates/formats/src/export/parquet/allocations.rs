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

use super::{Day, FileFactory, TableWriter, day};
use crate::export::allocations::{COLUMNS, Cell, ColumnType, RowEncoder};

/// Rows, and bytes of text, that are buffered before they are written.
const BATCH_ROWS: usize = 8192;
const BATCH_TEXT_BYTES: usize = 8 << 20;

/// Writes rows of allocations, one file per day.
pub struct AllocationRows<'a, W: Write + Send> {
    table: Option<TableWriter<'a, W>>,
    buffers: BTreeMap<Day, RowBuffer>,
    schema: SchemaRef,
    /// Index of the column that gives the day of a row.
    day_column: usize,
    result: &'a mut WriteResult<W>,
}

/// The files, and notes for the user.
pub type WriteResult<W> = (Vec<W>, Vec<String>);

impl<'a, W: Write + Send> AllocationRows<'a, W> {
    /// Files are created by `create` on demand, and stored in `result` when they are complete.
    pub fn new(
        host: Option<&str>,
        create: FileFactory<'a, W>,
        result: &'a mut WriteResult<W>,
    ) -> Self {
        let fields: Vec<Field> =
            COLUMNS.iter().map(|(name, of, _)| Field::new(*name, data_type(*of), true)).collect();
        let schema = Arc::new(Schema::new(fields));
        let table = TableWriter::new("allocations", host, SchemaRef::clone(&schema), create);
        let day_column = COLUMNS.iter().position(|(name, ..)| *name == "alloc_time").unwrap_or(0);
        Self { table: Some(table), buffers: BTreeMap::new(), schema, day_column, result }
    }

    fn flush(&mut self, day: Day) -> io::Result<()> {
        let (Some(table), Some(buffer)) = (&mut self.table, self.buffers.get_mut(&day)) else {
            return Ok(());
        };
        let batch = buffer.finish(SchemaRef::clone(&self.schema))?;
        table.write(day, &batch)
    }
}

impl<W: Write + Send> RowEncoder for AllocationRows<'_, W> {
    const BETWEEN_FRAMES: &'static str = " <- ";

    fn row(&mut self, cells: &[Cell<'_>]) -> io::Result<()> {
        let day = match cells.get(self.day_column) {
            Some(Cell::Signed(utc)) => Some(day(*utc)),
            _ => None,
        };
        let Some(table) = &mut self.table else { return Ok(()) };
        let is_known = self.buffers.contains_key(&day);
        let day = if is_known { day } else { table.partition_day(day, 1) };
        let buffer = self.buffers.entry(day).or_insert_with(RowBuffer::new);
        buffer.row(cells);
        if buffer.rows >= BATCH_ROWS || buffer.text >= BATCH_TEXT_BYTES {
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
            *self.result = table.finish()?;
        }
        Ok(())
    }
}

fn data_type(of: ColumnType) -> DataType {
    match of {
        ColumnType::U16 => DataType::UInt16,
        ColumnType::U32 => DataType::UInt32,
        ColumnType::U64 | ColumnType::Hex => DataType::UInt64,
        ColumnType::I64 => DataType::Int64,
        ColumnType::Time => DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())),
        ColumnType::Word | ColumnType::Text => DataType::Utf8,
    }
}

/// Buffered rows of a day.
struct RowBuffer {
    columns: Vec<ColumnBuffer>,
    rows: usize,
    text: usize,
}

enum ColumnBuffer {
    U16(UInt16Builder),
    U32(UInt32Builder),
    U64(UInt64Builder),
    I64(Int64Builder),
    Time(TimestampNanosecondBuilder),
    Text(StringBuilder),
}

impl RowBuffer {
    fn new() -> Self {
        let column = |of: ColumnType| match of {
            ColumnType::U16 => ColumnBuffer::U16(UInt16Builder::new()),
            ColumnType::U32 => ColumnBuffer::U32(UInt32Builder::new()),
            ColumnType::U64 | ColumnType::Hex => ColumnBuffer::U64(UInt64Builder::new()),
            ColumnType::I64 => ColumnBuffer::I64(Int64Builder::new()),
            ColumnType::Time => {
                ColumnBuffer::Time(TimestampNanosecondBuilder::new().with_timezone("UTC"))
            }
            ColumnType::Word | ColumnType::Text => ColumnBuffer::Text(StringBuilder::new()),
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
                ColumnBuffer::U16(cells) => {
                    cells.append_option(number.and_then(|number| u16::try_from(number).ok()));
                }
                ColumnBuffer::U32(cells) => {
                    cells.append_option(number.and_then(|number| u32::try_from(number).ok()));
                }
                ColumnBuffer::U64(cells) => cells.append_option(number),
                ColumnBuffer::I64(cells) => cells.append_option(signed),
                ColumnBuffer::Time(cells) => cells.append_option(signed),
                ColumnBuffer::Text(cells) => {
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
                ColumnBuffer::U16(cells) => Arc::new(cells.finish()),
                ColumnBuffer::U32(cells) => Arc::new(cells.finish()),
                ColumnBuffer::U64(cells) => Arc::new(cells.finish()),
                ColumnBuffer::I64(cells) => Arc::new(cells.finish()),
                ColumnBuffer::Time(cells) => Arc::new(cells.finish()),
                ColumnBuffer::Text(cells) => Arc::new(cells.finish()),
            }
        });
        RecordBatch::try_new(schema, columns.collect()).map_err(io::Error::other)
    }
}
