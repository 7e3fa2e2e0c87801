//! Observes live processes for a few seconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use capture::hooks::function_name;
use capture::session::{Options, Stacks, Target, Tensors, Work};
use engine::ledger::Ledger;
use engine::snapshot::{Snapshot, View};
use formats::WallClock;
use formats::export::Names;
use formats::recording::Functions;

use crate::cli::Advise;
use crate::commands::live::{gpu_names, tell};
use crate::output;
use crate::pipeline::{Live, Message};

/// Time until Ctrl-C is noticed.
const ATTENTION: Duration = Duration::from_millis(50);

/// Returns the state after `--duration`. All processes are traced even if steps are wanted for some
/// only, because every holder counts for the free memory of the GPU.
pub(super) fn look(options: &Advise, view: &View) -> Result<(Snapshot, Names)> {
    let interrupted = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&interrupted))?;
    let live = Live::start(session_options(options))?;
    for warning in &live.plan.warnings {
        output::complain(warning);
    }
    let clock = WallClock::now(capture::monotonic());
    let gpus = gpu_names(&live.gpus);
    let names = Names { clock, function: function_name, recorded: Functions::default(), gpus };
    let mut ledger = Ledger::new().following_work();
    let end = Instant::now() + options.duration;
    while Instant::now() < end && !interrupted.load(Ordering::Relaxed) {
        match live.next(end.min(Instant::now() + ATTENTION)) {
            Some(message) => apply(&mut ledger, message)?,
            None => continue,
        }
    }
    let at = capture::monotonic();
    for message in live.finish().0 {
        apply(&mut ledger, message)?;
    }
    Ok((ledger.snapshot(at, view), names))
}

fn apply(ledger: &mut Ledger, message: Message) -> Result<()> {
    match message {
        Message::Events(events) => events.iter().for_each(|event| ledger.apply(event)),
        Message::Notice(notice) if notice.is_trouble() => tell(&notice),
        Message::Gpus(_) | Message::Notice(_) => {}
        Message::Failed(error) => return Err(error),
    }
    Ok(())
}

fn session_options(options: &Advise) -> Options {
    Options {
        target: Target::Everybody,
        drivers: options.driver.clone(),
        ring_bytes: Options::RING_BYTES,
        table_entries: None,
        thread_entries: None,
        tier: None,
        work: Some(Work { check_every_launch: false, table_entries: None, baseline: false }),
        objects: false,
        stacks: Stacks::Off,
        tensors: Tensors::Totals,
        stack_ring_bytes: Options::STACK_RING_BYTES,
        logs: Options::LOGS.into(),
        empty_probes: false,
    }
}
