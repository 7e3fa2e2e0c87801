//! `vramscope kernels`: launches by kernel, copies by direction, failed calls.

use anyhow::Result;
use engine::snapshot::SnapshotOptions;

use capture::session::TensorMode;

use super::trace::{TraceOptions, run_trace, work_options};
use crate::live::report_loop::{LiveFormat, LiveView};
use crate::{Outcome, cli};

/// Runs the verb.
pub(crate) fn run(options: &cli::KernelsArgs) -> Result<Outcome> {
    let format = LiveFormat::of(&options.format);
    run_trace(&TraceOptions {
        target: &options.target,
        interval: options.interval,
        duration: options.duration,
        format: Some(format),
        output: options.output.as_deref(),
        record: None,
        force: options.force,
        limit: None,
        work: Some(work_options(&options.work)),
        subject: LiveView::Work,
        objects: false,
        stacks: Some(cli::StackModeArg::Off),
        tensors: TensorMode::Off,
        stack_depth: None,
        view: SnapshotOptions {
            top: options.top.unwrap_or(if format == LiveFormat::Json { 1000 } else { 10 }),
            ..SnapshotOptions::default()
        },
    })
}
