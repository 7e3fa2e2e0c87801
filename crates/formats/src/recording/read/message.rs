//! Messages of a stream, and checks of their claims. Arrow allocates the memory that a message asks
//! for, and slices at the offsets that it gives; so all of that is checked here first.

use std::io::{self, Read};

use arrow_ipc::{CompressionType, Message, RecordBatch, root_as_message};
use arrow_schema::{DataType, Schema};

/// Maximum size of a message's metadata. That of vramscope's schema has 10 KiB.
const MAX_METADATA_BYTES: u64 = 16 << 20;

/// Maximum size of a message's body, and of its uncompressed buffers. Those of vramscope have
/// 16,384 rows and less than 10 MiB.
const MAX_BODY_BYTES: u64 = 256 << 20;

/// Maximum number of rows of a message.
const MAX_ROWS: i64 = 1 << 20;

const CONTINUATION_MARKER: [u8; 4] = [0xff; 4];

/// The next item of a stream.
pub(crate) enum NextMessage {
    /// A message: metadata and body.
    Message(Vec<u8>, Vec<u8>),
    /// The end-of-stream marker.
    End,
    /// The file ends without a marker, between messages or inside of one.
    Cut,
}

/// Error of reading a stream.
#[derive(Debug)]
pub(crate) enum StreamError {
    /// Error of the system.
    Io(io::Error),
    /// The stream is invalid.
    Broken(String),
}

impl From<io::Error> for StreamError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn broken<T>(problem: impl Into<String>) -> Result<T, StreamError> {
    Err(StreamError::Broken(problem.into()))
}

/// A stream and the read position.
pub(crate) struct MessageReader<R> {
    input: R,
    /// Number of bytes read.
    pub(crate) offset: u64,
    /// Offset of the last message.
    pub(crate) message_start: u64,
    /// Length of the file, if known.
    pub(crate) total: Option<u64>,
}

impl<R: Read> MessageReader<R> {
    pub(crate) const fn new(input: R, total: Option<u64>) -> Self {
        Self { input, offset: 0, message_start: 0, total }
    }

    /// Reads the next message.
    pub(crate) fn next(&mut self) -> Result<NextMessage, StreamError> {
        self.message_start = self.offset;
        let Some(mark) = self.four()? else { return Ok(NextMessage::Cut) };
        // A file system that lost power leaves zeros.
        if mark == [0; 4] {
            return Ok(NextMessage::Cut);
        }
        if mark != CONTINUATION_MARKER {
            return broken("no message begins there");
        }
        let Some(length) = self.four()? else { return Ok(NextMessage::Cut) };
        let length = match u64::try_from(i32::from_le_bytes(length)) {
            Ok(0) => return Ok(NextMessage::End),
            Ok(length) if length <= MAX_METADATA_BYTES => length,
            _ => return broken("a message has an impossible length"),
        };
        let Some(meta) = self.exactly(length)? else { return Ok(NextMessage::Cut) };
        let Ok(message) = root_as_message(&meta) else {
            return broken("the description of a message makes no sense");
        };
        let length = match u64::try_from(message.bodyLength()) {
            Ok(length) if length <= MAX_BODY_BYTES => length,
            _ => return broken("a message has an impossible length"),
        };
        let Some(body) = self.exactly(length)? else { return Ok(NextMessage::Cut) };
        Ok(NextMessage::Message(meta, body))
    }

    fn four(&mut self) -> Result<Option<[u8; 4]>, StreamError> {
        Ok(self.exactly(4)?.and_then(|bytes| bytes.try_into().ok()))
    }

    /// Reads `length` bytes, if available. Memory is allocated for available bytes, not for claimed
    /// ones.
    fn exactly(&mut self, length: u64) -> Result<Option<Vec<u8>>, StreamError> {
        if self.total.is_some_and(|total| length > total.saturating_sub(self.offset)) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        let read = self.input.by_ref().take(length).read_to_end(&mut bytes)?;
        self.offset = self.offset.saturating_add(read as u64);
        Ok((read as u64 == length).then_some(bytes))
    }
}

/// Returns the metadata of a message from [`MessageReader::next`].
pub(crate) fn described(meta: &[u8]) -> Result<Message<'_>, StreamError> {
    root_as_message(meta).map_err(|error| StreamError::Broken(error.to_string()))
}

/// Returns the number of nodes of a column, and the item size of each of its buffers. Bits count as
/// bytes, and offsets have four.
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

/// Checks that all columns have types that recordings use; no others are read.
pub(crate) fn check_schema(schema: &Schema) -> Result<(), StreamError> {
    for field in schema.fields() {
        if shape_of(field.data_type()).is_none() {
            return broken(format!(
                "the column `{}` is of a type that recordings do not have",
                crate::sanitize::sanitize(field.name())
            ));
        }
    }
    Ok(())
}

/// Checks that a batch matches its schema, and that all its buffers are inside of its body.
pub(crate) fn check_batch(
    batch: &RecordBatch<'_>,
    body: &[u8],
    schema: &Schema,
) -> Result<(), StreamError> {
    let rows = batch.length();
    if !(0..=MAX_ROWS).contains(&rows) {
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
    if sum > MAX_BODY_BYTES {
        return broken("a batch is larger than any recording has");
    }
    Ok(())
}

/// Checks the lengths of columns; returns the item sizes of all buffers.
fn check_nodes(
    batch: &RecordBatch<'_>,
    rows: i64,
    schema: &Schema,
) -> Result<Vec<usize>, StreamError> {
    let mut nodes = batch.nodes().into_iter().flatten();
    let mut widths = Vec::new();
    for field in schema.fields() {
        let (own, needed) = shape_of(field.data_type()).unwrap_or_default();
        widths.extend(needed);
        for inner in 0..own {
            let Some(node) = nodes.next() else { return broken("a batch lacks columns") };
            let possible = if inner == 0 { rows..=rows } else { 0..=MAX_ROWS << 3 };
            if !possible.contains(&node.length())
                || !(0..=node.length()).contains(&node.null_count())
            {
                return broken("a column has an impossible length");
            }
        }
    }
    let actual = batch.buffers().map_or(0, |buffers| buffers.len());
    if nodes.next().is_some() || actual != widths.len() || batch.variadicBufferCounts().is_some() {
        return broken("a batch does not fit the schema");
    }
    Ok(widths)
}

/// Returns the uncompressed size that a compressed buffer claims.
fn uncompressed(bytes: &[u8]) -> Result<u64, StreamError> {
    let prefix = bytes.get(..8).and_then(|prefix| <[u8; 8]>::try_from(prefix).ok());
    match prefix.map(i64::from_le_bytes) {
        // Stored uncompressed.
        Some(-1) => Ok(bytes.len().saturating_sub(8) as u64),
        Some(length) if length >= 0 => Ok(length.unsigned_abs()),
        _ => broken("a compressed buffer has an impossible length"),
    }
}
