//! Memory that programs free only when they end: some grew until then.

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Duration;

use super::resources::end_plain;
use super::scenario_thread::{HeldResources, ScenarioThread, destroy_all, sites, traffic};
use super::{KIB, MIB, resources};
use crate::cuda::Result;

sites! {
    leak_until_exit: plain,
    leak_until_reset: plain,
    held_until_exit: plain,
    ring_until_exit: plain,
}

/// Every result is kept, and freed by destructors at exit.
pub(super) fn destructors(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut kept = HeldResources::new();
    while run.step(20) {
        traffic(run)?;
        if run.one_in(2) {
            kept.push_back(leak_until_exit(run, 256 * KIB)?);
        }
    }
    destroy_all(run, &mut kept, end_plain)?;
    Ok(())
}

/// Every result is kept, until the device is reset at exit.
pub(super) fn reset(run: &mut ScenarioThread) -> anyhow::Result<()> {
    while run.step(25) {
        traffic(run)?;
        if run.one_in(3) {
            leak_until_reset(run, MIB)?;
        }
    }
    // SAFETY: a plain call; nothing uses the memory of the context any more.
    unsafe { run.device.driver.cuDevicePrimaryCtxReset_v2(run.ordinal) }?;
    Ok(())
}

/// Buffers that are allocated in the first fifth of the time and freed at exit.
pub(super) fn held(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut buffers = HeldResources::new();
    while run.step(20) {
        traffic(run)?;
        while buffers.len() < run.share(60, 0.2) {
            buffers.push_back(held_until_exit(run, MIB)?);
        }
    }
    destroy_all(run, &mut buffers, end_plain)?;
    Ok(())
}

/// A ring of buffers that are replaced, oldest first, and freed at exit.
pub(super) fn ring(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut ring = HeldResources::new();
    while run.step(15) {
        ring.push_back(ring_until_exit(run, MIB)?);
        if ring.len() > 50
            && let Some(oldest) = ring.pop_front()
        {
            end_plain(run, oldest)?;
        }
    }
    destroy_all(run, &mut ring, end_plain)?;
    Ok(())
}

/// What a communicator consists of.
struct Communicator {
    buffers: [u64; 2],
    staging: u64,
    stream: u64,
    event: u64,
}

/// Functions that create a communicator, each on the stack under its own name.
macro_rules! communicators {
    ($($name:ident),*) => {
        $(
            #[inline(never)]
            fn $name(run: &ScenarioThread) -> Result<Communicator> {
                let created = Communicator {
                    buffers: [resources::plain(run, 4 * MIB)?, resources::plain(run, 2 * MIB)?],
                    staging: resources::pinned(run, 64 * KIB)?,
                    stream: resources::stream(run, 0)?,
                    event: resources::event(run, 0)?,
                };
                // Prevents merging of functions with the same code.
                black_box(stringify!($name));
                Ok(created)
            }
        )*
    };
}

communicators! { leak_communicator, communicator_per_step }

impl Communicator {
    fn end(self, run: &ScenarioThread) -> Result<()> {
        self.buffers.into_iter().try_for_each(|buffer| end_plain(run, buffer))?;
        resources::end_pinned(run, self.staging)?;
        resources::end_stream(run, self.stream)?;
        resources::end_event(run, self.event)
    }
}

/// A communicator for each evaluation. All are destroyed at exit, which takes a fifth as long as the
/// rest.
pub(super) fn communicators(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut all = Vec::new();
    while run.step(40) {
        traffic(run)?;
        if run.one_in(4) {
            all.push(leak_communicator(run)?);
        }
    }
    for communicator in all {
        communicator.end(run)?;
        run.pause(Duration::from_millis(32));
    }
    Ok(())
}

/// A communicator for each evaluation, destroyed a few evaluations later.
pub(super) fn communicators_destroyed(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut all = VecDeque::new();
    while run.step(40) {
        traffic(run)?;
        if run.one_in(4) {
            all.push_back(communicator_per_step(run)?);
        }
        if all.len() > 4
            && let Some(oldest) = all.pop_front()
        {
            oldest.end(run)?;
        }
    }
    all.into_iter().try_for_each(|communicator| communicator.end(run))?;
    Ok(())
}
