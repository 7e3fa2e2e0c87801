//! Events of a recording as Parquet, with the rows of `docs/reference/recording-format.md`.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, RecordBatch};

use super::{Day, FileFactory, TableWriter, day};
use crate::import::ImportError;
use crate::recording::{FunctionLookup, RecordingReader, RecordingRow, schema};

/// Host of a recording.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecordedHost {
    /// Host name, not sanitized.
    pub hostname: Option<String>,
    /// Wall clock minus monotonic clock, in nanoseconds.
    pub clock_offset: Option<i128>,
    /// Wall clock at the start of the recording, in nanoseconds since 1970, UTC.
    pub start_utc: Option<i64>,
}

/// Reads the host of a recording from the rows before its first event.
pub fn recorded_host(path: &Path, lookup: FunctionLookup) -> Result<RecordedHost, ImportError> {
    let mut reader = RecordingReader::open(path, lookup)?;
    let mut host = RecordedHost::default();
    while let Some(row) = reader.next_row()? {
        match row {
            RecordingRow::About { key, value } if &*key == "hostname" => {
                host.hostname = Some(value.into());
            }
            RecordingRow::Clock(clock) => {
                let utc = clock.utc_nanos();
                host.clock_offset = Some(i128::from(utc) - i128::from(clock.start().0));
                host.start_utc = Some(utc);
            }
            RecordingRow::Event(_) => break,
            _ => {}
        }
    }
    Ok(host)
}

/// Error of writing events.
#[derive(Debug, thiserror::Error)]
pub enum EventExportError {
    /// The recording cannot be read.
    #[error(transparent)]
    Read(#[from] ImportError),
    /// The files cannot be written.
    #[error("cannot write the table `events`: {0}")]
    Write(#[from] std::io::Error),
}

/// Writes the rows of a recording, one file per day.
pub struct EventRows<'a, W: Write + Send> {
    table: TableWriter<'a, W>,
    host: RecordedHost,
}

impl<'a, W: Write + Send> EventRows<'a, W> {
    /// Files are created by `create` on demand.
    pub fn new(host: RecordedHost, create: FileFactory<'a, W>) -> Self {
        let schema = Arc::new(schema::schema());
        let table = TableWriter::new("events", host.hostname.as_deref(), schema, create);
        Self { table, host }
    }

    /// Writes every row. `progress` is called with the bytes read and the total.
    pub fn write<R: Read>(
        mut self,
        mut reader: RecordingReader<R>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Vec<W>, Vec<String>), EventExportError> {
        while let Some(batch) = reader.next_table()? {
            self.batch(&batch)?;
            let (done, total) = reader.progress();
            progress(done, total.unwrap_or(done));
        }
        Ok(self.table.finish()?)
    }

    /// Writes runs of rows of the same day together.
    fn batch(&mut self, batch: &RecordBatch) -> std::io::Result<()> {
        let mut from = 0;
        let mut today: Option<Day> = None;
        for row in 0..batch.num_rows() {
            let of = self.day_of(batch, row);
            if let Some(last) = today.filter(|last| *last != of) {
                self.part(last, &batch.slice(from, row - from))?;
                from = row;
            }
            today = Some(of);
        }
        match today {
            Some(last) => self.part(last, &batch.slice(from, batch.num_rows() - from)),
            None => Ok(()),
        }
    }

    fn part(&mut self, day: Day, rows: &RecordBatch) -> std::io::Result<()> {
        let day = self.table.partition_day(day, rows.num_rows());
        self.table.write(day, rows)
    }

    /// Returns the day of a row. Rows without a timestamp describe the recording and belong to the
    /// day it started.
    fn day_of(&self, batch: &RecordBatch, row: usize) -> Day {
        let at = batch.column_by_name("time_ns")?.as_primitive_opt::<UInt64Type>()?;
        if !at.is_valid(row) {
            return self.host.start_utc.map(day);
        }
        let utc = i128::from(at.value(row)) + self.host.clock_offset?;
        i64::try_from(utc).ok().map(day)
    }
}
