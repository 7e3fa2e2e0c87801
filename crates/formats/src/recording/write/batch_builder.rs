//! Rows of a batch in progress. A row sets few of the columns, so a column is padded with nulls
//! only when it is set again, or when the batch is finished: the cost of a row depends on its
//! values only.

use std::sync::Arc;

use arrow_array::builder::{
    ArrayBuilder, BooleanBuilder, Int32Builder, ListBuilder, StringBuilder,
    TimestampNanosecondBuilder, UInt16Builder, UInt32Builder, UInt64Builder,
};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, SchemaRef};

use super::super::schema::{COLUMNS, Column, ColumnType};

/// Rows of a batch.
pub(crate) struct BatchBuilder {
    columns: Vec<ColumnBuilder>,
    rows: usize,
    /// Bytes of texts and lists, which the number of rows does not bound.
    pub(crate) loose_bytes: usize,
}

/// Declares the builders of columns, one for each type.
macro_rules! column_builders {
    ($($type:ident($builder:ty) $new:expr,)*) => {
        enum ColumnBuilder {
            $($type($builder),)*
        }

        impl ColumnBuilder {
            fn new(of: ColumnType) -> Self {
                match of {
                    $(ColumnType::$type => Self::$type($new),)*
                }
            }

            /// Appends nulls up to a row.
            fn pad(&mut self, rows: usize) {
                match self {
                    $(Self::$type(cells) => {
                        cells.append_nulls(rows.saturating_sub(cells.len()));
                    })*
                }
            }

            fn finish(&mut self) -> ArrayRef {
                match self {
                    $(Self::$type(cells) => Arc::new(cells.finish()),)*
                }
            }
        }
    };
}
column_builders! {
    U16(UInt16Builder) UInt16Builder::new(),
    U32(UInt32Builder) UInt32Builder::new(),
    U64(UInt64Builder) UInt64Builder::new(),
    I32(Int32Builder) Int32Builder::new(),
    Bool(BooleanBuilder) BooleanBuilder::new(),
    Text(StringBuilder) StringBuilder::new(),
    Time(TimestampNanosecondBuilder) TimestampNanosecondBuilder::new().with_timezone("UTC"),
    Numbers(ListBuilder<UInt64Builder>) ListBuilder::new(UInt64Builder::new()),
}

impl BatchBuilder {
    pub(crate) fn new() -> Self {
        let columns = COLUMNS.iter().map(|(_, of, _)| ColumnBuilder::new(*of)).collect();
        Self { columns, rows: 0, loose_bytes: 0 }
    }

    pub(crate) const fn rows(&self) -> usize {
        self.rows
    }

    /// Starts a row.
    pub(crate) fn row(&mut self, word: &str) {
        self.rows += 1;
        self.text(Column::RowType, word);
    }

    /// Returns the column, ready for the value of the current row.
    fn cells(&mut self, column: Column) -> Option<&mut ColumnBuilder> {
        let before = self.rows.saturating_sub(1);
        let cells = self.columns.get_mut(column as usize)?;
        cells.pad(before);
        Some(cells)
    }

    /// Sets an unsigned number of any width; `None` leaves the cell null.
    pub(crate) fn number(&mut self, column: Column, value: impl Into<Option<u64>>) {
        let Some(value) = value.into() else { return };
        match self.cells(column) {
            Some(ColumnBuilder::U16(cells)) => {
                cells.append_value(u16::try_from(value).unwrap_or(u16::MAX));
            }
            Some(ColumnBuilder::U32(cells)) => {
                cells.append_value(u32::try_from(value).unwrap_or(u32::MAX));
            }
            Some(ColumnBuilder::U64(cells)) => cells.append_value(value),
            _ => debug_assert!(false, "{} holds no numbers", column.name()),
        }
    }

    pub(crate) fn code(&mut self, column: Column, value: i32) {
        match self.cells(column) {
            Some(ColumnBuilder::I32(cells)) => cells.append_value(value),
            _ => debug_assert!(false, "{} holds no codes", column.name()),
        }
    }

    pub(crate) fn flag(&mut self, column: Column, value: bool) {
        match self.cells(column) {
            Some(ColumnBuilder::Bool(cells)) => cells.append_value(value),
            _ => debug_assert!(false, "{} holds no flags", column.name()),
        }
    }

    pub(crate) fn time(&mut self, column: Column, value: i64) {
        match self.cells(column) {
            Some(ColumnBuilder::Time(cells)) => cells.append_value(value),
            _ => debug_assert!(false, "{} holds no times", column.name()),
        }
    }

    pub(crate) fn text<'a>(&mut self, column: Column, value: impl Into<Option<&'a str>>) {
        let Some(value) = value.into() else { return };
        self.loose_bytes += value.len();
        match self.cells(column) {
            Some(ColumnBuilder::Text(cells)) => cells.append_value(value),
            _ => debug_assert!(false, "{} holds no text", column.name()),
        }
    }

    pub(crate) fn numbers(
        &mut self,
        column: Column,
        values: impl IntoIterator<Item = Option<u64>>,
    ) {
        let mut count = 0;
        match self.cells(column) {
            Some(ColumnBuilder::Numbers(cells)) => {
                for value in values {
                    cells.values().append_option(value);
                    count += size_of::<u64>();
                }
                cells.append(true);
            }
            _ => debug_assert!(false, "{} holds no lists", column.name()),
        }
        self.loose_bytes += count;
    }

    /// Returns the rows as a batch, and empties the builder.
    pub(crate) fn finish(&mut self, schema: SchemaRef) -> Result<RecordBatch, ArrowError> {
        let rows = std::mem::take(&mut self.rows);
        self.loose_bytes = 0;
        let columns = self.columns.iter_mut().map(|cells| {
            cells.pad(rows);
            cells.finish()
        });
        RecordBatch::try_new(schema, columns.collect())
    }
}
