//! `vramscope record`: a trace that only writes a recording.

use std::time::Duration;

use anyhow::Result;
use engine::snapshot::View;

use super::live::Subject;
use super::trace::{Settings, tensors, wanted_work, watch};
use crate::{Outcome, cli};

/// Interval of the progress line on a terminal.
const INTERVAL: Duration = Duration::from_secs(1);

/// Runs the verb.
pub(crate) fn run(options: &cli::Record) -> Result<Outcome> {
    watch(&Settings {
        target: &options.target,
        interval: INTERVAL,
        duration: options.duration,
        format: None,
        output: None,
        record: Some(&options.output),
        force: options.force,
        limit: None,
        work: wanted_work(options.kernels, &options.work)?,
        subject: Subject::Memory,
        objects: !options.objects.no_objects,
        stacks: options.stacks.stacks,
        tensors: tensors(options.torch.torch),
        stack_depth: None,
        view: View::default(),
    })
}
