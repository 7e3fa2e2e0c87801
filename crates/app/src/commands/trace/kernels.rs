//! `vramscope kernels`: launches by kernel, copies by direction, failed calls.

use anyhow::Result;
use engine::model::StackMode;
use engine::snapshot::SnapshotOptions;

use super::{TraceOptions, activity_options, run_trace};
use crate::live::report_loop::{LiveFormat, LiveView, ReportOptions};
use crate::{Outcome, cli};

/// Runs the verb.
pub(crate) fn run(options: &cli::KernelsArgs) -> Result<Outcome> {
    let format = options.format.get();
    run_trace(&TraceOptions {
        duration: options.times.duration,
        format: Some(format),
        output: options.output.as_deref(),
        force: options.force,
        activity: Some(activity_options(&options.launches)),
        view: LiveView::Activity,
        objects: false,
        stacks: StackMode::Off,
        reports: ReportOptions {
            snapshot: SnapshotOptions {
                top: options.top.unwrap_or(if format == LiveFormat::Json { 1000 } else { 10 }),
                ..SnapshotOptions::default()
            },
            ..ReportOptions::default()
        },
        ..TraceOptions::new(&options.target, options.times.interval)
    })
}
