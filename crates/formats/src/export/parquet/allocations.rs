//! Allocations as Parquet.

use std::any::Any;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_array::builder::{ArrayBuilder, PrimitiveBuilder, StringBuilder, make_builder};
use arrow_array::types::{
    ArrowPrimitiveType, Int64Type, TimestampNanosecondType, UInt16Type, UInt32Type, UInt64Type,
};
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
    columns: Vec<Box<dyn ArrayBuilder>>,
    rows: usize,
    text: usize,
}

impl RowBuffer {
    fn new() -> Self {
        let columns = COLUMNS.iter().map(|(_, of, _)| make_builder(&data_type(*of), 0));
        Self { columns: columns.collect(), rows: 0, text: 0 }
    }

    fn row(&mut self, cells: &[Cell<'_>]) {
        self.rows += 1;
        for ((column, (_, of, _)), cell) in self.columns.iter_mut().zip(COLUMNS).zip(cells) {
            let (number, signed, text) = match cell {
                Cell::Number(number) => (Some(*number), None, None),
                Cell::Signed(number) => (None, Some(*number), None),
                Cell::Word(text) | Cell::Text(text) => (None, None, Some(*text)),
                Cell::Null => (None, None, None),
            };
            let column = column.as_any_mut();
            match of {
                ColumnType::U16 => {
                    append::<UInt16Type>(column, number.and_then(|number| number.try_into().ok()));
                }
                ColumnType::U32 => {
                    append::<UInt32Type>(column, number.and_then(|number| number.try_into().ok()));
                }
                ColumnType::U64 | ColumnType::Hex => append::<UInt64Type>(column, number),
                ColumnType::I64 => append::<Int64Type>(column, signed),
                ColumnType::Time => append::<TimestampNanosecondType>(column, signed),
                ColumnType::Word | ColumnType::Text => {
                    self.text += text.map_or(0, str::len);
                    if let Some(cells) = column.downcast_mut::<StringBuilder>() {
                        cells.append_option(text);
                    }
                }
            }
        }
    }

    fn finish(&mut self, schema: SchemaRef) -> io::Result<RecordBatch> {
        (self.rows, self.text) = (0, 0);
        let columns = self.columns.iter_mut().map(|column| column.finish());
        RecordBatch::try_new(schema, columns.collect()).map_err(io::Error::other)
    }
}

fn append<T: ArrowPrimitiveType>(column: &mut dyn Any, value: Option<T::Native>) {
    if let Some(cells) = column.downcast_mut::<PrimitiveBuilder<T>>() {
        cells.append_option(value);
    }
}
