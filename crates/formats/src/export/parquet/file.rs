//! A Parquet file that keeps the error of what it is written to: of some, Parquet keeps only the text.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;

use super::properties;

/// The first error of a writer.
type First = Arc<Mutex<Option<io::Error>>>;

/// A file that is being written.
pub(super) struct File<W: Write + Send> {
    writer: ArrowWriter<Kept<W>>,
    error: First,
}

impl<W: Write + Send> File<W> {
    pub(super) fn new(out: W, schema: &SchemaRef) -> io::Result<Self> {
        let error = First::default();
        let kept = Kept { out, error: Arc::clone(&error) };
        match ArrowWriter::try_new(kept, SchemaRef::clone(schema), properties()) {
            Ok(writer) => Ok(Self { writer, error }),
            Err(failed) => Err(cause(&error, failed)),
        }
    }

    pub(super) fn write(&mut self, batch: &RecordBatch) -> io::Result<()> {
        self.writer.write(batch).map_err(|failed| cause(&self.error, failed))
    }

    /// Ends the group of rows that is being collected.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.writer.flush().map_err(|failed| cause(&self.error, failed))
    }

    /// About how many bytes the rows that are being collected take.
    pub(super) fn collected(&self) -> usize {
        self.writer.in_progress_size()
    }

    /// Bytes that are written.
    pub(super) fn written(&self) -> usize {
        self.writer.bytes_written()
    }

    /// Writes the rest; the file is complete then.
    pub(super) fn finish(self) -> io::Result<W> {
        let Self { writer, error } = self;
        let kept = writer.into_inner().map_err(|failed| cause(&error, failed))?;
        Ok(kept.out)
    }
}

/// The error of the writer below, where that is what failed.
fn cause(first: &First, failed: ParquetError) -> io::Error {
    let first = first.lock().unwrap_or_else(PoisonError::into_inner).take();
    first.unwrap_or_else(|| io::Error::other(failed))
}

/// A writer whose first error is kept; Parquet gets one of the same kind.
struct Kept<W> {
    out: W,
    error: First,
}

impl<W> Kept<W> {
    fn keep<T>(&self, done: io::Result<T>) -> io::Result<T> {
        done.map_err(|error| {
            let kind = error.kind();
            let mut first = self.error.lock().unwrap_or_else(PoisonError::into_inner);
            // Writers try again after these.
            if kind != io::ErrorKind::Interrupted {
                first.get_or_insert(error);
            }
            kind.into()
        })
    }
}

impl<W: Write> Write for Kept<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = self.out.write(bytes);
        self.keep(done)
    }

    fn flush(&mut self) -> io::Result<()> {
        let done = self.out.flush();
        self.keep(done)
    }
}

#[cfg(test)]
mod tests {
    use arrow_schema::Schema;

    use super::*;

    /// A disk with room for this many bytes.
    struct Disk(usize);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.0 == 0 {
                return Err(io::Error::new(io::ErrorKind::StorageFull, "the disk is full"));
            }
            let written = bytes.len().min(self.0);
            self.0 -= written;
            Ok(written)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn full_disk_keeps_its_error() {
        let schema = SchemaRef::new(Schema::empty());
        let batch = RecordBatch::new_empty(SchemaRef::clone(&schema));
        for room in [0, 1, 20] {
            let file = File::new(Disk(room), &schema);
            let error = file.and_then(|mut file| {
                file.write(&batch)?;
                file.finish()
            });
            let error = error.err().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{room}: {error}");
            assert_eq!(error.to_string(), "the disk is full", "{room}");
        }
    }
}
