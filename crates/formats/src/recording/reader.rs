//! Reads a recording, row by row. A file that was cut off (by a tracer that was killed, or a full
//! disk) is read up to the cut.

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
use engine::stack::Frame;

use super::cells::{Cells, Places};
use super::decode::{self, Names};
use super::functions::{Functions, Resolver};
use super::message::{self, Messages, Next, Trouble};
use super::schema::Column;
use super::{Row, VERSION, VERSION_KEY};
use crate::import::{Error, Warning};

const ADVICE: &str = "record again, or read the part before it with another tool";

/// The name of the column `type` before the first release.
const UNRELEASED_TYPE_COLUMN: &str = "row";

/// Whether a file that begins like this may be a recording: it is an Arrow stream.
#[must_use]
pub fn looks_like(head: &[u8]) -> bool {
    head.starts_with(&[0xff; 4])
}

/// Reads rows from a file or pipe.
pub struct Reader<R> {
    path: PathBuf,
    messages: Messages<R>,
    schema: SchemaRef,
    places: Places,
    known: Resolver,
    functions: Functions,
    /// Frames by the file's own numbers.
    frames: HashMap<u32, Frame>,
    /// Only rows that tell what sites look like are wanted.
    only_sites: bool,
    batch: Option<(RecordBatch, usize)>,
    over: bool,
    /// The last row said that the trace ended.
    ended: bool,
    cut: bool,
    unknown: u64,
}

impl Reader<BufReader<File>> {
    /// Opens a file. `known` finds driver functions in this version's hook table.
    pub fn open(path: &Path, known: Resolver) -> Result<Self, Error> {
        let io = |source| Error::Io { path: path.into(), source };
        let file = File::open(path).map_err(io)?;
        let facts = file.metadata().map_err(io)?;
        let total = facts.is_file().then_some(facts.len());
        Self::new(BufReader::new(file), path, total, known)
    }
}

impl<R: Read> Reader<R> {
    /// Reads the schema. `path` is for messages; `total` is the length of the input, where known.
    pub fn new(input: R, path: &Path, total: Option<u64>, known: Resolver) -> Result<Self, Error> {
        let mut messages = Messages::new(input, total);
        let schema = match messages.next() {
            Ok(Next::Message(meta, _)) => read_schema(&meta),
            Ok(Next::Cut) if messages.place > 4 => {
                Err(Trouble::Broken("the file is truncated within its schema".into()))
            }
            Ok(Next::End | Next::Cut) | Err(Trouble::Broken(_)) => {
                return Err(not_recognised(
                    path,
                    "not an Arrow stream; `vramscope record -o FILE` writes recordings",
                ));
            }
            Err(trouble) => Err(trouble),
        };
        let schema = schema.map_err(|trouble| told(path, 0, trouble))?;
        check_version(&schema, path)?;
        check_column_names(&schema, path)?;
        let places = message::check_schema(&schema)
            .and_then(|()| Places::find(&schema).map_err(Trouble::Broken))
            .map_err(|trouble| told(path, 0, trouble))?;
        Ok(Self {
            path: path.into(),
            messages,
            schema,
            places,
            known,
            functions: Functions::default(),
            frames: HashMap::new(),
            only_sites: false,
            batch: None,
            over: false,
            ended: false,
            cut: false,
            unknown: 0,
        })
    }

    /// Leaves out every row but those that tell what sites look like, at little cost.
    #[must_use]
    pub fn only_sites(mut self) -> Self {
        self.only_sites = true;
        self
    }

    /// The next row; none at the end of the file or at the place where it is cut off.
    pub fn next_row(&mut self) -> Result<Option<Row>, Error> {
        loop {
            if let Some((batch, row)) = &mut self.batch
                && *row < batch.num_rows()
            {
                let cells = Cells { batch, places: &self.places, row: *row };
                *row += 1;
                if self.only_sites && !decode::is_of_site(cells) {
                    continue;
                }
                let Self { functions, frames, .. } = self;
                let mut names = Names { functions, frames, known: self.known };
                let row = decode::row(cells, &mut names);
                let row = row
                    .map_err(|bad| told(&self.path, self.messages.began, Trouble::Broken(bad.0)))?;
                let Some(row) = row else { continue };
                self.unknown += u64::from(row == Row::Unknown);
                self.ended = matches!(row, Row::End(_));
                return Ok(Some(row));
            }
            if self.over {
                return Ok(None);
            }
            let next = self.next_batch();
            self.batch = next.map_err(|trouble| {
                self.over = true;
                told(&self.path, self.messages.began, trouble)
            })?;
        }
    }

