//! The messages of a stream, and what they claim. Arrow allocates what a message says that it needs,
//! and slices where it says that buffers are; so all of that is compared here with what is there,
//! before Arrow sees it.

use std::io::{self, Read};

use arrow_ipc::{CompressionType, Message, RecordBatch, root_as_message};
use arrow_schema::{DataType, Schema};

/// The longest description of a message. That of our own schema has 10 KiB.
const META_MOST: u64 = 16 << 20;

/// The longest body of a message, and the most that its buffers may become uncompressed. Our own
/// have 16,384 rows and less than 10 MiB.
const BODY_MOST: u64 = 256 << 20;

/// Rows of a message at most.
const ROWS_MOST: i64 = 1 << 20;

const CONTINUES: [u8; 4] = [0xff; 4];

/// What comes next in a stream.
pub(super) enum Next {
    /// A message: description and body.
    Message(Vec<u8>, Vec<u8>),
    /// The mark of the end.
    End,
    /// The file is over without one, at a border of messages or inside of one.
    Cut,
}

/// Why a stream cannot be read on.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The system says no.
    Io(io::Error),
    /// What is wrong.
    Broken(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn broken<T>(what: impl Into<String>) -> Result<T, Trouble> {
    Err(Trouble::Broken(what.into()))
}

/// A stream and how far it was read.
pub(super) struct Messages<R> {
    input: R,
    /// Bytes that were read.
    pub(super) place: u64,
    /// Where the message began that was read last.
    pub(super) began: u64,
    /// How long the file is, where that is known.
    pub(super) total: Option<u64>,
}

impl<R: Read> Messages<R> {
    pub(super) const fn new(input: R, total: Option<u64>) -> Self {
        Self { input, place: 0, began: 0, total }
    }

    /// Reads the next message.
    pub(super) fn next(&mut self) -> Result<Next, Trouble> {
        self.began = self.place;
        let Some(mark) = self.four()? else { return Ok(Next::Cut) };
        // A file system that lost power leaves zeros behind.
        if mark == [0; 4] {
            return Ok(Next::Cut);
        }
        if mark != CONTINUES {
            return broken("no message begins there");
        }
        let Some(length) = self.four()? else { return Ok(Next::Cut) };
        let length = match u64::try_from(i32::from_le_bytes(length)) {
            Ok(0) => return Ok(Next::End),
            Ok(length) if length <= META_MOST => length,
            _ => return broken("a message has an impossible length"),
        };
        let Some(meta) = self.exactly(length)? else { return Ok(Next::Cut) };
        let Ok(message) = root_as_message(&meta) else {
            return broken("the description of a message makes no sense");
        };
        let length = match u64::try_from(message.bodyLength()) {
            Ok(length) if length <= BODY_MOST => length,
            _ => return broken("a message has an impossible length"),
        };
        let Some(body) = self.exactly(length)? else { return Ok(Next::Cut) };
        Ok(Next::Message(meta, body))
    }

    fn four(&mut self) -> Result<Option<[u8; 4]>, Trouble> {
        Ok(self.exactly(4)?.and_then(|bytes| bytes.try_into().ok()))
    }

    /// So many bytes, if they are there. Memory is taken for what is there, not for what is claimed.
    fn exactly(&mut self, length: u64) -> Result<Option<Vec<u8>>, Trouble> {
        if self.total.is_some_and(|total| length > total.saturating_sub(self.place)) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        let read = self.input.by_ref().take(length).read_to_end(&mut bytes)?;
        self.place = self.place.saturating_add(read as u64);
        Ok((read as u64 == length).then_some(bytes))
    }
}

/// The description of a message that [`Messages::next`] gave.
pub(super) fn described(meta: &[u8]) -> Result<Message<'_>, Trouble> {
    root_as_message(meta).map_err(|error| Trouble::Broken(error.to_string()))
}

