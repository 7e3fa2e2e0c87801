//! The command line: clap on one side, plain configuration for the commands on the other.

mod advise;
mod files;
mod plot;
mod serve;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use engine::snapshot::Sort;
use engine::units::Bytes;
use formats::plain::plain;

use crate::quantity::LeakLimit;
use crate::{Outcome, commands, output, quantity};

pub(crate) use advise::Advise;
pub(crate) use files::{
    Analysis, At, Diff, DiffFormat, Export, ExportFormat, Format, Overlay, Part, Report, Unit,
    Value,
};
pub(crate) use plot::{Plot, PlotBy, PlotTheme, PlotTime};
pub(crate) use serve::Serve;

const ABOUT: &str = "Watches the GPU memory of every process on this machine, from the outside: \
    which process, thread and device holds what, exactly, without restarting or changing anything.";

#[derive(Parser)]
#[command(name = "vramscope", bin_name = "vramscope", version, about = ABOUT, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Report live GPU memory, by process and thread, every few seconds
    #[command(after_help = TRACE_EXAMPLES)]
    Trace(Box<Trace>),
    /// Count kernel launches by name, copies by direction, and failing calls
    #[command(after_help = KERNELS_EXAMPLES)]
    Kernels(Box<Kernels>),
    /// Write every event to a file, to be read later
    #[command(after_help = RECORD_EXAMPLES)]
    Record(Box<Record>),
    /// Answer questions about a file: leaks, peaks, memory over time
    #[command(after_help = files::REPORT_EXAMPLES)]
    Report(Box<Report>),
    /// Compare two files, site by site
    #[command(after_help = files::DIFF_EXAMPLES)]
    Diff(Diff),
    /// Write a file in the form of another tool
    #[command(after_help = files::EXPORT_EXAMPLES)]
    Export(Export),
    /// Draw memory over time: a chart, or a page to look around in
    #[command(after_help = plot::EXAMPLES)]
    Plot(Box<Plot>),
    /// Watch every process for weeks: metrics, alerts, and a picture when memory runs out
    #[command(after_help = serve::EXAMPLES)]
    Serve(Box<Serve>),
    /// Say what would give GPU memory back, and what that costs
    #[command(after_help = advise::EXAMPLES)]
    Advise(Box<Advise>),
    /// Tell what this host can do, what is missing and how to get it
    Doctor,
    /// Show the main job on a simulated driver: no GPU needed
    Demo(Demo),
}

const TRACE_EXAMPLES: &str = "\
EXAMPLES
  vramscope trace                           every process, a report every 2 seconds
  vramscope trace -p 4711 --older 10m       what process 4711 has held for 10 minutes
  vramscope trace -- python train.py        start a program and miss nothing of it
  vramscope trace --fail-on-leak -- ./test  exit with 1 when it ends without freeing all
  vramscope trace --fail-on-leak=suspects -p 4711      exit with 1 when something of it leaks
  vramscope trace --by site -p 4711         which lines of process 4711 hold what
  vramscope trace --json --duration 1m      one JSON object a line, for a minute

Live tracing needs root. Ctrl-C ends with a last report.";

const KERNELS_EXAMPLES: &str = "\
EXAMPLES
  vramscope kernels                         every process, a report every 2 seconds
  vramscope kernels -p 4711 --top 20        the 20 most launched kernels of process 4711
  vramscope kernels -- python train.py      start a program and count every launch of it
  vramscope kernels --json --duration 1m    one JSON object a line, for a minute

Live tracing needs root. Ctrl-C ends with a last report.";

const RECORD_EXAMPLES: &str = "\
EXAMPLES
  vramscope record -o all.arrows --duration 10m       every process, for ten minutes
  vramscope record -o one.arrows -p 4711              process 4711, until it ends
  vramscope record -o run.arrows -- python train.py   start a program and miss nothing of it

A recording is an Apache Arrow stream: pyarrow, polars and DuckDB read it too. Recording needs root.
Ctrl-C ends it.";

/// Whom to trace; the same for every verb that traces.
#[derive(Args)]
pub(crate) struct Target {
    /// Trace this process; may be given several times
    #[arg(short, long = "pid", value_name = "PID", conflicts_with = "all")]
    pub(crate) pid: Vec<u32>,
    /// Trace every process, also those that start later (the default)
    #[arg(short, long)]
    pub(crate) all: bool,
    /// With -p: also trace the children that the processes make from now on
    #[arg(long, requires = "pid")]
    pub(crate) follow: bool,
    /// Probe this CUDA driver library too, besides those that are found
    #[arg(long, value_name = "PATH")]
    pub(crate) driver: Vec<PathBuf>,
    /// Start this program and trace it and its children
    #[arg(last = true, value_name = "CMD", conflicts_with_all = ["pid", "all"])]
    pub(crate) command: Vec<OsString>,
    /// Bytes of the kernel ring
    #[arg(long, hide = true, value_parser = quantity::size)]
    pub(crate) ring_size: Option<Bytes>,
    /// Bytes of the kernel ring for stacks
    #[arg(long, hide = true, value_parser = quantity::size)]
    pub(crate) stack_ring_size: Option<Bytes>,
    /// Probe with programs that do nothing, to measure against
    #[arg(long, hide = true)]
    pub(crate) empty_probes: bool,
    /// Entries of the kernel's tables of processes
    #[arg(long, hide = true, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) table_size: Option<u32>,
    /// Keep thread state in a BPF map of this many entries instead of task storage
    #[arg(long, hide = true, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) thread_table_size: Option<u32>,
    /// Attach in this way and no other
    #[arg(long, hide = true)]
    pub(crate) tier: Option<Tier>,
}

