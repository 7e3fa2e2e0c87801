//! The command line of verbs that trace.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args};
use engine::model::Bytes;
use engine::snapshot::SortOrder;

use super::choice::{Choice, choice};
use super::shared::{
    AllocatorArgs, FailOnLeakArgs, FormatOptions, GroupByArg, LaunchArgs, ObjectArgs, StackArgs,
    TimeArgs, WrapperArgs,
};
use crate::parse_units;

pub(super) const TRACE_EXAMPLES: &str = "\
EXAMPLES
  vramscope trace                           all processes, a report every 2 seconds
  vramscope trace -p 4711 -d 1m             the verdict on process 4711 after a minute
  vramscope trace --user ann --name train   processes of ann that run train.py, train_large.py, ...
  vramscope trace -- python train.py        run a program and trace it from its first instruction
  vramscope trace --fail-on-leak -q -- pytest         exit with status 3 if anything leaks
  vramscope trace -p 4711 --leak 1          also the evidence and the stack of the first leak
  vramscope trace -p 4711 --allocations --min-age 10m every allocation held for 10 minutes
  vramscope trace --agent http://127.0.0.1:9754 -p 4711 --leak 1    what an agent knows
  vramscope trace --format json -d 1m       one JSON object per line, for one minute

Growth is judged after 30 seconds. With sudo, -- CMD runs as the user who called sudo, with that
user's environment. Requires root. Ctrl-C prints a final report and exits.";

pub(super) const KERNELS_EXAMPLES: &str = "\
EXAMPLES
  vramscope kernels                         all processes, a report every 2 seconds
  vramscope kernels -p 4711 --top 20        the 20 most launched kernels of process 4711
  vramscope kernels -- python train.py      run a program and count every launch
  vramscope kernels --format json -d 1m     one JSON object per line, for one minute

Requires root. Ctrl-C prints a final report and exits.";

pub(super) const RECORD_EXAMPLES: &str = "\
EXAMPLES
  vramscope record -d 10m                             all processes, for ten minutes
  vramscope record -o one.arrows -p 4711              process 4711, until it exits
  vramscope record -o run.arrows -- python train.py   a program, from its first instruction

A recording is an Apache Arrow stream that pyarrow, polars and DuckDB also read. Requires root.
Ctrl-C ends the recording.";

pub(super) const RUN_EXAMPLES: &str = "\
EXAMPLES
  vramscope run -- python train.py              live memory every 2 seconds
  vramscope run --by site -- ./app              memory by call site
  vramscope run --fail-on-leak -- ./test        exit with status 3 if anything was not freed
  vramscope run --record run.arrows -- ./app    also record every event
  vramscope run --why -- python train.py        also which references keep leaking memory alive

The CUDA driver loads a library into the program and its children, through CUDA_INJECTION64_PATH. An
injection library that is already configured is also started. Works without root, on every kernel.";

/// Processes to trace; shared by all verbs that trace.
#[derive(Args, Default)]
pub(crate) struct TargetArgs {
    /// Trace process PID (may be repeated)
    #[arg(short, long = "pid", alias = "process", value_name = "PID", conflicts_with = "all")]
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
    #[arg(long, hide = true, value_name = "MODE", value_parser = ["session", "multi", "single"])]
    pub(crate) attach_mode: Option<String>,
}

#[derive(Args)]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Print what a running agent knows instead, without root
    #[arg(long, value_name = "URL", conflicts_with_all = ["command", "driver", "follow_forks", "interval", "duration", "record", "kernels", "allocators", "stacks", "no_objects"])]
    pub(crate) agent: Option<String>,
    /// File with the agent's bearer token
    #[arg(long, value_name = "FILE", requires = "agent")]
    pub(crate) token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) live: LiveArgs,
}

/// Options of live reports, shared by `trace` and `run`.
#[derive(Args)]
#[command(group(ArgGroup::new("files").args(["output", "record"]).multiple(true)))]
pub(crate) struct LiveArgs {
    #[command(flatten)]
    pub(crate) times: TimeArgs,
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
    /// Only processes that use this GPU (index as in nvidia-smi)
    #[arg(long, value_name = "N")]
    pub(crate) gpu: Option<u16>,
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
    #[arg(long, value_name = "ORDER", default_value = "size", value_parser = choice(ORDERS))]
    pub(crate) sort: SortOrder,
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
    pub(crate) allocators: AllocatorArgs,
    /// Also record every event to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) limit: FailOnLeakArgs,
}

const ORDERS: &[Choice<SortOrder>] = &[
    ("size", "Largest first", SortOrder::Size),
    ("age", "Oldest first", SortOrder::Age),
    ("count", "Most allocations first", SortOrder::Count),
];

#[derive(Args)]
pub(crate) struct KernelsArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    #[command(flatten)]
    pub(crate) times: TimeArgs,
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
    pub(crate) allocators: AllocatorArgs,
    #[command(flatten)]
    pub(crate) stacks: StackArgs,
    #[command(flatten)]
    pub(crate) objects: ObjectArgs,
}

#[derive(Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) live: LiveArgs,
    /// Run CMD and trace it and its children
    #[arg(last = true, required_unless_present = "for_parent", value_name = "CMD")]
    command: Vec<OsString>,
    /// Find out which Python references keep leaking memory alive
    #[arg(long)]
    pub(crate) why: bool,
    /// Trace the process that started this one: for the Python package
    #[arg(long, hide = true, conflicts_with = "command")]
    pub(crate) for_parent: bool,
    /// Size of the event ring buffer of each process
    #[arg(long, hide = true, value_parser = parse_units::size)]
    ring_size: Option<Bytes>,
    /// Size of the stack ring buffer of each process
    #[arg(long, hide = true, value_parser = parse_units::size)]
    stack_ring_size: Option<Bytes>,
}

impl RunArgs {
    /// Returns the command as a target of a trace, and the options of live reports.
    pub(crate) fn into_parts(self) -> (TargetArgs, LiveArgs) {
        let target = TargetArgs {
            command: self.command,
            ring_size: self.ring_size,
            stack_ring_size: self.stack_ring_size,
            ..TargetArgs::default()
        };
        (target, self.live)
    }
}
