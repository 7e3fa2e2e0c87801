//! The command line of verbs that read files.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use engine::analysis::usage::MIN_POINTS;
use engine::model::{Bytes, GpuId, Pid};
use formats::export::profile::{ProfileUnit, ProfileValue};

use super::choice::{Choice, choice};
use super::shared::{FailOnLeakArgs, FormatOptions, GroupByArg, OutputArgs, WrapperArgs};
use crate::live::process_filter::ProcessFilter;
use crate::parse_units;

pub(super) const REPLAY_EXAMPLES: &str = "\
EXAMPLES
  vramscope replay run.arrows                        the last report of the trace
  vramscope replay run.arrows --by site --top 3      the same by call site
  vramscope replay run.arrows --kernels              launches and copies (record --kernels)
  vramscope replay run.arrows --format json -o last.json

FILE is a vramscope recording. The output is that of the live trace, byte for byte.";

pub(super) const REPORT_EXAMPLES: &str = "\
EXAMPLES
  vramscope report run.arrows                        verdict, peak and holders
  vramscope report run.arrows --leak 1               the evidence and the call stack of a leak
  vramscope report run.arrows leaks                  every verdict, and what is still held
  vramscope report snapshot.pickle peak --format json
  vramscope report run.sqlite --format html -o report.html
  vramscope report run.sqlite --fail-on-leak=1M      exit with status 3 if more than 1 MiB leaked
  vramscope report http://127.0.0.1:9754 --leak 1     the same of a running agent

FILE is a vramscope recording, a Nsight Systems SQLite export, a PyTorch memory snapshot or a
compute-sanitizer leak report, detected by content.";

pub(super) const DIFF_EXAMPLES: &str = "\
EXAMPLES
  vramscope diff before.sqlite after.sqlite          what leaks in one run and not in the other
  vramscope diff monday.pickle friday.pickle --format json
  vramscope diff a.sqlite b.sqlite --top 50          more sites
  vramscope diff main.arrows branch.arrows --fail-on-growth=10M -q

Sites are matched by call stack; the files may come from different tools.";

pub(super) const EXPORT_EXAMPLES: &str = "\
EXAMPLES
  vramscope export run.arrows -o run.pftrace                    for ui.perfetto.dev
  vramscope export run.arrows -o run.pickle                     for PyTorch's memory viewer
  vramscope export run.arrows --format parquet -o lake          tables for DuckDB, Spark, pandas
  vramscope export run.sqlite --format csv -o - --pid 4711      one process, to a pipe
  vramscope export run.arrows --format folded --value allocated --unit count -o calls.txt
  vramscope export snapshot.pickle --format flamegraph -o memory.svg --force

FILE is anything that `vramscope report` reads. Single-file formats can be written to standard
output (-). nsys-tsv writes allocations with a call stack to valid.tsv, those with only a driver
function to driver.tsv and the rest to invalid.tsv.";

/// Filters of verbs that read a file.
#[derive(Args)]
pub(crate) struct FileFilterArgs {
    /// Only this process
    #[arg(short, long, alias = "process", value_name = "PID")]
    pub(crate) pid: Option<u32>,
    /// Only this CUDA device ordinal
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<u16>,
    /// Only this GPU (index as in nvidia-smi)
    #[arg(long, value_name = "N", conflicts_with = "device")]
    pub(crate) gpu: Option<u16>,
    /// Only processes of this user
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Only processes whose program contains this text
    #[arg(long, value_name = "TEXT")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) wrappers: WrapperArgs,
}

impl FileFilterArgs {
    /// Returns the selection of processes.
    pub(crate) fn processes(&self) -> ProcessFilter {
        ProcessFilter {
            pids: self.pid.map(Pid).into_iter().collect(),
            gpu: self.gpu.map(GpuId),
            user: self.user.clone(),
            name: self.name.clone(),
        }
    }

    /// Returns these options as they are typed, each after a blank.
    pub(crate) fn arguments(&self) -> String {
        let device = self.device.map_or_else(String::new, |device| format!(" --device {device}"));
        self.processes().arguments() + &device
    }
}

