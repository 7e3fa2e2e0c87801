//! `vramscope record`: a trace that only writes a recording.

use std::time::Duration;

use anyhow::Result;
use engine::snapshot::SnapshotOptions;

use super::trace::{TraceOptions, activity_if_enabled, run_trace, tensors};
use crate::live::report_loop::LiveView;
use crate::{Outcome, cli};

/// Interval of the progress line on a terminal.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Runs the verb.
pub(crate) fn run(options: &cli::RecordArgs) -> Result<Outcome> {
    run_trace(&TraceOptions {
        target: &options.target,
        in_process: false,
        interval: PROGRESS_INTERVAL,
        duration: options.duration,
        format: None,
        output: None,
        record: Some(&options.output),
        force: options.force,
        limit: None,
        activity: activity_if_enabled(options.kernels, &options.launches)?,
        view: LiveView::Memory,
        objects: !options.objects.no_objects,
        stacks: options.stacks.stacks,
        tensors: tensors(options.torch.torch),
        stack_depth: None,
        snapshot_options: SnapshotOptions::default(),
    })
}
