//! The command line of `serve`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use engine::model::{Bytes, StackMode};

use super::choice::choice;
use super::shared::{AllocatorArgs, STACK_MODES};
use crate::parse_units;

pub(super) const EXAMPLES: &str = "\
EXAMPLES
  vramscope serve                                     metrics on http://127.0.0.1:9754/metrics
  vramscope serve --config /etc/vramscope.toml        use a configuration file
  vramscope serve --check-config --config my.toml     check the configuration and exit
  vramscope serve --max-cpu 5 --max-memory 512M       drop call stacks rather than exceed the budget

Requires root. Runs until Ctrl-C or SIGTERM.";

#[derive(Args)]
pub(crate) struct ServeArgs {
    /// Configuration file (TOML); command-line options take precedence
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Check the configuration and exit
    #[arg(long)]
    pub(crate) check_config: bool,
    /// Listen address; anything but loopback requires a token [default: 127.0.0.1:9754]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<SocketAddr>,
    /// File with the bearer token that clients must send
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Directory for incident snapshots [default: /var/lib/vramscope]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Also probe this libcuda.so.1, in addition to those found
    #[arg(long, value_name = "PATH")]
    pub(crate) driver: Vec<PathBuf>,
    /// How to collect call stacks: off, fp (frame pointers) or full (unwind tables and Python
    /// frames) [default: full]
    #[arg(long, value_name = "MODE", value_parser = choice(STACK_MODES))]
    pub(crate) stacks: Option<StackMode>,
    #[command(flatten)]
    pub(crate) allocators: AllocatorArgs,
    /// CPU budget, percent of one core; beyond it call stacks are dropped, never memory accounting
    #[arg(long, value_name = "PERCENT")]
    pub(crate) max_cpu: Option<f64>,
    /// Memory budget of the agent
    #[arg(long, value_name = "SIZE", value_parser = parse_units::size)]
    pub(crate) max_memory: Option<Bytes>,
}
