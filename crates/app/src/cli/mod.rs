//! Command line: clap structs and the dispatch to the verbs.

mod advise;
mod doctor;
mod explain;
mod files;
mod gates;
mod packaging;
#[cfg(test)]
mod page;
mod plot;
mod program;
mod run;
mod serve;
mod top;

use clap::{ArgGroup, Args, CommandFactory, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use engine::model::units::Bytes;
use engine::snapshot::SortOrder;
use formats::sanitize::sanitize;

use crate::io::output;
use crate::{Outcome, commands, parse_units};

pub(crate) use advise::AdviseArgs;
pub(crate) use doctor::DoctorArgs;
pub(crate) use explain::ExplainArgs;
pub(crate) use files::{
    AnalysisArg, DiffArgs, DiffFormat, ExportArgs, ExportFormat, FileFilterArgs, InUseAtArg,
    ProfileUnitArg, ProfileValueArg, ReplayArgs, ReportArgs, ReportFormat, SmiArgs,
};
pub(crate) use gates::FailOnLeakArgs;
pub(crate) use packaging::{CompletionsArgs, ManArgs, ShellArg};
pub(crate) use plot::{PlotArgs, PlotByArg, PlotThemeArg, PlotTimeArg};
pub(crate) use program::{ReclaimArgs, WhyArgs};
pub(crate) use run::RunArgs;
pub(crate) use serve::ServeArgs;
pub(crate) use top::TopArgs;

const ABOUT: &str = "Trace the GPU memory of every process on this host with eBPF: who holds it, \
    which line allocated it, what leaks. No restart, no code change.";

#[derive(Parser)]
#[command(name = "vramscope", bin_name = "vramscope", version, about = ABOUT, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
    /// Print only errors and failed checks
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Also print details, such as which libraries are probed
    #[arg(short, long, global = true)]
    verbose: bool,
    /// Print times in UTC instead of local time
    #[arg(long, global = true)]
    utc: bool,
}

/// Verbs. Aliases are the words that people try first.
#[derive(Subcommand)]
enum Verb {
    /// Show what fills the GPU and what leaks, live, by process
    #[command(after_help = TRACE_EXAMPLES, aliases = ["watch", "monitor", "live", "attach"])]
    Trace(Box<TraceArgs>),
    /// Show GPUs, processes, sites and call stacks on the whole screen
    #[command(after_help = top::EXAMPLES, aliases = ["tui", "ui"])]
    Top(Box<TopArgs>),
    /// Run a program and show its live GPU memory, without root and without probes
    #[command(after_help = run::EXAMPLES)]
    Run(Box<RunArgs>),
    /// Count kernel launches, memory copies and failed driver calls
    #[command(after_help = KERNELS_EXAMPLES)]
    Kernels(Box<KernelsArgs>),
    /// Record every event to a file
    #[command(after_help = RECORD_EXAMPLES, aliases = ["rec", "capture"])]
    Record(Box<RecordArgs>),
    /// Print the last report of a recorded trace again
    #[command(after_help = files::REPLAY_EXAMPLES)]
    Replay(Box<ReplayArgs>),
    /// Analyze a recording or a file of another tool: leaks, peak, usage, fragmentation
    #[command(after_help = files::REPORT_EXAMPLES, aliases = ["analyze", "show", "info"])]
    Report(Box<ReportArgs>),
    /// Compare two files by call site
    #[command(after_help = files::DIFF_EXAMPLES, aliases = ["compare"])]
    Diff(DiffArgs),
    /// Convert a file to another tool's format
    #[command(after_help = files::EXPORT_EXAMPLES, aliases = ["convert"])]
    Export(ExportArgs),
    /// Plot memory over time as SVG, PNG or an HTML report
    #[command(after_help = plot::EXAMPLES, aliases = ["chart", "graph", "draw"])]
    Plot(Box<PlotArgs>),
    /// Run the monitoring agent: metrics, alerts, out-of-memory snapshots
    #[command(after_help = serve::EXAMPLES, aliases = ["agent", "daemon"])]
    Serve(Box<ServeArgs>),
    /// Suggest how to free GPU memory, cheapest first
    #[command(after_help = advise::EXAMPLES, aliases = ["advice"])]
    Advise(Box<AdviseArgs>),
    /// Show which Python references keep the GPU memory of a program alive
    #[command(after_help = program::WHY_EXAMPLES)]
    Why(WhyArgs),
    /// Make a program free GPU memory, through functions that it registered
    #[command(after_help = program::RECLAIM_EXAMPLES)]
    Reclaim(ReclaimArgs),
    /// Explain where the driver-reported memory of a process goes
    #[command(after_help = explain::EXAMPLES)]
    Explain(Box<ExplainArgs>),
    /// Check whether this host can trace, and what is missing
    #[command(after_help = doctor::EXAMPLES, alias = "check")]
    Doctor(DoctorArgs),
    /// Answer one question about a file; the same as `report FILE QUESTION`
    #[command(hide = true, aliases = ["leak", "suspects"])]
    Leaks(Box<ReportArgs>),
    /// The same for the peak
    #[command(hide = true)]
    Peak(Box<ReportArgs>),
    /// Show a recorded demo: no GPU and no root needed
    Demo(DemoArgs),
    /// Print the completion script of a shell
    #[command(after_help = packaging::COMPLETIONS_EXAMPLES)]
    Completions(CompletionsArgs),
    /// Print a man page, or write all of them to a directory
    #[command(after_help = packaging::MAN_EXAMPLES)]
    Man(ManArgs),
}

