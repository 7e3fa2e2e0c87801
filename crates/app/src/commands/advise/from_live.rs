//! Observes live processes for a few seconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use capture::hooks::function_name;
use capture::session::{ActivityOptions, SessionOptions, Target, TensorMode};
use engine::ledger::Ledger;
use engine::snapshot::{Snapshot, SnapshotOptions};
use formats::WallClock;
use formats::export::ReportContext;
use formats::recording::FunctionTable;

use crate::cli::AdviseArgs;
use crate::io::output;
use crate::live::pipeline::{LiveTrace, PipelineMessage};
use crate::live::report_loop::{gpu_names, log_notice};

/// Time until Ctrl-C is noticed.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Returns the state after `--duration`. All processes are traced even if steps are wanted for some
/// only, because every holder counts for the free memory of the GPU.
pub(super) fn observe(
    options: &AdviseArgs,
    view: &SnapshotOptions,
) -> Result<(Snapshot, ReportContext)> {
    let interrupted = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&interrupted))?;
    let live = LiveTrace::start(session_options(options))?;
    for warning in live.plan.iter().flat_map(|plan| &plan.warnings) {
        output::log(warning);
    }
    let clock = output::clock(WallClock::now(capture::monotonic()));
    let gpus = gpu_names(&live.gpus);
    let context = ReportContext {
        clock,
        function: function_name,
        recorded: FunctionTable::default(),
        gpus,
        source: None,
    };
    let mut ledger = Ledger::new().with_activity();
    let end = Instant::now() + options.duration;
    while Instant::now() < end && !interrupted.load(Ordering::Relaxed) {
        match live.next(end.min(Instant::now() + POLL_INTERVAL)) {
            Some(message) => apply(&mut ledger, message)?,
            None => continue,
        }
    }
    let at = capture::monotonic();
    for message in live.finish().0 {
        apply(&mut ledger, message)?;
    }
    Ok((ledger.snapshot(at, view), context))
}

fn apply(ledger: &mut Ledger, message: PipelineMessage) -> Result<()> {
    match message {
        PipelineMessage::Events(events) => events.iter().for_each(|event| ledger.apply(event)),
        PipelineMessage::Notice(notice) if notice.is_warning() => log_notice(&notice),
        PipelineMessage::Gpus(_) | PipelineMessage::Notice(_) | PipelineMessage::Request(_) => {}
        PipelineMessage::Failed(error) => return Err(error),
    }
    Ok(())
}

fn session_options(options: &AdviseArgs) -> SessionOptions {
    SessionOptions {
        drivers: options.driver.clone(),
        activity: Some(ActivityOptions {
            check_every_launch: false,
            table_entries: None,
            baseline: false,
        }),
        tensors: TensorMode::Totals,
        ..SessionOptions::new(Target::All)
    }
}
