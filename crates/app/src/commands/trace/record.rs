//! `vramscope record`: a trace that only writes a recording.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use engine::model::{StackMode, Timestamp};
use formats::WallClock;

use super::{TraceOptions, activity_if_enabled, allocators, run_trace};
use crate::io::output;
use crate::{Outcome, cli};

/// Interval of the progress line on a terminal.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Runs the verb.
pub(crate) fn run(options: &cli::RecordArgs) -> Result<Outcome> {
    let default = default_name();
    let output = options.output.as_ref().unwrap_or(&default);
    let stacks = options.stacks.stacks.unwrap_or(StackMode::Full);
    run_trace(&TraceOptions {
        duration: options.duration,
        record: Some(output),
        force: options.force,
        activity: activity_if_enabled(options.kernels, &options.launches)?,
        objects: !options.objects.no_objects,
        stacks,
        allocators: allocators(options.allocators.allocators, stacks),
        user: options.user.as_deref(),
        ..TraceOptions::new(&options.target, PROGRESS_INTERVAL)
    })
}

/// Returns the name of a recording that the user did not name: `vramscope-20261115-221807.arrows`.
fn default_name() -> PathBuf {
    let clock = output::clock(WallClock::now(Timestamp(0)));
    format!("vramscope-{}.arrows", clock.compact(Timestamp(0))).into()
}
