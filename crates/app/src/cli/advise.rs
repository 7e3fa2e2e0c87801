//! The command line of `advise`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use engine::units::Bytes;

use crate::quantity;

pub(super) const EXAMPLES: &str = "\
EXAMPLES
  vramscope advise                                  look for 3 seconds, and say what would help
  vramscope advise --gpu 0 --need 20G               exit with 1 unless that can be had without losing work
  vramscope advise --agent http://127.0.0.1:9754    ask a running agent, which knows more
  vramscope advise /var/lib/vramscope/incidents/2026-11-15T15-04-05.123Z-oom-gpu0-pid4711

Nothing is done, only said. FILE is a recording of vramscope or the folder of an incident; without it
live processes are looked at, which needs root.";

#[derive(Args)]
pub(crate) struct Advise {
    /// A recording, or the folder of an incident
    #[arg(value_name = "FILE", conflicts_with = "agent")]
    pub(crate) file: Option<PathBuf>,
    /// Only this GPU, by its index
    #[arg(long, value_name = "N")]
    pub(crate) gpu: Option<u16>,
    /// How much memory has to be free: exit with 1 when that costs somebody's work
    #[arg(long, value_name = "SIZE", value_parser = quantity::size)]
    pub(crate) need: Option<Bytes>,
    /// Only steps of this process; may be given several times
    #[arg(short, long = "pid", value_name = "PID")]
    pub(crate) pid: Vec<u32>,
    /// How long to look at live processes
    #[arg(
        long,
        value_name = "TIME",
        default_value = "3s",
        value_parser = quantity::time,
        conflicts_with_all = ["file", "agent"]
    )]
    pub(crate) duration: Duration,
    /// Probe this CUDA driver library too, besides those that are found
    #[arg(long, value_name = "PATH", conflicts_with_all = ["file", "agent"])]
    pub(crate) driver: Vec<PathBuf>,
    /// Ask the agent there
    #[arg(long, value_name = "URL")]
    pub(crate) agent: Option<String>,
    /// A file with the token that the agent wants
    #[arg(long, value_name = "FILE", requires = "agent")]
    pub(crate) token_file: Option<PathBuf>,
    /// One JSON object in one line
    #[arg(long)]
    pub(crate) json: bool,
}
