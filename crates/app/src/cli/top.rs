//! The command line of `top`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use formats::report::tables::processes::ProcessColumn;

use super::shared::AllocatorArgs;
use crate::parse_units;
use crate::top::Theme;

pub(super) const EXAMPLES: &str = "\
EXAMPLES
  vramscope top                             this host: probes with root, else an agent or the driver
  vramscope top -- python train.py          a program, without root; its output follows at the end
  vramscope top --agent http://127.0.0.1:9754         a running agent; repeat it for several
  vramscope top run.arrows --speed 10       replay a recording ten times as fast
  vramscope top --once                      one screen as plain text
  vramscope top --filter train --theme light
  vramscope top --once --columns pid,program,used,peak,host-mem

Enter goes from processes to sites, call stacks and allocations; ? shows all keys. Nothing is
changed: no process is signaled. --once ends after 2 seconds; growth is judged after 30 seconds.";

#[derive(Args)]
pub(crate) struct TopArgs {
    /// Recording to replay
    #[arg(value_name = "FILE", conflicts_with_all = ["agent", "pid", "driver"])]
    pub(crate) file: Option<PathBuf>,
    /// Show a running agent (may be repeated)
    #[arg(long, value_name = "URL", conflicts_with_all = ["pid", "driver"])]
    pub(crate) agent: Vec<String>,
    /// File with the agents' bearer token
    #[arg(long, value_name = "FILE", requires = "agent")]
    pub(crate) token_file: Option<PathBuf>,
    /// Only process PID (may be repeated)
    #[arg(short, long = "pid", alias = "process", value_name = "PID")]
    pub(crate) pid: Vec<u32>,
    /// Also probe this libcuda.so.1, in addition to those found
    #[arg(long, value_name = "PATH")]
    pub(crate) driver: Vec<PathBuf>,
    /// Time between two screens, such as 500ms, 2s
    #[arg(
        short,
        long,
        value_name = "DURATION",
        default_value = "1s",
        value_parser = parse_units::interval
    )]
    pub(crate) interval: Duration,
    /// How much faster than recorded to replay FILE
    #[arg(long, value_name = "N", default_value = "1", value_parser = speed, requires = "file")]
    pub(crate) speed: f64,
    /// Stop after this long; with --once, how long to observe [default: 2s]
    #[arg(short, long, value_name = "DURATION", value_parser = parse_units::time)]
    pub(crate) duration: Option<Duration>,
    /// Only processes that match each word: a text in their pid, user, program, container or line, or
    /// a comparison such as used>1G, growth>0, age<10m
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Option<String>,
    /// Columns of the processes: host, pid, user, program, gpu, container, used, of-gpu, traced,
    /// untracked, peak, host-mem, growth, history, full-in, age, allocs, verdict, at
    #[arg(
        long,
        value_name = "NAME,...",
        env = "VRAMSCOPE_COLUMNS",
        value_delimiter = ',',
        value_parser = column
    )]
    pub(crate) columns: Vec<ProcessColumn>,
    /// Also count kernel launches and memory copies
    #[arg(long)]
    pub(crate) kernels: bool,
    #[command(flatten)]
    pub(crate) allocators: AllocatorArgs,
    /// Print one screen as plain text
    #[arg(long)]
    pub(crate) once: bool,
    /// With --once: print the JSON object of `trace --json`, one per host
    #[arg(long, requires = "once")]
    pub(crate) json: bool,
    /// Colors [default: dark; mono if NO_COLOR is set]
    #[arg(long, value_enum, value_name = "THEME", env = "VRAMSCOPE_THEME")]
    pub(crate) theme: Option<Theme>,
    /// Draw with ASCII characters only
    #[arg(long)]
    pub(crate) ascii: bool,
    /// Run CMD and show it and its children, without root and without probes
    #[arg(last = true, value_name = "CMD", conflicts_with_all = ["file", "agent", "pid", "driver", "once"])]
    pub(crate) command: Vec<OsString>,
    /// With -- CMD: find out which Python references keep leaking memory alive
    #[arg(long, requires = "command")]
    pub(crate) why: bool,
}

/// Parses the name of a column.
fn column(text: &str) -> anyhow::Result<ProcessColumn> {
    let found = ProcessColumn::ALL.into_iter().find(|column| column.name() == text);
    found.with_context(|| {
        format!(
            "unknown column; the columns are {}",
            ProcessColumn::ALL.map(|it| it.name()).join(", ")
        )
    })
}

/// Parses a speed.
fn speed(text: &str) -> anyhow::Result<f64> {
    match text.trim_end_matches('x').parse::<f64>() {
        Ok(speed) if speed > 0.0 && speed <= 1e6 => Ok(speed),
        _ => bail!("a speed is a number above 0, at most 1000000"),
    }
}