const TRACE_EXAMPLES: &str = "\
EXAMPLES
  vramscope trace                           all processes, a report every 2 seconds
  vramscope trace -p 4711 -d 1m             the verdict on process 4711 after a minute
  vramscope trace --user ann --name train   processes of ann that run train.py, train_large.py, ...
  vramscope trace -- python train.py        run a program and trace it from its first instruction
  vramscope trace --fail-on-leak -q -- pytest         exit with status 3 if anything leaks
  vramscope trace -p 4711 --leak 1          also the evidence and the stack of the first leak
  vramscope trace -p 4711 --allocations --min-age 10m every allocation held for 10 minutes
  vramscope trace --format json -d 1m       one JSON object per line, for one minute

Growth is judged after 30 seconds. With sudo, -- CMD runs as the user who called sudo, with that
user's environment. Requires root. Ctrl-C prints a final report and exits.";

const KERNELS_EXAMPLES: &str = "\
EXAMPLES
  vramscope kernels                         all processes, a report every 2 seconds
  vramscope kernels -p 4711 --top 20        the 20 most launched kernels of process 4711
  vramscope kernels -- python train.py      run a program and count every launch
  vramscope kernels --format json -d 1m     one JSON object per line, for one minute

Requires root. Ctrl-C prints a final report and exits.";

const RECORD_EXAMPLES: &str = "\
EXAMPLES
  vramscope record -d 10m                             all processes, for ten minutes
  vramscope record -o one.arrows -p 4711              process 4711, until it exits
  vramscope record -o run.arrows -- python train.py   a program, from its first instruction

A recording is an Apache Arrow stream that pyarrow, polars and DuckDB also read. Requires root.
Ctrl-C ends the recording.";

