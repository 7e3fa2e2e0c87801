//! Import of files: recordings and captures of other tools become changes, stacks and segments.
//! Each reader streams: memory use is bounded by live allocations, not by the size of the file.

pub mod agent;
pub mod collecting_sink;
pub mod compute_sanitizer;
mod detect;
pub mod nsys;
pub mod nvidia_smi;
pub mod recording;
pub mod torch;

pub use detect::{check_file, detect, open};

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use engine::analysis::MemoryScope;
use engine::model::{
    AllocationChange, AllocatorSettings, AllocatorStats, DeviceId, GpuId, Mark, Pid, PoolTotals,
    Segment, SiteId, StackTable, Timestamp,
};
use engine::snapshot::Snapshot;

use crate::export::GpuLabel;
use crate::sanitize::{sanitize, sanitize_up_to};

/// Maximum length of an error that quotes a file, in bytes.
const MAX_QUOTE_BYTES: usize = 1024;

engine::named_enum! {
    /// Format of a file.
    pub enum SourceFormat {
        /// vramscope: every event of a trace.
        Recording => "recording",
        /// Nsight Systems: a SQLite export.
        Nsys => "nsys",
        /// PyTorch: a memory snapshot.
        Torch => "torch",
        /// compute-sanitizer: a leak report.
        Sanitizer => "sanitizer",
    }
}

impl SourceFormat {
    /// Returns the memory that its totals are about.
    pub const fn scope(self) -> MemoryScope {
        match self {
            Self::Torch => MemoryScope::Torch,
            Self::Recording | Self::Nsys | Self::Sanitizer => MemoryScope::Device,
        }
    }
}

/// State at the end of a file, in the form of the last snapshot of a trace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FileState {
    /// Processes, verdicts and anomalies.
    pub snapshot: Snapshot,
    /// GPUs of the host, as far as the file has them.
    pub gpus: Vec<GpuLabel>,
}

/// Receiver of a reader's results, in the order of time.
pub trait ImportSink {
    /// Returns the table of stacks; sites of changes and blocks are ids of it.
    fn stacks(&mut self) -> &mut StackTable;
    /// Called when an allocation begins or ends. Times never decrease: readers sort, and count
    /// reordered events as a warning.
    fn change(&mut self, change: &AllocationChange);
    /// Called with the name of a process, not sanitized.
    fn process(&mut self, pid: Pid, name: &str);
    /// Called with the name of a device, and its memory size if known.
    fn device(&mut self, device: DeviceId, name: &str, total_bytes: Option<u64>);
    /// Called at most once, with a timestamp and the wall clock at it in nanoseconds since 1970,
    /// UTC.
    fn clock(&mut self, at: Timestamp, utc_nanos: i64);
    /// Called with the time zone of the host: its name, and the offset from UTC in seconds.
    fn time_zone(&mut self, _name: Option<&str>, _offset: i32) {}
    /// Called with the name of the user of a process, not sanitized.
    fn user(&mut self, _pid: Pid, _user: &str) {}
    /// Called with the GPUs of the devices of a process.
    fn device_map(&mut self, _pid: Pid, _gpus: &[Option<GpuId>]) {}
    /// Called with a segment of a cache at the end of the file.
    fn segment(&mut self, segment: Segment);
    /// Called with the totals of a pool; the last ones are those at the end of the file.
    fn pool(&mut self, pool: &PoolTotals);
    /// Called at most once, with the settings of the cache that the segments belong to.
    fn cache_settings(&mut self, _settings: &AllocatorSettings) {}
    /// Called with the cache's own statistics of one device.
    fn cache_stats(&mut self, _stats: &AllocatorStats) {}
    /// Called with the state at the end, if the reader has it; otherwise changes are classified.
    fn state(&mut self, _state: FileState) {}
    /// Called when a request for device memory failed with an out-of-memory error.
    fn failed_allocation(&mut self, _failed: &FailedAllocation) {}
    /// Called with a mark of a user or program.
    fn mark(&mut self, _mark: Mark) {}
    /// Called for input that the reader cannot use, or that makes values inexact.
    fn warn(&mut self, warning: Warning);
    /// Called now and then with the progress, in bytes or rows of a total.
    fn progress(&mut self, _done: u64, _total: u64) {}
}

/// A request for device memory that failed with an out-of-memory error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailedAllocation {
    /// Time of the request.
    pub at: Timestamp,
    /// Process.
    pub pid: Pid,
    /// Device, if known.
    pub device: Option<DeviceId>,
    /// Requested size.
    pub bytes: u64,
    /// Free memory of the device at that time, if the file has it.
    pub free_bytes: Option<u64>,
    /// Allocation site.
    pub site: Option<SiteId>,
}

/// A warning about a file; equal texts are merged and counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Warning {
    /// One sentence, without numbers that differ each time.
    pub text: String,
    /// Number of rows, events or values that it concerns.
    pub count: u64,
    /// Whether it makes values inexact.
    pub inexact: bool,
}

/// Result of a reader, besides what went to the sink.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImportSummary {
    /// Format of the file.
    pub source: SourceFormat,
    /// Number of rows, events or entries that were used.
    pub events: u64,
    /// Product and version of the producer, if the file has it; not sanitized.
    pub producer: Option<String>,
}

/// Formats a path for errors.
fn shown(path: &Path) -> String {
    sanitize(&path.to_string_lossy()).into_owned()
}

/// Formats text that may quote the file: names of tables and columns, and messages of SQLite and
/// Arrow.
fn quoted(text: &str) -> Cow<'_, str> {
    sanitize_up_to(text, MAX_QUOTE_BYTES)
}

/// Error of reading a file.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file cannot be opened or read.
    #[error("cannot read {}: {source}", shown(.path))]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The format is not supported.
    #[error("{}: {}", shown(.path), quoted(.reason))]
    NotRecognized {
        /// The file.
        path: PathBuf,
        /// What the file looks like, and what is supported.
        reason: String,
    },
    /// The format is supported, but the file is damaged.
    #[error("{}: {}, at {}; {advice}", shown(.path), quoted(.problem), quoted(.location))]
    Broken {
        /// The file.
        path: PathBuf,
        /// Problem.
        problem: String,
        /// Location: a byte offset, line, or table and row.
        location: String,
        /// Next step for the user.
        advice: String,
    },
}
