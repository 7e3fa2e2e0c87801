//! `vramscope run`: a trace without probes, by a library that the CUDA driver loads.

use anyhow::Result;

use super::trace::{settings, watch};
use crate::{Outcome, cli};

/// Runs the verb.
pub(crate) fn run(options: cli::Run) -> Result<Outcome> {
    let (target, report) = options.into_target();
    let mut settings = settings(&target, &report)?;
    settings.in_process = true;
    watch(&settings)
}
