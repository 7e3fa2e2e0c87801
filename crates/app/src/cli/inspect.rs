//! The command line of verbs that inspect processes, programs and the host: `advise`, `explain`, `why`,
//! `reclaim`, `mark` and `doctor`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use engine::model::Bytes;

use super::shared::FormatOptions;
use super::trace::TargetArgs;
use crate::parse_units;

pub(super) const ADVISE_EXAMPLES: &str = "\
EXAMPLES
  vramscope advise                       observe for 3 seconds, then suggest steps
  vramscope advise --gpu 0 --need 20G    exit with status 1 if that requires stopping a process
  vramscope advise --agent http://127.0.0.1:9754    query a running agent, which has seen more
  vramscope advise /var/lib/vramscope/incidents/2026-11-15T15-04-05.123Z-oom-gpu0-pid4711

Only suggestions are printed; nothing is changed. FILE is a vramscope recording or an incident
directory; without it live processes are observed, which requires root.";

pub(super) const EXPLAIN_EXAMPLES: &str = "\
EXAMPLES
  vramscope explain -p 4711                  observe for 3 seconds, then explain its memory
  vramscope explain -- python train.py       from the first instruction: context, code, graphs
  vramscope explain run.arrows               processes of a recording, at their highest use
  vramscope explain -p 4711 --agent http://127.0.0.1:9754    ask an agent, which has seen more

The parts add up to what the driver reports for the process. Memory from before the trace is one
part. FILE is a vramscope recording. Tracing a running process requires root; a command is traced
without root as `vramscope run` does.";

pub(super) const WHY_EXAMPLES: &str = "\
EXAMPLES
  vramscope why -p 4711            what keeps the leaking memory of process 4711 alive
  vramscope why -p 4711 --json     the same as JSON

The program runs under `vramscope run` and has imported the Python package vramscope, which
`vramscope run --why` does. The search reads objects and changes none.";

pub(super) const RECLAIM_EXAMPLES: &str = "\
EXAMPLES
  vramscope reclaim -p 4711        call the functions that process 4711 registered
  vramscope reclaim -p 4711 --json

Functions are registered with vramscope.on_memory_pressure of the Python package. Exits with status
1 if there are none, or if one fails.";

pub(super) const MARK_EXAMPLES: &str = "\
EXAMPLES
  vramscope mark \"epoch 3\"                    a point in time, for all processes of the host
  vramscope mark -p 4711 \"epoch 3\"            for one process; needs no root if it is yours
  vramscope mark -p 4711 --begin evaluation    a range, until the same label with --end
  vramscope mark -p 4711 --end evaluation

Running traces of this host show and record the label: trace, record, run, top and serve. In
Python: vramscope.mark(\"epoch 3\"). `vramscope report FILE marks` shows the memory between marks.";

pub(super) const DOCTOR_EXAMPLES: &str = "\
EXAMPLES
  vramscope doctor                         what works on this host, and what to change
  vramscope doctor --format json           the same for scripts
  vramscope doctor --bundle                also a file for a bug report

Run it as the user that traces: root, or one with the capabilities. It changes nothing.";

#[derive(Args)]
pub(crate) struct AdviseArgs {
    /// Recording or incident directory
    #[arg(value_name = "FILE", conflicts_with = "agent")]
    pub(crate) file: Option<PathBuf>,
    /// Only this GPU (index as in nvidia-smi)
    #[arg(long, value_name = "N")]
    pub(crate) gpu: Option<u16>,
    /// Memory that must be free; exit with status 1 if that requires stopping a process
    #[arg(long, value_name = "SIZE", value_parser = parse_units::size)]
    pub(crate) need: Option<Bytes>,
    /// Only suggestions for this process (may be repeated)
    #[arg(short, long = "pid", alias = "process", value_name = "PID")]
    pub(crate) pid: Vec<u32>,
    /// How long to observe live processes
    #[arg(
        short,
        long,
        value_name = "DURATION",
        default_value = "3s",
        value_parser = parse_units::time,
        conflicts_with_all = ["file", "agent"]
    )]
    pub(crate) duration: Duration,
    /// Also probe this libcuda.so.1, in addition to those found
    #[arg(long, value_name = "PATH", conflicts_with_all = ["file", "agent"])]
    pub(crate) driver: Vec<PathBuf>,
    /// Query a running agent instead
    #[arg(long, value_name = "URL")]
    pub(crate) agent: Option<String>,
    /// File with the agent's bearer token
    #[arg(long, value_name = "FILE", requires = "agent")]
    pub(crate) token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) format: FormatOptions,
}

#[derive(Args)]
pub(crate) struct ExplainArgs {
    /// Recording
    #[arg(value_name = "FILE", conflicts_with_all = ["pid", "all", "agent", "command"])]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// How long to observe [default: 3s; with -- CMD: until it exits]
    #[arg(
        short,
        long,
        value_name = "DURATION",
        value_parser = parse_units::time,
        conflicts_with_all = ["file", "agent"]
    )]
    pub(crate) duration: Option<Duration>,
    /// List at most N objects per process
    #[arg(short = 'n', long, value_name = "N", default_value = "10")]
    pub(crate) top: usize,
    /// Query a running agent instead
    #[arg(long, value_name = "URL", conflicts_with = "command")]
    pub(crate) agent: Option<String>,
    /// File with the agent's bearer token
    #[arg(long, value_name = "FILE", requires = "agent")]
    pub(crate) token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) format: FormatOptions,
}

/// Options of `why` and `reclaim`.
#[derive(Args)]
pub(crate) struct ProgramArgs {
    /// Python process
    #[arg(short, long, alias = "process", value_name = "PID")]
    pub(crate) pid: u32,
    #[command(flatten)]
    pub(crate) format: FormatOptions,
}

#[derive(Args)]
pub(crate) struct MarkArgs {
    /// Text of at most 256 bytes
    #[arg(value_name = "LABEL")]
    pub(crate) label: String,
    /// Only for this process (may be repeated); default: all processes, which requires root
    #[arg(short, long = "pid", value_name = "PID")]
    pub(crate) pid: Vec<u32>,
    /// Begin a range instead of marking a point
    #[arg(long, conflicts_with = "end")]
    pub(crate) begin: bool,
    /// End the newest range with this label
    #[arg(long)]
    pub(crate) end: bool,
    /// Only in the trace that this vramscope process runs
    #[arg(long, value_name = "PID")]
    pub(crate) tracer: Option<u32>,
}

#[derive(Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) format: FormatOptions,
    /// Also write a redacted .tar.gz for a bug report [default: vramscope-doctor-DATE-TIME.tar.gz]
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub(crate) bundle: Option<Option<PathBuf>>,
    /// Overwrite an existing file
    #[arg(long, requires = "bundle")]
    pub(crate) force: bool,
}
