//! Verbs that read files.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use engine::analysis::usage::FEWEST_POINTS;
use engine::units::Bytes;

use super::By;
use crate::quantity;

pub(super) const REPORT_EXAMPLES: &str = "\
EXAMPLES
  vramscope report run.sqlite                        what is in a file, in short
  vramscope report run.sqlite --analysis leakage     what was never freed, by call stack
  vramscope report snapshot.pickle --analysis watermark --format json
  vramscope report run.sqlite --analysis usage --format html -o usage.html
  vramscope report run.sqlite --fail-on-leak=1M      exit with 1 when more than 1 MiB leaked

FILE is a recording of vramscope, an SQLite export of Nsight Systems, a memory snapshot of PyTorch or a
leak report of compute-sanitizer; it is recognised by its content.";

pub(super) const DIFF_EXAMPLES: &str = "\
EXAMPLES
  vramscope diff before.sqlite after.sqlite          what one run leaks more than the other
  vramscope diff monday.pickle friday.pickle --format json
  vramscope diff a.sqlite b.sqlite --top 50          more sites

Sites are matched by their call stacks; the files need not be of the same sort.";

pub(super) const EXPORT_EXAMPLES: &str = "\
EXAMPLES
  vramscope export run.arrows --to perfetto -o run.pftrace   memory over time, for ui.perfetto.dev
  vramscope export run.arrows --to torch -o run.pickle       for PyTorch's memory viewer
  vramscope export run.arrows --to parquet -o lake           tables for DuckDB, Spark, pandas
  vramscope export run.sqlite --to csv -o - --process 4711   allocations of a process, to a pipe
  vramscope export run.arrows --to folded --value allocated --unit objects -o calls.txt
  vramscope export snapshot.pickle --to flamegraph -o memory.svg --force

FILE is anything that `vramscope report` reads. Forms that are one file can go to standard output,
which is -. Of tsv, allocations with a call stack are in valid.tsv, those of which only the driver
function is known in driver.tsv, the others in invalid.tsv.";

/// Which part of a file counts.
#[derive(Args)]
pub(crate) struct Part {
    /// Only this process
    #[arg(long, value_name = "PID")]
    pub(crate) process: Option<u32>,
    /// Only this device, by its ordinal
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u16>,
}

#[derive(Args)]
pub(crate) struct Report {
    /// What to read
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Which question to answer
    #[arg(long, value_enum, default_value = "summary")]
    pub(crate) analysis: Analysis,
    /// How the answer looks
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) format: Format,
    /// Write the answer to a file; - is standard output
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: Option<PathBuf>,
    /// Replace a file that is there
    #[arg(long, requires = "output")]
    pub(crate) force: bool,
    /// List this many sites [default: text 10, else all]
    #[arg(long, value_name = "N")]
    pub(crate) top: Option<usize>,
    /// Of trace: what the report is ordered by [default: process]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) by: Option<By>,
    /// Of trace: show this many frames of a stack, 0 for all [default: 6]
    #[arg(long, value_name = "N")]
    pub(crate) stack_depth: Option<usize>,
    /// Of usage, so many points of each series; peaks and troughs stay exact [default: every change]
    #[arg(long, value_name = "N", value_parser = points)]
    pub(crate) points: Option<usize>,
    /// Of fragmentation: whether a request of this size would fit
    #[arg(long, value_name = "SIZE", value_parser = quantity::size)]
    pub(crate) would_fit: Option<Bytes>,
    #[command(flatten)]
    pub(crate) overlay: Overlay,
    #[command(flatten)]
    pub(crate) limit: super::Limit,
    #[command(flatten)]
    pub(crate) part: Part,
}

/// What another tool saw of the same time.
#[derive(Args)]
pub(crate) struct Overlay {
    /// Show what `nvidia-smi --query-gpu=timestamp,memory.used` saw, too
    #[arg(short, long, value_name = "CSV")]
    pub(crate) smi: Option<PathBuf>,
    /// How far that CSV's clock is ahead of the file's [default: found by comparing both]
    #[arg(
        long,
        value_name = "TIME",
        requires = "smi",
        value_parser = offset,
        allow_hyphen_values = true
    )]
    pub(crate) smi_offset: Option<i64>,
}

