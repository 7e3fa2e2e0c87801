//! The command line of `advise`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use engine::model::units::Bytes;

use super::FormatOptions;
use crate::parse_units;

pub(super) const EXAMPLES: &str = "\
EXAMPLES
  vramscope advise                       observe for 3 seconds, then suggest steps
  vramscope advise --gpu 0 --need 20G    exit with status 1 if that requires stopping a process
  vramscope advise --agent http://127.0.0.1:9754    query a running agent, which has seen more
  vramscope advise /var/lib/vramscope/incidents/2026-11-15T15-04-05.123Z-oom-gpu0-pid4711

Only suggestions are printed; nothing is changed. FILE is a vramscope recording or an incident
directory; without it live processes are observed, which requires root.";

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
    #[arg(short, long = "pid", value_name = "PID")]
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