/// See [`capture::plan::Tier`].
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Tier {
    Session,
    Multi,
    Single,
    Constant,
}

#[derive(Args)]
#[command(group(ArgGroup::new("files").args(["output", "record"]).multiple(true)))]
pub(crate) struct Trace {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Time between reports: 500ms, 2s, 1m
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = quantity::interval)]
    pub(crate) interval: Duration,
    /// End after this time
    #[arg(long, value_name = "TIME", value_parser = quantity::time)]
    pub(crate) duration: Option<Duration>,
    /// What the report is ordered by: processes, or the places in programs that memory came from
    #[arg(long, value_enum, value_name = "WHAT", default_value = "process")]
    pub(crate) by: By,
    /// List this many allocations per thread and this many sites [default: 10, with --json 1000
    /// allocations and 100 sites]
    #[arg(long, value_name = "N")]
    pub(crate) top: Option<usize>,
    /// Show this many frames of a stack, 0 for all [default: 6]
    #[arg(long, value_name = "N", conflicts_with = "json")]
    pub(crate) stack_depth: Option<usize>,
    #[command(flatten)]
    pub(crate) stacks: StackOptions,
    #[command(flatten)]
    pub(crate) objects: ObjectOptions,
    /// List only allocations of this size or more: 1M, 2.5G
    #[arg(long, value_name = "SIZE", value_parser = quantity::size)]
    pub(crate) min_size: Option<Bytes>,
    /// List only allocations that have been live for this long: 30s, 10m
    #[arg(long, value_name = "AGE", value_parser = quantity::time)]
    pub(crate) older: Option<Duration>,
    /// What comes first
    #[arg(long, value_enum, default_value = "size")]
    pub(crate) sort: SortBy,
    /// One JSON object a line; CMD's standard output then goes to standard error
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the reports to a file; - is standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Count kernel launches and copies, too
    #[arg(long)]
    pub(crate) kernels: bool,
    #[command(flatten)]
    pub(crate) work: WorkOptions,
    #[command(flatten)]
    pub(crate) torch: TorchOptions,
    /// Write every event to a file too, for `report` and other tools; - is standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// Overwrite existing files
    #[arg(long, requires = "files")]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) limit: Limit,
}

/// What makes a verb fail.
#[derive(Args)]
pub(crate) struct Limit {
    /// Exit with 1 when more than SIZE (default 0) was not freed; or with `suspects` when a place is
    /// suspected of a leak
    #[arg(
        long,
        value_name = "SIZE|suspects",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "0",
        value_parser = quantity::leak_limit
    )]
    pub(crate) fail_on_leak: Option<LeakLimit>,
    /// Exit code when --fail-on-leak finds a leak, to tell it from a failure of CMD
    #[arg(
        long,
        value_name = "CODE",
        default_value_t = 1,
        requires = "fail_on_leak",
        value_parser = clap::value_parser!(u8).range(1..)
    )]
    pub(crate) leak_exit_code: u8,
}

impl Limit {
    /// The outcome with the exit code that findings should have.
    pub(crate) fn outcome(&self, outcome: Outcome) -> Outcome {
        if outcome == Outcome::Findings { Outcome::Code(self.leak_exit_code) } else { outcome }
    }
}

/// What reports are ordered by.
#[derive(Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum By {
    /// Processes, and their threads
    #[default]
    Process,
    /// Call stacks
    Site,
}

/// How call stacks are taken.
#[derive(Args)]
pub(crate) struct StackOptions {
    /// Take the call stack of each allocation: not at all, along frame pointers, or with everything
    /// that tells how to unwind
    #[arg(long, value_enum, value_name = "HOW")]
    pub(crate) stacks: Option<Stacks>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Stacks {
    /// No stacks
    Off,
    /// Along frame pointers: cheap, and short where programs have none
    Fp,
    /// With unwind tables and interpreters' own frames
    Full,
}

/// Whether objects are followed.
#[derive(Args)]
pub(crate) struct ObjectOptions {
    /// Count streams, events, graphs, modules and other objects that are never destroyed
    #[arg(long, value_enum, value_name = "ON|OFF", default_value = "on")]
    pub(crate) objects: Switch,
}

/// Yes or no.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// Yes
    On,
    /// No
    Off,
}

