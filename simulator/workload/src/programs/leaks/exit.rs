//! Memory that programs free only when they end: some grew until then.

use super::resources::end_plain;
use super::scenario_thread::{HeldResources, ScenarioThread, destroy_all, sites, traffic};
use super::{KIB, MIB, resources};

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
