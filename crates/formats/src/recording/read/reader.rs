//! Reads a recording row by row. A truncated file (tracer killed, or disk full) is read up to its
//! end.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::read_record_batch;
use arrow_schema::{ArrowError, SchemaRef};
use engine::model::Frame;

use super::super::function_table::{FunctionLookup, FunctionTable};
use super::super::schema::Column;
use super::super::{RecordingRow, VERSION, VERSION_KEY};
use super::decode::{self, IdTables};
use super::message::{self, MessageReader, NextMessage, StreamError};
use super::row_cells::{ColumnMap, RowCells};
use crate::import::{ImportError, Warning};

const DAMAGED_ADVICE: &str = "record again, or read the part before it with another tool";

/// Name of the column `type` before the first release.
const UNRELEASED_TYPE_COLUMN: &str = "row";

/// Returns whether the start of a file may be that of a recording: an Arrow stream.
pub fn looks_like(head: &[u8]) -> bool {
    head.starts_with(&[0xff; 4])
}

/// Reads rows from a file or pipe.
pub struct RecordingReader<R> {
    path: PathBuf,
    messages: MessageReader<R>,
    schema: SchemaRef,
    columns: ColumnMap,
    lookup: FunctionLookup,
    functions: FunctionTable,
    /// Frames by the file's own ids.
    frames: HashMap<u32, Frame>,
    /// Whether only rows that define sites are returned.
    only_sites: bool,
    batch: Option<(RecordBatch, usize)>,
    finished: bool,
    /// Whether the last row was the end of the trace.
    ended: bool,
    truncated: bool,
    unknown: u64,
}

impl RecordingReader<BufReader<File>> {
    /// Opens a file. `lookup` finds driver functions in this version's hook table.
    pub fn open(path: &Path, lookup: FunctionLookup) -> Result<Self, ImportError> {
        let io = |source| ImportError::Io { path: path.into(), source };
        let file = File::open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        let total = metadata.is_file().then_some(metadata.len());
        Self::new(BufReader::new(file), path, total, lookup)
    }
}

impl<R: Read> RecordingReader<R> {
    /// Reads the schema. `path` is for messages; `total` is the length of the input, if known.
    pub fn new(
        input: R,
        path: &Path,
        total: Option<u64>,
        lookup: FunctionLookup,
    ) -> Result<Self, ImportError> {
        let mut messages = MessageReader::new(input, total);
        let schema = match messages.next() {
            Ok(NextMessage::Message(meta, _)) => read_schema(&meta),
            Ok(NextMessage::Cut) if messages.offset > 4 => {
                Err(StreamError::Broken("the file is truncated within its schema".into()))
            }
            Ok(NextMessage::End | NextMessage::Cut) | Err(StreamError::Broken(_)) => {
                return Err(not_recognised(
                    path,
                    "not an Arrow stream; `vramscope record -o FILE` writes recordings",
                ));
            }
            Err(error) => Err(error),
        };
        let schema = schema.map_err(|error| read_error(path, 0, error))?;
        check_version(&schema, path)?;
        check_column_names(&schema, path)?;
        let columns = message::check_schema(&schema)
            .and_then(|()| ColumnMap::find(&schema).map_err(StreamError::Broken))
            .map_err(|error| read_error(path, 0, error))?;
        Ok(Self {
            path: path.into(),
            messages,
            schema,
            columns,
            lookup,
            functions: FunctionTable::default(),
            frames: HashMap::new(),
            only_sites: false,
            batch: None,
            finished: false,
            ended: false,
            truncated: false,
            unknown: 0,
        })
    }

    /// Skips every row that does not define a site, at little cost.
    #[must_use]
    pub fn only_sites(mut self) -> Self {
        self.only_sites = true;
        self
    }

    /// Returns the next row; none at the end of the file or where it is truncated.
    pub fn next_row(&mut self) -> Result<Option<RecordingRow>, ImportError> {
        loop {
            if let Some((batch, row)) = &mut self.batch
                && *row < batch.num_rows()
            {
                let cells = RowCells { batch, columns: &self.columns, row: *row };
                *row += 1;
                if self.only_sites && !decode::is_of_site(cells) {
                    continue;
                }
                let Self { functions, frames, .. } = self;
                let mut tables = IdTables { functions, frames, lookup: self.lookup };
                let row = decode::row(cells, &mut tables);
                let row = row.map_err(|bad| {
                    read_error(&self.path, self.messages.message_start, StreamError::Broken(bad.0))
                })?;
                let Some(row) = row else { continue };
                self.unknown += u64::from(row == RecordingRow::Unknown);
                self.ended = matches!(row, RecordingRow::End(_));
                return Ok(Some(row));
            }
            if self.finished {
                return Ok(None);
            }
            let next = self.next_batch();
            self.batch = next.map_err(|error| {
                self.finished = true;
                read_error(&self.path, self.messages.message_start, error)
            })?;
        }
    }

