//! Recordings: rows of an Arrow stream, fields of its messages, and values in its buffers.

use arrow_array::RecordBatch;
use arrow_ipc::MetadataVersion;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};

use super::fields::{self, Field};
use super::{Random, change_part};
use crate::panics::{Tolerated, tolerate};

/// Maximum number of rows of one part, and of a batch that is copied. Small inputs are fast.
const MAX_ROWS: usize = 16;
const MAX_BATCH_ROWS: usize = 64;

/// Maximum number of batches.
const MAX_BATCHES: usize = 3;

/// Changes rows, or a part of one message. Compressed streams are written again without
/// compression: changes would only show how zstd detects errors.
pub fn recording(bytes: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let messages = messages(bytes);
    if messages.is_empty() {
        return None;
    }
    if messages.iter().any(|message| message.is_compressed) || random.below(4) == 0 {
        return rows(bytes, random);
    }
    let mut new = bytes.to_vec();
    let message = random.one_of(&messages)?;
    match random.below(8) {
        0 => {
            let meta = new.get_mut(message.meta..message.body)?;
            let words: Vec<_> = (0..meta.len() / 4).map(|n| Field::little(n * 4, 4)).collect();
            fields::change(meta, &words, random)?;
        }
        1 => drop(new.drain(message.start..message.end)),
        2 => {
            let copy = new.get(message.start..message.end)?.to_vec();
            new.splice(message.start..message.start, copy);
        }
        3 => change_part(new.get_mut(message.body..message.end)?, random),
        _ => {
            let body = new.get_mut(message.body..message.end)?;
            let width = [1, 2, 4, 8][random.below(4)];
            let at = random.below(body.len() / width) * width;
            fields::change(body, &[Field::little(at, width)], random)?;
        }
    }
    Some(new)
}

/// A message: its start, metadata, body and end.
struct Message {
    start: usize,
    meta: usize,
    body: usize,
    end: usize,
    is_compressed: bool,
}

fn messages(bytes: &[u8]) -> Vec<Message> {
    let mut messages = Vec::new();
    let mut start = 0;
    while bytes.get(start..start + 4) == Some(&[0xff; 4]) {
        let length = Field::little(start + 4, 4).get(bytes).unwrap_or(0) as usize;
        let meta = start + 8;
        let Some(description) = bytes.get(meta..meta.saturating_add(length)) else { break };
        let Ok(message) = arrow_ipc::root_as_message(description) else { break };
        let Ok(body_bytes) = usize::try_from(message.bodyLength()) else { break };
        let Some(end) = (meta + length).checked_add(body_bytes) else { break };
        if end > bytes.len() {
            break;
        }
        let batch = message.header_as_record_batch();
        let is_compressed = batch.is_some_and(|batch| batch.compression().is_some());
        messages.push(Message { start, meta, body: meta + length, end, is_compressed });
        start = end;
    }
    messages
}

/// Writes parts of the rows again, in any order.
fn rows(bytes: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    // Arrow trusts the stream, and panics on some. The last batch may be truncated.
    let read = || Some(StreamReader::try_new(bytes, None).ok()?.map_while(Result::ok).collect());
    let batches: Vec<RecordBatch> =
        tolerate(Tolerated::All, || std::panic::catch_unwind(read)).ok()??;
    // Small buffers need little padding.
    let options = IpcWriteOptions::try_new(8, false, MetadataVersion::V5).ok()?;
    let schema = batches.first()?.schema();
    let mut writer = StreamWriter::try_new_with_options(Vec::new(), &schema, options).ok()?;
    // The first batch has the header.
    let (first, count) = random.part(batches.len(), MAX_BATCHES);
    let first = if random.below(2) == 0 { 0 } else { first };
    for batch in batches.iter().skip(first).take(count) {
        let (start, rows) = match random.below(3) {
            0 => (0, MAX_BATCH_ROWS),
            _ => random.part(batch.num_rows(), MAX_ROWS),
        };
        writer.write(&batch.slice(start, rows.min(batch.num_rows() - start))).ok()?;
    }
    writer.finish().ok()?;
    writer.into_inner().ok()
}
