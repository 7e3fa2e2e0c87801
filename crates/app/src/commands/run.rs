//! `vramscope run`: traces a command without probes, with a library that the CUDA driver loads.

use anyhow::Result;

use super::trace::{run_trace, trace_options};
use crate::{Outcome, cli};

/// Runs the verb.
pub(crate) fn run(options: cli::RunArgs) -> Result<Outcome> {
    let (target, live) = options.into_parts();
    let mut options = trace_options(&target, &live)?;
    options.in_process = true;
    run_trace(&options)
}