    /// The next rows as they are, with the columns of this version; those that the file does not
    /// have are null. None at the end, or where the file is cut off.
    #[cfg(feature = "parquet")]
    pub(crate) fn next_table(&mut self) -> Result<Option<RecordBatch>, Error> {
        if self.over {
            return Ok(None);
        }
        let table = self.next_batch().and_then(|next| {
            let Some((batch, _)) = next else { return Ok(None) };
            let table = self.places.table(&batch);
            table.map(Some).map_err(|error| {
                let error = error.to_string();
                Trouble::Broken(format!("Arrow says: {}", crate::plain::plain(&error)))
            })
        });
        table.map_err(|trouble| {
            self.over = true;
            told(&self.path, self.messages.began, trouble)
        })
    }

    fn next_batch(&mut self) -> Result<Option<(RecordBatch, usize)>, Trouble> {
        self.batch = None;
        let (meta, body) = match self.messages.next()? {
            Next::Message(meta, body) => (meta, body),
            next @ (Next::End | Next::Cut) => {
                self.over = true;
                self.cut = matches!(next, Next::Cut);
                return Ok(None);
            }
        };
        let message = message::described(&meta)?;
        let Some(batch) = message.header_as_record_batch() else {
            return Err(Trouble::Broken("a message is not a record batch".into()));
        };
        message::check_batch(&batch, &body, &self.schema)?;
        let (body, version) = (Buffer::from_vec(body), message.version());
        let batch = guarded(|| {
            let schema = SchemaRef::clone(&self.schema);
            read_record_batch(&body, batch, schema, &HashMap::new(), None, &version)
        })?;
        Ok(Some((batch, 0)))
    }

    /// How far the file was read, and how long it is where that is known.
    pub const fn progress(&self) -> (u64, Option<u64>) {
        (self.messages.place, self.messages.total)
    }

    /// The driver functions that failed calls named so far.
    pub const fn functions(&self) -> &Functions {
        &self.functions
    }

    /// What should be known of the file, after its last row was read.
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        let mut warnings = Vec::new();
        let mut warn =
            |text: String, count, inexact| warnings.push(Warning { text, count, inexact });
        if self.cut || !self.ended {
            let text = format!(
                "recording truncated at byte {} (tracer killed or disk full); later events are \
                 missing",
                self.messages.began
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

/// Lets Arrow read what was checked. It should not panic on that; if it does on input that nobody
/// thought of, the file is to blame and not the program.
fn guarded<T>(read: impl FnOnce() -> Result<T, ArrowError>) -> Result<T, Trouble> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(error)) => {
            let error = error.to_string();
            Err(Trouble::Broken(format!("Arrow says: {}", crate::plain::plain(&error))))
        }
        Err(_) => Err(Trouble::Broken("a message makes no sense".into())),
    }
}

fn read_schema(meta: &[u8]) -> Result<SchemaRef, Trouble> {
    let message = message::described(meta)?;
    let Some(schema) = message.header_as_schema() else {
        return Err(Trouble::Broken("the first message is not a schema".into()));
    };
    guarded(|| try_fb_to_schema(schema)).map(Arc::new)
}

fn check_version(schema: &SchemaRef, path: &Path) -> Result<(), Error> {
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

/// Columns had other names before the first release, and such files also say version 1.
fn check_column_names(schema: &SchemaRef, path: &Path) -> Result<(), Error> {
    let has = |name: &str| schema.column_with_name(name).is_some();
    if has(UNRELEASED_TYPE_COLUMN) && !has(Column::Type.name()) {
        return Err(not_recognised(
            path,
            "a recording of an unreleased version of vramscope, with other column names: record \
             again with this version",
        ));
    }
    Ok(())
}

fn not_recognised(path: &Path, why: &str) -> Error {
    Error::NotRecognised { path: path.into(), why: why.to_owned() }
}

fn told(path: &Path, place: u64, trouble: Trouble) -> Error {
    match trouble {
        Trouble::Io(source) => Error::Io { path: path.into(), source },
        Trouble::Broken(what) => Error::Broken {
            path: path.into(),
            what,
            place: format!("byte {place}"),
            advice: ADVICE.to_owned(),
        },
    }
}