/// Whether tensors are followed, too.
#[derive(Args)]
pub(crate) struct TorchOptions {
    /// Follow the tensors of PyTorch inside the memory that its cache holds: each by the place in the
    /// program, or only their sums, which is cheaper [default with no value: full]
    #[arg(
        long,
        value_enum,
        value_name = "HOW",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "full"
    )]
    pub(crate) torch: Option<TorchHow>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TorchHow {
    /// By the place in the program
    Full,
    /// Sums by process and device
    Totals,
}

#[derive(Args)]
pub(crate) struct Kernels {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Time between reports: 500ms, 2s, 1m
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = quantity::interval)]
    pub(crate) interval: Duration,
    /// End after this time
    #[arg(long, value_name = "TIME", value_parser = quantity::time)]
    pub(crate) duration: Option<Duration>,
    /// List this many kernels per process [default: 10, with --json 1000]
    #[arg(long, value_name = "N")]
    pub(crate) top: Option<usize>,
    /// One JSON object a line; CMD's standard output then goes to standard error
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the reports to a file; - is standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long, requires = "output")]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) work: WorkOptions,
}

/// How launches are counted.
#[derive(Args)]
pub(crate) struct WorkOptions {
    /// Which launches to look at for errors: those of kernels and shapes that are new and one in 64
    /// of the others, or all, which makes counting a launch up to half again as expensive [default: new]
    #[arg(long, value_enum, value_name = "WHICH")]
    pub(crate) check_launches: Option<CheckLaunches>,
    /// Entries of the kernel's tables of launches and copies
    #[arg(long, hide = true, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(crate) work_table_size: Option<u32>,
    /// Probe launches with a program that does nothing, to measure against
    #[arg(long, hide = true)]
    pub(crate) baseline: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckLaunches {
    /// Kernels and shapes that are new, and one launch in 64
    New,
    /// Every launch
    All,
}

#[derive(Args)]
pub(crate) struct Record {
    #[command(flatten)]
    pub(crate) target: Target,
    /// The file; - is standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Overwrite an existing file
    #[arg(long)]
    pub(crate) force: bool,
    /// End after this time
    #[arg(long, value_name = "TIME", value_parser = quantity::time)]
    pub(crate) duration: Option<Duration>,
    /// Record kernel launches and copies, too
    #[arg(long)]
    pub(crate) kernels: bool,
    #[command(flatten)]
    pub(crate) work: WorkOptions,
    #[command(flatten)]
    pub(crate) torch: TorchOptions,
    #[command(flatten)]
    pub(crate) stacks: StackOptions,
    #[command(flatten)]
    pub(crate) objects: ObjectOptions,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum SortBy {
    /// The biggest
    Size,
    /// The oldest
    Age,
    /// Those with the most allocations
    Count,
}

impl From<SortBy> for Sort {
    fn from(sort: SortBy) -> Self {
        match sort {
            SortBy::Size => Self::Size,
            SortBy::Age => Self::Age,
            SortBy::Count => Self::Count,
        }
    }
}

#[derive(Args)]
pub(crate) struct Demo {
    /// The simulated driver's folder; found beside the program after `./dev build`
    #[arg(long, value_name = "FOLDER", env = "VRAMSCOPE_SIMULATOR")]
    pub(crate) simulator: Option<PathBuf>,
    /// How long to show it
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = quantity::time)]
    pub(crate) duration: Duration,
}

/// Prints help, the version, or an error of usage. Errors quote arguments, so those are escaped first.
fn explain(error: &clap::Error) -> Outcome {
    let escaped = std::env::args_os().map(|word| plain(&word.to_string_lossy()).into_owned());
    match Cli::try_parse_from(escaped) {
        Err(error) => drop(error.print()),
        Ok(_) => output::complain(&error.render().to_string()),
    }
    Outcome::Code(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Parses the command line and runs the verb.
pub(crate) fn run() -> Result<Outcome> {
    let verb = match Cli::try_parse() {
        Ok(cli) => cli.verb,
        Err(error) => return Ok(explain(&error)),
    };
    match verb {
        Verb::Report(options) => commands::report::run(&options),
        Verb::Diff(options) => commands::diff::run(&options),
        Verb::Export(options) => commands::export::run(&options),
        Verb::Plot(options) => commands::plot::run(&options),
        Verb::Advise(options) => commands::advise::run(&options),
        #[cfg(feature = "capture")]
        Verb::Trace(options) => commands::trace::run(&options),
        #[cfg(feature = "capture")]
        Verb::Kernels(options) => commands::kernels::run(&options),
        #[cfg(feature = "capture")]
        Verb::Record(options) => commands::record::run(&options),
        #[cfg(feature = "serve")]
        Verb::Serve(options) => commands::serve::run(&options),
        #[cfg(not(feature = "serve"))]
        Verb::Serve(_) => Err(commands::no_agent()),
        #[cfg(feature = "capture")]
        Verb::Doctor => commands::doctor::run(),
        #[cfg(feature = "capture")]
        Verb::Demo(options) => commands::demo::run(&options),
        #[cfg(not(feature = "capture"))]
        Verb::Trace(_) | Verb::Kernels(_) | Verb::Record(_) | Verb::Doctor | Verb::Demo(_) => {
            Err(commands::no_capture())
        }
    }
}
