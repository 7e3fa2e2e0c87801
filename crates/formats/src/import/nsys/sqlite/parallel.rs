//! Rows decoded by several threads, in the order of the table. Each thread walks the whole tree and
//! decodes every nth part of the leaves; the caller gets the parts in turn. Memory use is bounded by
//! the batches that wait.

use std::convert::Infallible;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread::{self, ScopedJoinHandle};

use super::page_reader::{Failed, LeafDecoder, LeafPages, PageReader};
use super::record::RecordRow;

/// Number of threads; the caller's thread has work of its own.
const DECODERS: usize = 2;

/// Leaf pages of a part.
const PART_PAGES: usize = if cfg!(test) { 3 } else { 256 };

/// Rows, and bytes of their texts, of a full batch.
const BATCH_ROWS: usize = if cfg!(test) { 7 } else { 8192 };
const BATCH_TEXT_BYTES: usize = 1 << 20;

/// Maximum number of batches of a decoder that wait.
const MAX_BATCHES: usize = 2;

/// Decoded rows of a part, or of a piece of one.
struct Batch<const N: usize> {
    /// Rows without their texts, and the offset where the text of each ends.
    rows: Vec<(RecordRow<'static, N>, usize)>,
    texts: Vec<u8>,
    is_end_of_part: bool,
}

impl<const N: usize> Batch<N> {
    const EMPTY: Self = Self { rows: Vec::new(), texts: Vec::new(), is_end_of_part: false };

    #[inline]
    fn push(&mut self, row: &RecordRow<'_, N>) {
        self.texts.extend_from_slice(row.text);
        let RecordRow { values, null, wrong, .. } = *row;
        self.rows.push((RecordRow { values, null, wrong, text: &[] }, self.texts.len()));
    }

    fn is_full(&self) -> bool {
        self.rows.len() >= BATCH_ROWS || self.texts.len() >= BATCH_TEXT_BYTES
    }