/// Processes to trace; shared by all verbs that trace.
#[derive(Args)]
pub(crate) struct TargetArgs {
    /// Trace process PID (may be repeated)
    #[arg(short, long = "pid", value_name = "PID", conflicts_with = "all")]
    pub(crate) pid: Vec<u32>,
    // rustdoc would read the brackets of a doc comment as a link.
    #[arg(short, long, help = "Trace all processes, including ones started later [default]")]
    pub(crate) all: bool,
    /// With --pid: also trace children forked from now on
    #[arg(short, long, requires = "pid")]
    pub(crate) follow_forks: bool,
    /// Also probe this libcuda.so.1, in addition to those found
    #[arg(long, value_name = "PATH")]
    pub(crate) driver: Vec<PathBuf>,
    /// Run CMD and trace it and its children from the first instruction
    #[arg(last = true, value_name = "CMD", conflicts_with_all = ["pid", "all"])]
    pub(crate) command: Vec<OsString>,
    /// Size of the event ring buffer
    #[arg(long, hide = true, value_parser = parse_units::size)]
    pub(crate) ring_size: Option<Bytes>,
    /// Size of the stack ring buffer
    #[arg(long, hide = true, value_parser = parse_units::size)]
    pub(crate) stack_ring_size: Option<Bytes>,
    /// Attach probes that do nothing (baseline for benchmarks)
    #[arg(long, hide = true)]
    pub(crate) empty_probes: bool,
    /// Entries of the per-process BPF maps
    #[arg(long, hide = true, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) process_table_size: Option<u32>,
    /// Keep per-thread state in a BPF map of this many entries instead of task storage
    #[arg(long, hide = true, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) thread_table_size: Option<u32>,
    /// Use only this attach mode
    #[arg(long, hide = true, value_name = "MODE")]
    pub(crate) attach_mode: Option<AttachModeArg>,
}

/// Attach mode, see [`capture::plan::AttachMode`].
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum AttachModeArg {
    Session,
    Multi,
    Single,
}

#[derive(Args)]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    #[command(flatten)]
    pub(crate) live: LiveArgs,
}

/// Options of live reports, shared by `trace` and `run`.
#[derive(Args)]
#[command(group(ArgGroup::new("files").args(["output", "record"]).multiple(true)))]
pub(crate) struct LiveArgs {
    /// Time between reports, such as 500ms, 2s, 1m
    #[arg(
        short,
        long,
        value_name = "DURATION",
        default_value = "2s",
        value_parser = parse_units::interval
    )]
    pub(crate) interval: Duration,
    /// Stop after this long
    #[arg(short, long, value_name = "DURATION", value_parser = parse_units::time)]
    pub(crate) duration: Option<Duration>,
    /// Group the report by process, allocation site, library, user, job or process tree
    #[arg(long, value_enum, value_name = "KEY", default_value = "process")]
    pub(crate) by: GroupByArg,
    /// List every allocation with its address, by process and thread
    #[arg(long)]
    pub(crate) allocations: bool,
    /// Show leak N at the end with its evidence and its whole call stack
    #[arg(long, value_name = "N")]
    pub(crate) leak: Option<usize>,
    /// Only processes of this user; with -- CMD: run CMD as this user
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Only processes whose program contains this text
    #[arg(long, value_name = "TEXT")]
    pub(crate) name: Option<String>,
    /// List at most N entries per list [default: 20 for text]
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) top: Option<usize>,
    /// Show at most N frames per stack; 0 shows all, also of libraries [default: 6]
    #[arg(long, value_name = "N")]
    pub(crate) stack_depth: Option<usize>,
    #[command(flatten)]
    pub(crate) wrappers: WrapperArgs,
    #[command(flatten)]
    pub(crate) stacks: StackArgs,
    #[command(flatten)]
    pub(crate) objects: ObjectArgs,
    /// List only allocations of at least SIZE, such as 1M, 2.5G
    #[arg(long, value_name = "SIZE", value_parser = parse_units::size)]
    pub(crate) min_size: Option<Bytes>,
    /// List only allocations that have been live for at least this long
    #[arg(long, value_name = "DURATION", value_parser = parse_units::time)]
    pub(crate) min_age: Option<Duration>,
    /// Sort order
    #[arg(long, value_enum, value_name = "ORDER", default_value = "size")]
    pub(crate) sort: SortArg,
    #[command(flatten)]
    pub(crate) format: FormatOptions,
    /// Write reports to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long, requires = "files")]
    pub(crate) force: bool,
    /// Also count kernel launches and memory copies
    #[arg(long)]
    pub(crate) kernels: bool,
    #[command(flatten)]
    pub(crate) launches: LaunchArgs,
    #[command(flatten)]
    pub(crate) torch: TorchArgs,
    /// Also record every event to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) limit: FailOnLeakArgs,
}