#[derive(Args)]
pub(crate) struct ReplayArgs {
    /// Input file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Print launches and copies instead of memory
    #[arg(long)]
    pub(crate) kernels: bool,
    /// Group the report by process, allocation site, library, user, job or process tree
    #[arg(
        long,
        value_enum,
        value_name = "KEY",
        default_value = "process",
        conflicts_with = "kernels"
    )]
    pub(crate) by: GroupByArg,
    /// List every allocation with its address, by process and thread
    #[arg(long, conflicts_with = "kernels")]
    pub(crate) allocations: bool,
    /// Show leak N with its evidence and its whole call stack
    #[arg(long, value_name = "N", conflicts_with = "kernels")]
    pub(crate) leak: Option<usize>,
    /// List at most N entries per list [default: 10 for text]
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) top: Option<usize>,
    /// Show at most N frames per stack; 0 shows all [default: 6]
    #[arg(long, value_name = "N", conflicts_with = "kernels")]
    pub(crate) stack_depth: Option<usize>,
    #[command(flatten)]
    pub(crate) wrappers: WrapperArgs,
    #[command(flatten)]
    pub(crate) format: FormatOptions,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) limit: FailOnLeakArgs,
}

#[derive(Args)]
pub(crate) struct ReportArgs {
    /// Input file, or the URL of a running agent
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// What to answer
    #[arg(value_enum, value_name = "QUESTION")]
    pub(crate) question: Option<AnalysisArg>,
    /// The same as QUESTION
    #[arg(long, value_enum, value_name = "QUESTION", hide = true, conflicts_with = "question")]
    pub(crate) analysis: Option<AnalysisArg>,
    /// Group memory by call site or library; the same as the questions sites and libraries
    #[arg(
        long,
        value_name = "KEY",
        value_parser = choice(REPORT_GROUPINGS),
        conflicts_with_all = ["question", "analysis"]
    )]
    pub(crate) by: Option<AnalysisArg>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) format: ReportFormat,
    /// Same as --format json
    #[arg(long, conflicts_with_all = ["format", "html"])]
    pub(crate) json: bool,
    /// Same as --format html
    #[arg(long, conflicts_with = "format")]
    pub(crate) html: bool,
    /// Show leak N with its evidence and its whole call stack
    #[arg(long, value_name = "N")]
    pub(crate) leak: Option<usize>,
    /// With --leak: show at most N frames per stack; 0 shows all, also of libraries [default: 6]
    #[arg(long, value_name = "N", requires = "leak")]
    pub(crate) stack_depth: Option<usize>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// List at most N entries per list [default: 10 for text]
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) top: Option<usize>,
    /// usage: at most N points per series; peaks stay exact
    #[arg(long, value_name = "N", value_parser = points)]
    pub(crate) max_points: Option<usize>,
    /// fragmentation: check whether an allocation of SIZE would fit
    #[arg(long, value_name = "SIZE", value_parser = parse_units::size)]
    pub(crate) would_fit: Option<Bytes>,
    #[command(flatten)]
    pub(crate) overlay: SmiArgs,
    #[command(flatten)]
    pub(crate) limit: FailOnLeakArgs,
    /// File with the agent's bearer token, if FILE is a URL
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) filter: FileFilterArgs,
}

/// A log of nvidia-smi to draw over the series of a file.
#[derive(Args)]
pub(crate) struct SmiArgs {
    /// Overlay an nvidia-smi CSV log
    #[arg(long, value_name = "CSV")]
    pub(crate) smi_log: Option<PathBuf>,
    /// Clock offset of that log [default: aligned automatically]
    #[arg(
        long,
        value_name = "DURATION",
        requires = "smi_log",
        value_parser = offset,
        allow_hyphen_values = true
    )]
    pub(crate) smi_offset: Option<i64>,
}

/// Parses a duration that may be negative, in nanoseconds.
fn offset(text: &str) -> Result<i64, String> {
    let (sign, size) = match text.trim().strip_prefix('-') {
        Some(size) => (-1, size),
        None => (1, text),
    };
    let nanos = i64::try_from(parse_units::time(size)?.as_nanos()).map_err(|_| "too long")?;
    Ok(sign * nanos)
}