/// How many nodes a column has, and how many bytes the items of each of its buffers. Bits are bytes
/// here, and offsets have four.
fn shape_of(of: &DataType) -> Option<(usize, Vec<usize>)> {
    match of {
        DataType::Utf8 => Some((1, vec![1, 4, 1])),
        DataType::Boolean => Some((1, vec![1, 1])),
        DataType::List(item) if item.data_type().is_integer() => {
            Some((2, vec![1, 4, 1, item.data_type().primitive_width()?]))
        }
        number if number.is_numeric() || matches!(number, DataType::Timestamp(..)) => {
            Some((1, vec![1, number.primitive_width()?]))
        }
        _ => None,
    }
}

/// Whether columns are of the few types that a recording has; those are all that is read.
pub(super) fn check_schema(schema: &Schema) -> Result<(), Trouble> {
    for field in schema.fields() {
        if shape_of(field.data_type()).is_none() {
            return broken(format!(
                "the column `{}` is of a type that recordings do not have",
                crate::plain::plain(field.name())
            ));
        }
    }
    Ok(())
}

/// Whether a batch is what its schema says, and everything that it describes is inside of its body.
pub(super) fn check_batch(
    batch: &RecordBatch<'_>,
    body: &[u8],
    schema: &Schema,
) -> Result<(), Trouble> {
    let rows = batch.length();
    if !(0..=ROWS_MOST).contains(&rows) {
        return broken("a batch has an impossible number of rows");
    }
    let widths = check_nodes(batch, rows, schema)?;
    let compressed = match batch.compression() {
        None => false,
        Some(compression) if compression.codec() == CompressionType::ZSTD => true,
        Some(_) => return broken("a batch is compressed in another way than zstd"),
    };
    let mut sum = 0_u64;
    for (buffer, width) in batch.buffers().into_iter().flatten().zip(widths) {
        let end = buffer.offset().checked_add(buffer.length()).map(usize::try_from);
        let range = usize::try_from(buffer.offset()).ok().zip(end.and_then(Result::ok));
        let Some(bytes) = range.and_then(|(from, to)| body.get(from..to)) else {
            return broken("a buffer is outside of its batch");
        };
        let length = match bytes {
            [] => 0,
            bytes if compressed => uncompressed(bytes)?,
            bytes => bytes.len() as u64,
        };
        if !length.is_multiple_of(width as u64) {
            return broken("a buffer ends inside of an item");
        }
        sum = sum.saturating_add(length);
    }
    if sum > BODY_MOST {
        return broken("a batch is larger than any recording has");
    }
    Ok(())
}

/// Whether columns are as long as they should be; gives the widths of the items of all buffers.
fn check_nodes(batch: &RecordBatch<'_>, rows: i64, schema: &Schema) -> Result<Vec<usize>, Trouble> {
    let mut nodes = batch.nodes().into_iter().flatten();
    let mut widths = Vec::new();
    for field in schema.fields() {
        let (own, needed) = shape_of(field.data_type()).unwrap_or_default();
        widths.extend(needed);
        for inner in 0..own {
            let Some(node) = nodes.next() else { return broken("a batch lacks columns") };
            let possible = if inner == 0 { rows..=rows } else { 0..=ROWS_MOST << 3 };
            if !possible.contains(&node.length())
                || !(0..=node.length()).contains(&node.null_count())
            {
                return broken("a column has an impossible length");
            }
        }
    }
    let there = batch.buffers().map_or(0, |buffers| buffers.len());
    if nodes.next().is_some() || there != widths.len() || batch.variadicBufferCounts().is_some() {
        return broken("a batch does not fit the schema");
    }
    Ok(widths)
}

/// What a compressed buffer says that it becomes.
fn uncompressed(bytes: &[u8]) -> Result<u64, Trouble> {
    let prefix = bytes.get(..8).and_then(|prefix| <[u8; 8]>::try_from(prefix).ok());
    match prefix.map(i64::from_le_bytes) {
        // Stored as it is.
        Some(-1) => Ok(bytes.len().saturating_sub(8) as u64),
        Some(length) if length >= 0 => Ok(length.unsigned_abs()),
        _ => broken("a compressed buffer has an impossible length"),
    }
}