    /// Returns the next rows with the columns of this version; those that the file does not have
    /// are null. None at the end, or where the file is truncated.
    pub(crate) fn next_table(&mut self) -> Result<Option<RecordBatch>, ImportError> {
        if self.finished {
            return Ok(None);
        }
        let table = self.next_batch().and_then(|next| {
            let Some((batch, _)) = next else { return Ok(None) };
            let table = self.columns.table(&batch);
            table.map(Some).map_err(|error| {
                let error = error.to_string();
                StreamError::Broken(format!("Arrow says: {}", crate::sanitize::sanitize(&error)))
            })
        });
        table.map_err(|error| {
            self.finished = true;
            read_error(&self.path, self.messages.message_start, error)
        })
    }

    fn next_batch(&mut self) -> Result<Option<(RecordBatch, usize)>, StreamError> {
        self.batch = None;
        let (meta, body) = match self.messages.next()? {
            NextMessage::Message(meta, body) => (meta, body),
            next @ (NextMessage::End | NextMessage::Cut) => {
                self.finished = true;
                self.truncated = matches!(next, NextMessage::Cut);
                return Ok(None);
            }
        };
        let message = message::described(&meta)?;
        let Some(batch) = message.header_as_record_batch() else {
            return Err(StreamError::Broken("a message is not a record batch".into()));
        };
        message::check_batch(&batch, &body, &self.schema)?;
        let (body, version) = (Buffer::from_vec(body), message.version());
        let batch = guarded(|| {
            let schema = SchemaRef::clone(&self.schema);
            read_record_batch(&body, batch, schema, &HashMap::new(), None, &version)
        })?;
        Ok(Some((batch, 0)))
    }

    /// Returns the number of bytes read, and the length of the file if known.
    pub const fn progress(&self) -> (u64, Option<u64>) {
        (self.messages.offset, self.messages.total)
    }

    /// Returns the driver functions of failed calls so far.
    pub const fn functions(&self) -> &FunctionTable {
        &self.functions
    }

    /// Returns warnings about the file, after its last row was read.
    pub fn warnings(&self) -> Vec<Warning> {
        let mut warnings = Vec::new();
        let mut warn =
            |text: String, count, inexact| warnings.push(Warning { text, count, inexact });
        if self.truncated || !self.ended {
            let text = format!(
                "recording truncated at byte {} (tracer killed or disk full); later events are \
                 missing",
                self.messages.message_start
            );
            warn(text, 1, true);
        }
        if self.unknown > 0 {
            let text = "rows of unknown type skipped (written by a newer version)";
            warn(text.to_owned(), self.unknown, true);
        }
        warnings
    }
}

/// Calls Arrow with checked input. It should not panic; if it does on an unforeseen input, that is
/// reported as an error of the file.
fn guarded<T>(read: impl FnOnce() -> Result<T, ArrowError>) -> Result<T, StreamError> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(error)) => {
            let error = error.to_string();
            Err(StreamError::Broken(format!("Arrow says: {}", crate::sanitize::sanitize(&error))))
        }
        Err(_) => Err(StreamError::Broken("a message makes no sense".into())),
    }
}

fn read_schema(meta: &[u8]) -> Result<SchemaRef, StreamError> {
    let message = message::described(meta)?;
    let Some(schema) = message.header_as_schema() else {
        return Err(StreamError::Broken("the first message is not a schema".into()));
    };
    guarded(|| try_fb_to_schema(schema)).map(Arc::new)
}

fn check_version(schema: &SchemaRef, path: &Path) -> Result<(), ImportError> {
    let Some(version) = schema.metadata().get(VERSION_KEY) else {
        return Err(not_recognised(path, "an Arrow stream, but not one that vramscope wrote"));
    };
    match version.parse::<u32>() {
        Ok(VERSION) => Ok(()),
        Ok(newer) if newer > VERSION => Err(not_recognised(
            path,
            &format!(
                "a recording of version {newer}, and this program reads version {VERSION}: read it \
                 with a newer vramscope"
            ),
        )),
        _ => Err(not_recognised(path, "invalid recording version")),
    }
}

/// Detects files from before the first release: their columns have other names, but they also have
/// version 1.
fn check_column_names(schema: &SchemaRef, path: &Path) -> Result<(), ImportError> {
    let has = |name: &str| schema.column_with_name(name).is_some();
    if has(UNRELEASED_TYPE_COLUMN) && !has(Column::RowType.name()) {
        return Err(not_recognised(
            path,
            "a recording of an unreleased version of vramscope, with other column names: record \
             again with this version",
        ));
    }
    Ok(())
}

fn not_recognised(path: &Path, reason: &str) -> ImportError {
    ImportError::NotRecognized { path: path.into(), reason: reason.to_owned() }
}

fn read_error(path: &Path, offset: u64, error: StreamError) -> ImportError {
    match error {
        StreamError::Io(source) => ImportError::Io { path: path.into(), source },
        StreamError::Broken(problem) => ImportError::Broken {
            path: path.into(),
            problem,
            location: format!("byte {offset}"),
            advice: DAMAGED_ADVICE.to_owned(),
        },
    }
}
