//! Files in: recordings and other tools' captures become changes, stacks and caches, whoever made
//! them. Each reader streams: memory is bounded by what is live, not by the file.

pub mod gather;
pub mod nsys;
mod recognise;
pub mod recording;
pub mod sanitizer;
pub mod smi;
pub mod torch;

pub use recognise::{check_file, open, recognise};

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use engine::analysis::Measure;
use engine::analysis::suspects::Findings;
use engine::cache::{CacheLevels, CacheSettings, PoolSums, Segment};
use engine::change::Change;
use engine::ids::{DeviceId, Pid, SiteId};
use engine::stack::Stacks;
use engine::units::Moment;
use engine::verdict::Judgement;

use crate::plain::{plain, plain_up_to};

/// The longest part of an error that quotes a file.
const LONGEST_QUOTE: usize = 1024;

/// Who made a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// This program: every event of a trace.
    Recording,
    /// Nsight Systems: a SQLite export.
    Nsys,
    /// PyTorch: a memory snapshot.
    Torch,
    /// compute-sanitizer: a leak report.
    Sanitizer,
}

impl Source {
    /// The word for it in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Recording => "recording",
            Self::Nsys => "nsys",
            Self::Torch => "torch",
            Self::Sanitizer => "sanitizer",
        }
    }

    /// Which memory its sums are of.
    #[must_use]
    pub const fn measure(self) -> Measure {
        match self {
            Self::Torch => Measure::Torch,
            Self::Recording | Self::Nsys | Self::Sanitizer => Measure::Device,
        }
    }
}

/// Where a reader puts what it finds, in the order of time.
pub trait Sink {
    /// The table of stacks; sites of changes and blocks are ids of it.
    fn stacks(&mut self) -> &mut Stacks;
    /// An allocation began or ended. Moments never go backwards: readers sort, and count what
    /// they had to move as a warning.
    fn change(&mut self, change: &Change);
    /// A process has a name (hostile text).
    fn process(&mut self, pid: Pid, name: &str);
    /// A device has a name, and this much memory where that is known.
    fn device(&mut self, device: DeviceId, name: &str, total_bytes: Option<u64>);
    /// A moment, and the wall clock at it in nanoseconds since 1970, UTC. Told at most once.
    fn clock(&mut self, moment: Moment, utc_nanos: i64);
    /// A segment of a cache as it is at the end of the file.
    fn segment(&mut self, segment: Segment);
    /// Sums of a pool; the last ones told are those at the end of the file.
    fn pool(&mut self, pool: &PoolSums);
    /// How the cache that the segments belong to is set up. Told at most once.
    fn cache_settings(&mut self, _settings: &CacheSettings) {}
    /// What the cache's own statistics say of one device.
    fn cache_levels(&mut self, _levels: &CacheLevels) {}
    /// The verdict on a site that made objects or tensors.
    fn judged(&mut self, _judged: Judgement) {}
    /// Verdicts on memory and anomalies, where the reader has them; else changes are judged.
    fn findings(&mut self, _findings: Findings) {}
    /// A request for device memory failed for want of memory.
    fn refused(&mut self, _refused: &Refused) {}
    /// Something that the reader could not use, or that makes figures inexact.
    fn warn(&mut self, warning: Warning);
    /// How far the reader is, in bytes or rows of some total; called now and then.
    fn progress(&mut self, _done: u64, _total: u64) {}
}

/// A request for device memory that failed for want of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// When.
    pub at: Moment,
    /// Whose.
    pub pid: Pid,
    /// The device, where known.
    pub device: Option<DeviceId>,
    /// How much was asked for.
    pub bytes: u64,
    /// What the device had free then, where the file tells.
    pub free_bytes: Option<u64>,
    /// Where in the program.
    pub site: Option<SiteId>,
}

/// Something a user should know of a file; the same text is told once, with a count.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Warning {
    /// What it is, in one sentence without figures that differ each time.
    pub text: String,
    /// How many rows, events or values it concerns.
    pub count: u64,
    /// Figures are not exact because of it.
    pub inexact: bool,
}

/// What a reader found, besides what went into the sink.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Imported {
    /// Who made the file.
    pub source: Source,
    /// Rows, events or entries that were used.
    pub events: u64,
    /// Who exactly: product and version, where the file says so (hostile text).
    pub producer: Option<String>,
}

/// A path as errors show it.
fn shown(path: &Path) -> String {
    plain(&path.to_string_lossy()).into_owned()
}

/// Text of errors that may quote the file: names of tables and columns, and what SQLite and Arrow say of them.
fn quoted(text: &str) -> Cow<'_, str> {
    plain_up_to(text, LONGEST_QUOTE)
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be opened or read.
    #[error("cannot read {}: {source}", shown(.path))]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Nothing this program knows begins like it.
    #[error("{}: {}", shown(.path), quoted(.why))]
    NotRecognised {
        /// The file.
        path: PathBuf,
        /// What it looks like, and what would be accepted.
        why: String,
    },
    /// It is the right sort of file, and broken.
    #[error("{}: {}, at {}; {advice}", shown(.path), quoted(.what), quoted(.place))]
    Broken {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
        /// Where: a byte offset, line, or table and row.
        place: String,
        /// What to do next.
        advice: String,
    },
}
