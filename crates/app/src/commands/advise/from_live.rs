//! Observes live processes for a few seconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use capture::session::{ActivityOptions, AllocatorMode, SessionOptions, Target};
use engine::snapshot::{Snapshot, SnapshotOptions};
use formats::export::ReportContext;

use crate::cli::AdviseArgs;
use crate::live::pipeline::LiveTrace;
use crate::live::state::LiveState;

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
    let live = LiveTrace::start(SessionOptions {
        drivers: options.driver.clone(),
        activity: Some(ActivityOptions::default()),
        allocators: AllocatorMode::Totals,
        ..SessionOptions::new(Target::All)
    })?;
    let mut state = LiveState::new(&live);
    let end = Instant::now() + options.duration;
    while Instant::now() < end && !interrupted.load(Ordering::Relaxed) {
        if let Some(message) = live.next(end.min(Instant::now() + POLL_INTERVAL)) {
            state.apply(message)?;
        }
    }
    let at = capture::monotonic();
    live.finish().0.into_iter().try_for_each(|message| state.apply(message))?;
    Ok((state.ledger.snapshot(at, view), state.context))
}
