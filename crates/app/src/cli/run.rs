//! The command line of `run`.

use std::ffi::OsString;

use clap::Args;
use engine::units::Bytes;

use super::{LiveOptions, Target};
use crate::quantity;

pub(super) const EXAMPLES: &str = "\
EXAMPLES
  vramscope run -- python train.py              live memory every 2 seconds
  vramscope run --by site -- ./app              which lines of the program hold memory
  vramscope run --fail-on-leak -- ./test        exit with 1 when it ends without freeing all
  vramscope run --record run.arrows -- ./app    also write a recording, for `report`

The CUDA driver loads a library into the program and its children, through CUDA_INJECTION64_PATH. A
library that this variable already names is also started. Needs no root and works on every kernel.";

#[derive(Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) report: LiveOptions,
    /// Start this program and trace it and its children
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
    /// Bytes of the ring of each process
    #[arg(long, hide = true, value_parser = quantity::size)]
    ring_size: Option<Bytes>,
    /// Bytes of the ring for stacks of each process
    #[arg(long, hide = true, value_parser = quantity::size)]
    stack_ring_size: Option<Bytes>,
}

impl Run {
    /// The command as a target of a trace, and the other options.
    pub(crate) fn into_target(self) -> (Target, LiveOptions) {
        let target = Target {
            pid: Vec::new(),
            all: false,
            follow: false,
            driver: Vec::new(),
            command: self.command,
            ring_size: self.ring_size,
            stack_ring_size: self.stack_ring_size,
            empty_probes: false,
            table_size: None,
            thread_table_size: None,
            tier: None,
        };
        (target, self.report)
    }
}
