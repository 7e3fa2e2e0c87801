//! Traces processes or a command, and explains their memory at the end.

use std::time::Duration;

use anyhow::Result;
use capture::plan::{self, host_info::HostInfo};
use capture::session::ActivityOptions;

use super::SNAPSHOT_OPTIONS;
use crate::commands::trace::{InProcessMode, TraceOptions, run_trace};
use crate::live::report_loop::{LiveView, ReportOptions};
use crate::{Outcome, cli};

/// Time between two snapshots; the highest use of a process is that of one of them.
const INTERVAL: Duration = Duration::from_millis(250);

/// How long running processes are observed.
const DEFAULT_DURATION: Duration = Duration::from_secs(3);

pub(super) fn run(options: &cli::ExplainArgs) -> Result<Outcome> {
    let is_command = !options.target.command.is_empty();
    let duration = options.duration.or((!is_command).then_some(DEFAULT_DURATION));
    let may_probe = plan::preconditions(&HostInfo::read()).is_ok();
    run_trace(&TraceOptions {
        duration,
        format: Some(options.format.get()),
        // Code is loaded at the first launch of a kernel.
        activity: Some(ActivityOptions::default()),
        view: LiveView::Explain,
        // Tracing a command in-process needs no privileges.
        in_process: (is_command && !may_probe).then_some(InProcessMode::Command),
        reports: ReportOptions {
            snapshot: SNAPSHOT_OPTIONS,
            top: options.top,
            ..ReportOptions::default()
        },
        ..TraceOptions::new(&options.target, INTERVAL)
    })
}
