//! `vramscope kernels`: launches by kernel, copies by direction, failed calls.

use anyhow::Result;
use engine::snapshot::SnapshotOptions;

use capture::session::TensorMode;

use super::trace::{TraceOptions, activity_options, run_trace};
use crate::live::report_loop::{LiveFormat, LiveView, ReportOptions};
use crate::{Outcome, cli};

/// Runs the verb.
pub(crate) fn run(options: &cli::KernelsArgs) -> Result<Outcome> {
    let format = LiveFormat::of(&options.format);
    run_trace(&TraceOptions {
        target: &options.target,
        in_process: None,
        interval: options.interval,
        duration: options.duration,
        format: Some(format),
        output: options.output.as_deref(),
        record: None,
        force: options.force,
        limit: None,
        activity: Some(activity_options(&options.launches)),
        view: LiveView::Activity,
        objects: false,
        stacks: Some(cli::StackModeArg::Off),
        tensors: TensorMode::Off,
        stack_depth: None,
        wrappers: &[],
        user: None,
        reports: ReportOptions {
            snapshot: SnapshotOptions {
                top: options.top.unwrap_or(if format == LiveFormat::Json { 1000 } else { 10 }),
                ..SnapshotOptions::default()
            },
            ..ReportOptions::default()
        },
    })
}
