//! The command line of `explain`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{FormatOptions, TargetArgs};
use crate::parse_units;

pub(super) const EXAMPLES: &str = "\
EXAMPLES
  vramscope explain -p 4711                  observe for 3 seconds, then explain its memory
  vramscope explain -- python train.py       from the first instruction: context, code, graphs
  vramscope explain run.arrows               processes of a recording, at their highest use
  vramscope explain -p 4711 --agent http://127.0.0.1:9754    ask an agent, which has seen more

The parts add up to what the driver reports for the process. Memory from before the trace is one
part. FILE is a vramscope recording. Tracing requires root.";

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
