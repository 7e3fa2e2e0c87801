//! The command line of `serve`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use engine::units::Bytes;

use super::{Stacks, TorchOptions};
use crate::quantity;

pub(super) const EXAMPLES: &str = "\
EXAMPLES
  vramscope serve                                     metrics on http://127.0.0.1:9754/metrics
  vramscope serve --config /etc/vramscope.toml        with the settings of a file
  vramscope serve --check --config my.toml            say what is wrong with them, and end
  vramscope serve --max-cpu 5 --max-memory 512M       give up call stacks rather than take more

It watches every process until it is ended with Ctrl-C or SIGTERM, and needs root.";

#[derive(Args)]
pub(crate) struct Serve {
    /// Settings, in TOML; options here come before them
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Say what is wrong with the settings, and end
    #[arg(long)]
    pub(crate) check: bool,
    /// Where to answer; anything but loopback needs a token [default: 127.0.0.1:9754]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<SocketAddr>,
    /// A file with the token that requests must carry
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// The folder for snapshots of memory when it runs out [default: /var/lib/vramscope]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) state: Option<PathBuf>,
    /// Probe this CUDA driver library too, besides those that are found
    #[arg(long, value_name = "PATH")]
    pub(crate) driver: Vec<PathBuf>,
    /// How call stacks are taken [default: full]
    #[arg(long, value_enum, value_name = "HOW")]
    pub(crate) stacks: Option<Stacks>,
    #[command(flatten)]
    pub(crate) torch: TorchOptions,
    /// The most processor time that it may take, in percent of one core: beyond, call stacks are
    /// given up, never the accounting of memory
    #[arg(long, value_name = "PERCENT")]
    pub(crate) max_cpu: Option<f64>,
    /// The most memory that it may take, likewise
    #[arg(long, value_name = "SIZE", value_parser = quantity::size)]
    pub(crate) max_memory: Option<Bytes>,
}
