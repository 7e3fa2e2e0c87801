//! A Parquet file that preserves the I/O error of its writer: Parquet keeps only the text of some
//! errors.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;

use super::properties;

/// The first I/O error of a writer.
type First = Arc<Mutex<Option<io::Error>>>;

/// A Parquet file in progress.
pub(super) struct File<W: Write + Send> {
    writer: ArrowWriter<FirstErrorWriter<W>>,
    error: First,
}

impl<W: Write + Send> File<W> {
    pub(super) fn new(out: W, schema: &SchemaRef) -> io::Result<Self> {
        let error = First::default();
        let out = FirstErrorWriter { out, error: Arc::clone(&error) };
        match ArrowWriter::try_new(out, SchemaRef::clone(schema), properties(schema)) {
            Ok(writer) => Ok(Self { writer, error }),
            Err(failed) => Err(cause(&error, failed)),
        }
    }

    pub(super) fn write(&mut self, batch: &RecordBatch) -> io::Result<()> {
        self.writer.write(batch).map_err(|failed| cause(&self.error, failed))
    }

    /// Ends the current row group.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.writer.flush().map_err(|failed| cause(&self.error, failed))
    }

    /// Returns the approximate size of the current row group, in bytes.
    pub(super) fn collected(&self) -> usize {
        self.writer.in_progress_size()
    }

    /// Returns the number of bytes written.
    pub(super) fn written(&self) -> usize {
        self.writer.bytes_written()
    }

    /// Writes the rest and completes the file.
    pub(super) fn finish(self) -> io::Result<W> {
        let Self { writer, error } = self;
        let inner = writer.into_inner().map_err(|failed| cause(&error, failed))?;
        Ok(inner.out)
    }
}

/// Returns the error of the underlying writer, if that is what failed.
fn cause(first: &First, failed: ParquetError) -> io::Error {
    let first = first.lock().unwrap_or_else(PoisonError::into_inner).take();
    first.unwrap_or_else(|| io::Error::other(failed))
}

/// A writer that keeps its first error; Parquet gets one of the same kind.
struct FirstErrorWriter<W> {
    out: W,
    error: First,
}

impl<W> FirstErrorWriter<W> {
    fn keep<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.map_err(|error| {
            let kind = error.kind();
            let mut first = self.error.lock().unwrap_or_else(PoisonError::into_inner);
            // Writers retry after these.
            if kind != io::ErrorKind::Interrupted {
                first.get_or_insert(error);
            }
            kind.into()
        })
    }
}

impl<W: Write> Write for FirstErrorWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = self.out.write(bytes);
        self.keep(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.out.flush();
        self.keep(result)
    }
}

#[cfg(test)]
mod tests {
    use arrow_schema::Schema;

    use super::*;

    /// A disk with space for this many bytes.
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
