//! The recording format: every event of a trace, as one Apache Arrow IPC stream with
//! zstd-compressed buffers. All rows are in one wide table, so that pyarrow, polars and DuckDB can
//! read it without vramscope; `docs/reference/recording-format.md` describes it.
//!
//! [`schema`] declares columns and row types, `rows` the columns of events; `encode` and `decode` convert
//! events to rows and back, and `message` checks a file before it is passed to Arrow.

mod containers;
mod function_table;
mod read;
mod rows;
pub mod schema;
mod write;

pub use function_table::{FunctionLookup, FunctionTable};
pub use read::reader::{RecordingReader, looks_like};
pub use write::writer::{RecordingHeader, RecordingWriter};

use engine::model::{Event, Timestamp};

use crate::WallClock;
use crate::export::GpuLabel;

/// Version of the schema. It changes if a reader of the old version would misread the new one; new
/// columns and row types do not change it.
pub const VERSION: u32 = 1;

/// Key of the schema's metadata that marks an Arrow stream as a recording; its value is the
/// version.
pub const VERSION_KEY: &str = "vramscope.recording";

/// A row of a recording.
#[derive(Clone, PartialEq, Debug)]
pub enum RecordingRow {
    /// Metadata of the recording, not sanitized; see [`schema::ABOUT`] for the keys.
    About {
        /// Key.
        key: Box<str>,
        /// Value.
        value: Box<str>,
    },
    /// Wall clock of the host.
    Clock(WallClock),
    /// A GPU of the host.
    Gpu(GpuLabel),
    /// An event.
    Event(Event),
    /// A report was made.
    Tick(Timestamp),
    /// The trace ended, and the last report was made.
    End(Timestamp),
    /// A row type of a newer version.
    Unknown,
}
