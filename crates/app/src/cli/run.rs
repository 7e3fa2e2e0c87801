//! Command line of `run`.

use std::ffi::OsString;

use clap::Args;
use engine::model::units::Bytes;

use super::{LiveArgs, TargetArgs};
use crate::parse_units;

pub(super) const EXAMPLES: &str = "\
EXAMPLES
  vramscope run -- python train.py              live memory every 2 seconds
  vramscope run --by site -- ./app              memory by call site
  vramscope run --fail-on-leak -- ./test        exit with status 1 if anything was not freed
  vramscope run --record run.arrows -- ./app    also record every event
  vramscope run --why -- python train.py        also which references keep leaking memory alive

The CUDA driver loads a library into the program and its children, through CUDA_INJECTION64_PATH. An
injection library that is already configured is also started. Works without root, on every kernel.";

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
            pid: Vec::new(),
            all: false,
            follow_forks: false,
            driver: Vec::new(),
            command: self.command,
            ring_size: self.ring_size,
            stack_ring_size: self.stack_ring_size,
            empty_probes: false,
            process_table_size: None,
            thread_table_size: None,
            attach_mode: None,
        };
        (target, self.live)
    }
}
