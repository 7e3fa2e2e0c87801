//! Command line of the verbs that ask a running Python program: `why` and `reclaim`.

use clap::Args;

use super::FormatOptions;

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

#[derive(Args)]
pub(crate) struct WhyArgs {
    /// Python process
    #[arg(short, long, value_name = "PID")]
    pub(crate) pid: u32,
    #[command(flatten)]
    pub(crate) format: FormatOptions,
}

#[derive(Args)]
pub(crate) struct ReclaimArgs {
    /// Python process
    #[arg(short, long, value_name = "PID")]
    pub(crate) pid: u32,
    #[command(flatten)]
    pub(crate) format: FormatOptions,
}