/// Grouping of a report.
#[derive(Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum GroupByArg {
    /// By process and thread
    #[default]
    Process,
    /// By allocation site
    Site,
    /// By the library that allocated the memory
    Library,
    /// By user
    User,
    /// By job: Slurm, Ray, PBS, LSF
    Job,
    /// By process tree
    Tree,
}

/// How call stacks are shown.
#[derive(Args)]
pub(crate) struct WrapperArgs {
    /// Treat function NAME as a wrapper: name its caller instead (may be repeated)
    #[arg(long, value_name = "NAME")]
    pub(crate) wrapper: Vec<String>,
}

/// How call stacks are collected.
#[derive(Args)]
pub(crate) struct StackArgs {
    /// How to collect call stacks: off, fp (frame pointers) or full (unwind tables and Python
    /// frames)
    #[arg(long, value_enum, value_name = "MODE")]
    pub(crate) stacks: Option<StackModeArg>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StackModeArg {
    /// No stacks
    Off,
    /// Frame pointers: cheap; truncated where code has none
    Fp,
    /// Unwind tables and Python frames
    Full,
}

/// Whether CUDA objects are tracked.
#[derive(Args)]
pub(crate) struct ObjectArgs {
    /// Do not track streams, events, graphs, modules and other CUDA objects
    #[arg(long)]
    pub(crate) no_objects: bool,
}

/// Output format of live reports.
#[derive(Args)]
pub(crate) struct FormatOptions {
    /// Output format; json prints one object per line
    #[arg(long, value_enum, default_value = "text")]
    format: TextOrJson,
    /// Same as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

impl FormatOptions {
    /// Whether the output is JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.json || self.format == TextOrJson::Json
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TextOrJson {
    /// Human-readable text
    Text,
    /// One JSON object per line
    Json,
}

/// Whether PyTorch tensors are tracked.
#[derive(Args)]
pub(crate) struct TorchArgs {
    /// Track PyTorch tensors [default: auto; full if given without MODE]
    #[arg(
        long,
        value_enum,
        value_name = "MODE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "full"
    )]
    pub(crate) torch: Option<TensorModeArg>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TensorModeArg {
    /// By call site, while the memory of a process grows
    Auto,
    /// By call site, always
    Full,
    /// Totals per process and device
    Totals,
    /// Not at all
    Off,
}

#[derive(Args)]
pub(crate) struct KernelsArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Time between reports, such as 500ms, 2s, 1m
    #[arg(
        short,
        long,
        value_name = "DURATION",
        default_value = "2s",
        value_parser = parse_units::interval
    )]
    pub(crate) interval: Duration,
    /// Stop after this long
    #[arg(short, long, value_name = "DURATION", value_parser = parse_units::time)]
    pub(crate) duration: Option<Duration>,
    /// List at most N entries per list [default: 10 for text]
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) top: Option<usize>,
    #[command(flatten)]
    pub(crate) format: FormatOptions,
    /// Write reports to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long, requires = "output")]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) launches: LaunchArgs,
}

/// How launches are counted and checked.
#[derive(Args, Default)]
pub(crate) struct LaunchArgs {
    /// Which launches to check for errors: sampled, or all (slower) [default: sampled]
    #[arg(long, value_enum, value_name = "MODE")]
    pub(crate) check_launches: Option<CheckLaunchesArg>,
    /// Entries of the BPF maps for launches and copies
    #[arg(long, hide = true, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(crate) activity_table_size: Option<u32>,
    /// Attach launch probes that do nothing (baseline for benchmarks)
    #[arg(long, hide = true)]
    pub(crate) empty_launch_probes: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckLaunchesArg {
    /// New kernels and shapes, and one in 64 of the rest
    Sampled,
    /// All launches
    All,
}

#[derive(Args)]
pub(crate) struct RecordArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Write the recording to FILE [default: vramscope-DATE-TIME.arrows]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long, requires = "output")]
    pub(crate) force: bool,
    /// With -- CMD: run CMD as this user [default: the one who called sudo]
    #[arg(long, value_name = "USER", requires = "command")]
    pub(crate) user: Option<String>,
    /// Stop after this long
    #[arg(short, long, value_name = "DURATION", value_parser = parse_units::time)]
    pub(crate) duration: Option<Duration>,
    /// Also count kernel launches and memory copies
    #[arg(long)]
    pub(crate) kernels: bool,
    #[command(flatten)]
    pub(crate) launches: LaunchArgs,
    #[command(flatten)]
    pub(crate) torch: TorchArgs,
    #[command(flatten)]
    pub(crate) stacks: StackArgs,
    #[command(flatten)]
    pub(crate) objects: ObjectArgs,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum SortArg {
    /// Largest first
    Size,
    /// Oldest first
    Age,
    /// Most allocations first
    Count,
}

