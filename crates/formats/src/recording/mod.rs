//! The project's own file: every event of a trace, as one Apache Arrow IPC stream with
//! zstd-compressed buffers. Everything is a row of one wide table, so that pyarrow, polars and
//! DuckDB read it without this program; `docs/reference/recording-format.md` describes it.
//!
//! [`schema`] has the columns and the rows in words, `encode` and `decode` turn events into rows and
//! back, `message` checks what a file says of itself before Arrow may believe it.

mod cells;
mod containers;
mod decode;
mod encode;
mod functions;
mod message;
mod objects;
mod reader;
pub mod schema;
mod sheet;
pub(crate) mod words;
mod writer;

pub use functions::{Functions, Resolver};
pub use reader::{Reader, looks_like};
pub use writer::{Header, Writer};

use engine::event::Event;
use engine::units::Moment;

use crate::WallClock;
use crate::export::GpuName;

/// The version of the schema. It changes when a reader of the old one would misunderstand the new
/// one; columns and rows that are added do not change it.
pub const VERSION: u32 = 1;

/// The key of the schema's metadata that makes an Arrow stream a recording; its value is the version.
pub const VERSION_KEY: &str = "vramscope.recording";

/// A row of a recording.
#[derive(Clone, PartialEq, Debug)]
pub enum Row {
    /// A fact about the recording (hostile text); see [`schema::ABOUT`] for the keys.
    About {
        /// Which fact.
        key: Box<str>,
        /// What it is.
        value: Box<str>,
    },
    /// The wall clock of the machine.
    Clock(WallClock),
    /// A GPU of the machine.
    Gpu(GpuName),
    /// Something happened.
    Event(Event),
    /// A report was made.
    Tick(Moment),
    /// The trace ended, and the last report was made.
    End(Moment),
    /// A row that a newer version wrote and this one does not know.
    Unknown,
}
