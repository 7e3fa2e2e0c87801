//! Cells of a batch whose columns were checked.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Int32Type, TimestampNanosecondType, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, RecordBatch};
use arrow_schema::Schema;

use super::super::schema::{COLUMNS, Column};

/// Positions of the columns in a file, which may also have others.
pub(crate) struct ColumnMap(Vec<Option<usize>>);

impl ColumnMap {
    /// Finds the columns; those that an older version did not have are always null. Returns an
    /// error if a column has another type.
    pub(crate) fn find(schema: &Schema) -> Result<Self, String> {
        let columns = COLUMNS.iter().map(|(name, of, _)| match schema.column_with_name(name) {
            None => Ok(None),
            Some((index, field)) if *field.data_type() == of.arrow() => Ok(Some(index)),
            Some((_, field)) => Err(format!(
                "the column `{name}` is {} instead of {}",
                field.data_type(),
                of.name()
            )),
        });
        let columns: Vec<_> = columns.collect::<Result<_, _>>()?;
        match columns.get(Column::RowType as usize) {
            Some(Some(_)) => Ok(Self(columns)),
            _ => Err(format!("column `{}` is missing", Column::RowType.name())),
        }
    }
}

impl ColumnMap {
    /// Returns the rows with exactly the columns of this version.
    pub(crate) fn table(
        &self,
        batch: &RecordBatch,
    ) -> Result<RecordBatch, arrow_schema::ArrowError> {
        let columns = COLUMNS.iter().zip(&self.0).map(|((_, of, _), index)| {
            let column = index.and_then(|index| batch.columns().get(index));
            let null = || arrow_array::new_null_array(&of.arrow(), batch.num_rows());
            column.cloned().unwrap_or_else(null)
        });
        RecordBatch::try_new(std::sync::Arc::new(super::super::schema::schema()), columns.collect())
    }
}

/// A row of a batch.
#[derive(Clone, Copy)]
pub(crate) struct RowCells<'a> {
    pub(crate) batch: &'a RecordBatch,
    pub(crate) columns: &'a ColumnMap,
    pub(crate) row: usize,
}

/// Problem of a row.
#[derive(Debug)]
pub(crate) struct RowError(pub(crate) String);

impl<'a> RowCells<'a> {
    fn column(self, column: Column) -> Option<&'a dyn Array> {
        let index = self.columns.0.get(column as usize).copied().flatten()?;
        let array = self.batch.columns().get(index)?;
        (self.row < array.len() && array.is_valid(self.row)).then_some(&**array)
    }

    fn value<T: ArrowPrimitiveType>(self, column: Column) -> Option<T::Native> {
        Some(self.column(column)?.as_primitive_opt::<T>()?.value(self.row))
    }

    pub(crate) fn u16(self, column: Column) -> Option<u16> {
        self.value::<UInt16Type>(column)
    }

    pub(crate) fn u32(self, column: Column) -> Option<u32> {
        self.value::<UInt32Type>(column)
    }

    pub(crate) fn u64(self, column: Column) -> Option<u64> {
        self.value::<UInt64Type>(column)
    }

    pub(crate) fn i32(self, column: Column) -> Option<i32> {
        self.value::<Int32Type>(column)
    }

    pub(crate) fn time(self, column: Column) -> Option<i64> {
        self.value::<TimestampNanosecondType>(column)
    }

    pub(crate) fn flag(self, column: Column) -> Option<bool> {
        Some(self.column(column)?.as_boolean_opt()?.value(self.row))
    }

    pub(crate) fn text(self, column: Column) -> Option<&'a str> {
        Some(self.column(column)?.as_string_opt::<i32>()?.value(self.row))
    }

    /// Returns the list, empty if missing.
    pub(crate) fn numbers(self, column: Column) -> Vec<Option<u64>> {
        let list = self.column(column).and_then(|array| array.as_list_opt::<i32>());
        let values = list.map(|list| list.value(self.row));
        let numbers = values.as_ref().and_then(|values| values.as_primitive_opt::<UInt64Type>());
        numbers.map(|numbers| numbers.iter().collect()).unwrap_or_default()
    }

    /// Returns the list; an error if an item is null.
    pub(crate) fn all_numbers(self, column: Column) -> Result<Vec<u64>, RowError> {
        let all: Option<Vec<u64>> = self.numbers(column).into_iter().collect();
        all.ok_or_else(|| self.bad(column))
    }

    pub(crate) fn is_null(self, column: Column) -> bool {
        self.column(column).is_none()
    }

    /// Returns the value; an error if it is missing.
    pub(crate) fn must<T>(self, column: Column, value: Option<T>) -> Result<T, RowError> {
        value.ok_or_else(|| self.bad(column))
    }

    pub(crate) fn bad(self, column: Column) -> RowError {
        let problem = if self.is_null(column) { "has no" } else { "has an impossible" };
        let word = self.text(Column::RowType).unwrap_or("unnamed");
        RowError(format!(
            "a row `{}` {problem} `{}`",
            crate::sanitize::sanitize(word),
            column.name()
        ))
    }
}