/// A time that may be negative, in nanoseconds.
fn offset(text: &str) -> Result<i64, String> {
    let (sign, size) = match text.trim().strip_prefix('-') {
        Some(size) => (-1, size),
        None => (1, text),
    };
    let nanos = i64::try_from(quantity::time(size)?.as_nanos()).map_err(|_| "too long")?;
    Ok(sign * nanos)
}

fn points(text: &str) -> Result<usize, String> {
    let points: usize = text.parse().map_err(|error| format!("expected a number: {error}"))?;
    if points < FEWEST_POINTS {
        return Err(format!("must be {FEWEST_POINTS} or more"));
    }
    Ok(points)
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Analysis {
    /// Each process and device: allocations, frees, peak, biggest sites
    Summary,
    /// What was never freed
    Leakage,
    /// The peak, and every allocation live in it
    Watermark,
    /// Memory over time
    Usage,
    /// What caches and pools hold and cannot use
    Fragmentation,
    /// Sites that grow over the whole file
    Suspects,
    /// The last report of the trace that a recording is of
    Trace,
    /// The same of its launches and copies
    Kernels,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Text,
    /// One object in one line
    Json,
    /// A table with tabs between
    Tsv,
    /// A page for a browser, of the whole file; it opens with the question
    Html,
}

#[derive(Args)]
pub(crate) struct Diff {
    /// The older file
    #[arg(value_name = "A")]
    pub(crate) before: PathBuf,
    /// The newer file
    #[arg(value_name = "B")]
    pub(crate) after: PathBuf,
    /// How the answer looks
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) format: DiffFormat,
    /// Write the answer to a file; - is standard output
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: Option<PathBuf>,
    /// Replace a file that is there
    #[arg(long, requires = "output")]
    pub(crate) force: bool,
    /// List this many sites [default: text 20, else all]
    #[arg(long, value_name = "N")]
    pub(crate) top: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DiffFormat {
    /// For people
    Text,
    /// One object in one line
    Json,
    /// A table with tabs between
    Tsv,
}

#[derive(Args)]
pub(crate) struct Export {
    /// What to read
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// What to write
    #[arg(long, value_enum)]
    pub(crate) to: ExportFormat,
    /// The file to write, - for standard output; of tsv and parquet the folder
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: PathBuf,
    /// Replace files that are there
    #[arg(long)]
    pub(crate) force: bool,
    /// Of folded and flamegraph: what counts [default: inuse]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) value: Option<Value>,
    /// Of folded and flamegraph: what is counted [default: bytes]
    #[arg(long, value_enum)]
    pub(crate) unit: Option<Unit>,
    /// Of folded, flamegraph and pprof: when memory is in use [default: end]
    #[arg(long, value_enum, value_name = "WHEN")]
    pub(crate) at: Option<At>,
    #[command(flatten)]
    pub(crate) part: Part,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Value {
    /// What is in use
    Inuse,
    /// All that was ever allocated
    Allocated,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Unit {
    /// Bytes
    Bytes,
    /// Allocations
    Objects,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum At {
    /// What was never freed
    End,
    /// What was live at the peak of each device
    Peak,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// Three tables in the shape that scripts around Nsight Systems use
    Tsv,
    /// A line for each call stack, outermost frame first
    Folded,
    /// A picture of the call stacks, for a browser
    Flamegraph,
    /// A heap profile for pprof
    Pprof,
    /// Allocations, one row each, comma-separated
    Csv,
    /// Allocations, one object each, in an array
    Json,
    /// Memory over time and the biggest allocations, for ui.perfetto.dev
    Perfetto,
    /// Call stacks with what they allocated and hold, for speedscope.app
    Speedscope,
    /// A memory snapshot for PyTorch's viewer
    Torch,
    /// Allocations, and the events of a recording, as tables by host and date
    Parquet,
}