impl From<SortArg> for SortOrder {
    fn from(sort: SortArg) -> Self {
        match sort {
            SortArg::Size => Self::Size,
            SortArg::Age => Self::Age,
            SortArg::Count => Self::Count,
        }
    }
}

#[derive(Args)]
pub(crate) struct DemoArgs {
    /// Trace real processes on the simulated driver in this directory instead; requires root
    #[arg(long, value_name = "DIR", env = "VRAMSCOPE_SIMULATOR")]
    pub(crate) simulator: Option<PathBuf>,
    /// Stop after this long [default: 20s with --simulator and without a terminal]
    #[arg(short, long, value_name = "DURATION", value_parser = parse_units::time)]
    pub(crate) duration: Option<Duration>,
}

/// Prints help, the version or a usage error. Errors quote arguments, so these are escaped first.
fn explain_error(error: &clap::Error) -> Outcome {
    let escaped =
        std::env::args_os().map(|argument| sanitize(&argument.to_string_lossy()).into_owned());
    match Cli::try_parse_from(escaped) {
        Err(error) => drop(error.print()),
        Ok(_) => output::log(&error.render().to_string()),
    }
    Outcome::Code(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Parses the command line and runs the verb.
pub(crate) fn run() -> Result<Outcome> {
    let Cli { verb, quiet, verbose, utc } = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return Ok(explain_error(&error)),
    };
    output::set_verbosity(quiet, verbose);
    output::set_utc(utc);
    match verb {
        Verb::Leaks(options) => commands::report::run_question(&options, AnalysisArg::Leaks),
        Verb::Peak(options) => commands::report::run_question(&options, AnalysisArg::Peak),
        Verb::Replay(options) => commands::replay::run(&options),
        Verb::Report(options) => commands::report::run(&options),
        Verb::Diff(options) => commands::diff::run(&options),
        Verb::Export(options) => commands::export::run(&options),
        Verb::Plot(options) => commands::plot::run(&options),
        Verb::Advise(options) => commands::advise::run(&options),
        Verb::Top(options) => commands::top::run(&options),
        Verb::Completions(options) => commands::completions::run(Cli::command(), &options),
        Verb::Man(options) => commands::man::run(Cli::command(), &options),
        Verb::Explain(options) => commands::explain::run(&options),
        #[cfg(feature = "capture")]
        Verb::Trace(options) => commands::trace::run_verb(&options),
        #[cfg(feature = "capture")]
        Verb::Run(options) => commands::run::run(*options),
        #[cfg(feature = "capture")]
        Verb::Kernels(options) => commands::kernels::run(&options),
        #[cfg(feature = "capture")]
        Verb::Record(options) => commands::record::run(&options),
        #[cfg(feature = "capture")]
        Verb::Serve(options) => commands::serve::run(&options),
        #[cfg(feature = "capture")]
        Verb::Why(options) => commands::why::run(&options),
        #[cfg(feature = "capture")]
        Verb::Reclaim(options) => commands::reclaim::run(&options),
        #[cfg(feature = "capture")]
        Verb::Doctor(options) => commands::doctor::run(&options),
        Verb::Demo(options) => commands::demo::run(&options),
        #[cfg(not(feature = "capture"))]
        Verb::Trace(_)
        | Verb::Run(_)
        | Verb::Kernels(_)
        | Verb::Record(_)
        | Verb::Serve(_)
        | Verb::Why(_)
        | Verb::Reclaim(_)
        | Verb::Doctor(_) => Err(commands::no_capture()),
    }
}
