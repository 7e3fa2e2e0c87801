//! Tables of the agent in rolling files.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Field, Schema, SchemaRef};
use engine::metrics::MetricSet;
use engine::model::Timestamp;
use engine::snapshot::Snapshot;

use super::file::File;
use super::tables;
use crate::export::ReportContext;
use crate::report::incident::IncidentRow;

/// Version of the schema of all tables. Columns may be added within a version; it changes if the
/// meaning of a column does.
pub const SCHEMA_VERSION: u16 = 2;

/// Bytes of rows that are buffered before they are written to the file.
const FLUSH_BYTES: usize = 4 << 20;

engine::named_enum! {
    /// Tables of the agent, by the names of their directories.
    pub enum LiveTable {
        /// All metrics.
        Metrics => "metrics",
        /// One row per GPU.
        Gpus => "gpus",
        /// One row per process.
        Processes => "processes",
        /// One row per process and device.
        Devices => "devices",
        /// One row per process and site.
        Sites => "sites",
        /// One row per site that leaks.
        Suspects => "suspects",
        /// One row per new peak of a process, and at its end.
        Peaks => "peaks",
        /// One row per incident, and one for each change of it.
        Incidents => "incidents",
    }
}

impl LiveTable {
    /// Whether the table has a row as soon as something happens; others have samples.
    const fn has_events(self) -> bool {
        matches!(self, Self::Peaks)
    }

    fn columns(self, input: &TableSample<'_>) -> io::Result<Vec<tables::Column>> {
        match self {
            Self::Metrics => tables::metrics(input),
            Self::Gpus => Ok(tables::gpus(input)),
            Self::Processes => Ok(tables::processes(input)),
            Self::Devices => Ok(tables::devices(input)),
            Self::Sites => Ok(tables::sites(input)),
            Self::Suspects => Ok(tables::suspects(input)),
            Self::Peaks => Ok(tables::peaks(input)),
            Self::Incidents => Ok(tables::incidents(input)),
        }
    }
}

/// Input for the rows of one time.
#[derive(Clone, Copy, Debug)]
pub struct TableSample<'a> {
    /// Snapshot of the ledger.
    pub snapshot: &'a Snapshot,
    /// Metrics.
    pub metrics: &'a MetricSet,
    /// Names of GPUs, and the clock.
    pub context: &'a ReportContext,
    /// Whether directories of files and libraries are included.
    pub paths: bool,
    /// Time of the previous sample.
    pub previous: Option<Timestamp>,
    /// Start of the agent, in microseconds since 1970, UTC.
    pub agent_start: i64,
    /// Incidents that are new or changed.
    pub incidents: &'a [IncidentRow],
    /// Whether a sample is due. Otherwise the snapshot only says which processes ended.
    pub is_due: bool,
}

/// A file in progress. Its memory use is bounded.
pub struct PartFile<W: Write + Send> {
    table: LiveTable,
    schema: SchemaRef,
    file: File<W>,
    rows: u64,
}

impl<W: Write + Send> PartFile<W> {
    /// Creates a file. Only the columns of `first` are used.
    pub fn new(table: LiveTable, out: W, first: &TableSample<'_>) -> io::Result<Self> {
        let columns = table.columns(first)?;
        let fields: Vec<Field> = columns
            .iter()
            .map(|(name, array)| Field::new(*name, array.data_type().clone(), true))
            .collect();
        let version = ("vramscope.schema_version".to_owned(), SCHEMA_VERSION.to_string());
        let schema = Schema::new_with_metadata(fields, HashMap::from([version]));
        let schema: SchemaRef = Arc::new(schema);
        let file = File::new(out, &schema)?;
        Ok(Self { table, schema, file, rows: 0 })
    }

    /// Adds the rows of one time.
    pub fn add(&mut self, input: &TableSample<'_>) -> io::Result<()> {
        if !input.is_due && !self.table.has_events() {
            return Ok(());
        }
        let columns = self.table.columns(input)?.into_iter().map(|(_, array)| array).collect();
        let batch = RecordBatch::try_new(SchemaRef::clone(&self.schema), columns);
        let batch = batch.map_err(io::Error::other)?;
        self.rows = self.rows.saturating_add(batch.num_rows() as u64);
        self.file.write(&batch)?;
        if self.file.collected() >= FLUSH_BYTES {
            self.file.flush()?;
        }
        Ok(())
    }

    /// Returns the number of rows.
    pub const fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the approximate size of the file.
    pub fn bytes(&self) -> u64 {
        self.file.written().saturating_add(self.file.collected()) as u64
    }

    /// Writes the rest and completes the file.
    pub fn finish(self) -> io::Result<W> {
        self.file.finish()
    }
}