fn points(text: &str) -> Result<usize, String> {
    let points: usize = text.parse().map_err(|error| format!("expected a number: {error}"))?;
    if points < MIN_POINTS {
        return Err(format!("must be {MIN_POINTS} or more"));
    }
    Ok(points)
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AnalysisArg {
    /// Verdict, peak and holders (default)
    Summary,
    /// Leaks, all other verdicts, and what is still held
    #[value(aliases = ["leak", "suspects", "leakage"])]
    Leaks,
    /// Peak and the allocations live at it
    #[value(alias = "watermark")]
    Peak,
    /// Memory over time
    #[value(aliases = ["memory", "timeline"])]
    Usage,
    /// Memory by call site
    #[value(alias = "stacks")]
    Sites,
    /// Memory by the library that allocated it
    #[value(alias = "library")]
    Libraries,
    /// Memory between marks (`vramscope mark`)
    #[value(alias = "phases")]
    Marks,
    /// Fragmentation of caches and pools
    #[value(alias = "frag")]
    Fragmentation,
}

const REPORT_GROUPINGS: &[Choice<AnalysisArg>] = &[
    ("site", "Call site", AnalysisArg::Sites),
    ("library", "Library that allocated the memory", AnalysisArg::Libraries),
];

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    /// Human-readable text
    Text,
    /// One JSON object
    Json,
    /// Tab-separated values
    Tsv,
    /// Interactive HTML report of the whole file
    Html,
}

#[derive(Args)]
pub(crate) struct DiffArgs {
    /// First file
    #[arg(value_name = "A")]
    pub(crate) before: PathBuf,
    /// Second file
    #[arg(value_name = "B")]
    pub(crate) after: PathBuf,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) format: DiffFormat,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// List at most N entries per list [default: 20 for text]
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) top: Option<usize>,
    /// Exit with status 3 if B holds more than SIZE (default 0) more than A at the end, or at its
    /// peak
    #[arg(
        long,
        value_name = "SIZE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "0",
        value_parser = parse_units::size
    )]
    pub(crate) fail_on_growth: Option<Bytes>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DiffFormat {
    /// Human-readable text
    Text,
    /// One JSON object
    Json,
    /// Tab-separated values
    Tsv,
}

#[derive(Args)]
pub(crate) struct ExportArgs {
    /// Input file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Output format [default: by the extension of PATH]
    #[arg(long, value_enum, alias = "to")]
    pub(crate) format: Option<ExportFormat>,
    /// Output file, or directory for parquet and nsys-tsv; - is standard output
    #[arg(short, long, value_name = "PATH")]
    pub(crate) output: PathBuf,
    /// Overwrite an existing file
    #[arg(long)]
    pub(crate) force: bool,
    /// folded, flamegraph, speedscope: memory in use, or everything allocated [default: inuse;
    /// speedscope: both]
    #[arg(long, value_parser = choice(PROFILE_VALUES))]
    pub(crate) value: Option<ProfileValue>,
    /// folded, flamegraph, speedscope: bytes, or number of allocations [default: bytes]
    #[arg(long, value_parser = choice(PROFILE_UNITS))]
    pub(crate) unit: Option<ProfileUnit>,
    /// folded, flamegraph, pprof, speedscope: memory in use at the end or at the peak [default: end]
    #[arg(long = "at", value_name = "POINT", value_parser = choice(POINTS))]
    pub(crate) at_peak: Option<bool>,
    #[command(flatten)]
    pub(crate) filter: FileFilterArgs,
}

const PROFILE_VALUES: &[Choice<ProfileValue>] = &[
    ("inuse", "Memory in use", ProfileValue::InUse),
    ("allocated", "Everything allocated", ProfileValue::Allocated),
];

const PROFILE_UNITS: &[Choice<ProfileUnit>] = &[
    ("bytes", "Bytes", ProfileUnit::Bytes),
    ("count", "Number of allocations", ProfileUnit::Objects),
];

/// Whether memory in use is that of the peak.
const POINTS: &[Choice<bool>] = &[
    ("end", "Held at the end of the file or of its process", false),
    ("peak", "Live at the peak of each device", true),
];

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// Three TSV tables as used by Nsight Systems scripts
    NsysTsv,
    /// Folded stacks (one line per stack)
    Folded,
    /// Flame graph (SVG)
    Flamegraph,
    /// pprof heap profile
    Pprof,
    /// CSV, one row per allocation
    Csv,
    /// JSON, one object per allocation
    Json,
    /// Perfetto trace
    #[value(alias = "chrome")]
    Perfetto,
    /// speedscope profile
    Speedscope,
    /// PyTorch memory snapshot (memory_viz)
    #[value(aliases = ["pytorch", "pickle"])]
    Torch,
    /// Parquet tables by host and date
    Parquet,
}