    /// Passes the rows on.
    fn each<E>(&self, each: &mut impl FnMut(&RecordRow<'_, N>) -> Result<(), E>) -> Result<(), E> {
        let mut begin = 0;
        for (row, end) in &self.rows {
            match self.texts.get(begin..*end) {
                None | Some([]) => each(row)?,
                Some(text) => each(&RecordRow { text, ..*row })?,
            }
            begin = *end;
        }
        Ok(())
    }
}

/// The caller's side of a decoder.
struct Decoder<'scope, const N: usize> {
    full: Receiver<Batch<N>>,
    /// Batches to use again.
    used: Sender<Batch<N>>,
    thread: ScopedJoinHandle<'scope, Result<(), Failed>>,
}

/// Calls `each` with the rows of a table, like [`PageReader::rows`].
pub(super) fn rows<const N: usize, E>(
    file: &PageReader,
    root: u32,
    positions: &[u8],
    mut each: impl FnMut(&RecordRow<'_, N>) -> Result<(), E>,
) -> Result<Result<(), E>, Failed> {
    thread::scope(|scope| {
        let start = |own: usize| -> Result<Decoder<'_, N>, Failed> {
            let (sender, full) = mpsc::sync_channel(MAX_BATCHES);
            let (used, empty) = mpsc::channel();
            let output = BatchOutput { batch: Batch::EMPTY, full: sender, empty };
            let decode = move || decode(file, root, positions, own, output);
            let name = "row decoder".to_owned();
            let thread = thread::Builder::new().name(name).spawn_scoped(scope, decode)?;
            Ok(Decoder { full, used, thread })
        };
        let mut decoders = (0..DECODERS).map(start).collect::<Result<Vec<_>, _>>()?;
        for turn in (0..DECODERS).cycle() {
            let Some(Decoder { full, used, .. }) = decoders.get(turn) else { break };
            loop {
                let Ok(batch) = full.recv() else {
                    // There are no more parts, or this decoder failed. Others stop, because their
                    // receivers are dropped.
                    let thread = decoders.swap_remove(turn).thread;
                    drop(decoders);
                    return thread.join().unwrap_or(Err(Failed::Unusual)).map(Ok);
                };
                if let Err(error) = batch.each(&mut each) {
                    return Ok(Err(error));
                }
                let is_end = batch.is_end_of_part;
                // Fails only if the decoder has ended.
                let _ = used.send(batch);
                if is_end {
                    break;
                }
            }
        }
        Ok(Ok(()))
    })
}

/// Decodes the parts of one decoder. An error comes after all rows before it.
fn decode<const N: usize>(
    file: &PageReader,
    root: u32,
    positions: &[u8],
    own: usize,
    mut output: BatchOutput<N>,
) -> Result<(), Failed> {
    let mut leaves = LeafPages::new(file, root);
    let mut decoder = LeafDecoder::new(file, positions);
    for part in (0..DECODERS).cycle() {
        for _ in 0..PART_PAGES {
            let decoded = match leaves.next() {
                Ok(Some(_)) if part != own => continue,
                Ok(Some(leaf)) => decoder.rows(leaf, &mut |row| {
                    output.batch.push(row);
                    Ok::<_, Infallible>(())
                }),
                Ok(None) => {
                    output.send(true);
                    return Ok(());
                }
                Err(error) => Err(error),
            };
            if let Err(error) = decoded {
                output.send(false);
                return Err(error);
            }
            if output.batch.is_full() && !output.send(false) {
                return Ok(());
            }
        }
        if part == own && !output.send(true) {
            return Ok(());
        }
    }
    Ok(())
}

/// The decoder's side.
struct BatchOutput<const N: usize> {
    batch: Batch<N>,
    full: SyncSender<Batch<N>>,
    empty: Receiver<Batch<N>>,
}

impl<const N: usize> BatchOutput<N> {
    /// Sends the rows so far. Returns whether the caller wants more.
    fn send(&mut self, is_end_of_part: bool) -> bool {
        let mut next = self.empty.try_recv().unwrap_or(Batch::EMPTY);
        next.rows.clear();
        next.texts.clear();
        let batch = std::mem::replace(&mut self.batch, next);
        self.full.send(Batch { is_end_of_part, ..batch }).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use proptest::prelude::*;

    use super::*;

    type Rows = Vec<([i64; 3], u32, u32, Vec<u8>)>;

    /// Returns the rows before the first error, and whether there was one; at most `max` rows.
    fn read(file: &PageReader, root: u32, is_parallel: bool, max: usize) -> (Rows, String) {
        let mut found = Rows::new();
        let each = |row: &RecordRow<'_, 3>| {
            if found.len() == max {
                return Err("enough");
            }
            found.push((row.values, row.null, row.wrong, row.text.to_vec()));
            Ok(())
        };
        let positions = [0, 1, 2];
        let result = if is_parallel {
            rows(file, root, &positions, each)
        } else {
            file.rows_in_sequence(root, &positions, each)
        };
        (found, format!("{result:?}"))
    }

    proptest! {
        #![proptest_config(crate::random::config(40))]

        #[test]
        fn threads_read_the_rows_of_one_also_of_a_damaged_file(
            count in 0_i64..6000,
            text in 0_usize..300,
            damage in proptest::collection::vec((0.0..1.0, any::<u8>()), 0..3),
            max in prop_oneof![Just(usize::MAX), 0_usize..6000],
        ) {
            let path = tempfile::NamedTempFile::new().unwrap();
            let database = rusqlite::Connection::open(path.path()).unwrap();
            database.execute_batch(&format!(
                "PRAGMA page_size = 512; PRAGMA synchronous = OFF; CREATE TABLE t (a, b, c);
                 WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})
                 INSERT INTO t SELECT i, i * 7919 % 65537,
                 iif(i % 5 = 0, hex(zeroblob(i * 31 % {text})), NULL) FROM n WHERE {count} > 0;",
                text = text + 1,
            )).unwrap();
            let root = database
                .query_row("SELECT rootpage FROM sqlite_master WHERE name = 't'", [], |row| row.get(0))
                .unwrap();
            drop(database);
            let file = File::options().read(true).write(true).open(path.path()).unwrap();
            let length = file.metadata().unwrap().len();
            for (at, byte) in damage {
                // The header of the file stays: readers check it first.
                file.write_all_at(&[byte], 100 + ((length - 101) as f64 * at) as u64).unwrap();
            }
            let file = PageReader::open(file).unwrap();
            prop_assert_eq!(read(&file, root, true, max), read(&file, root, false, max));
        }
    }
}
