//! Memory that is shared with another process.

use super::MIB;
use super::resources;
use super::resources::{end_physical, end_plain};
use super::scenario_thread::{Churn, CreateFn, HeldResources, ScenarioThread, sites, traffic};
use crate::programs::processes::Receiver;

sites! {
    leak_uncollected: plain,
    collected: plain,
    leak_shared: exported,
    shared: exported,
}

/// Sends memory to another process, and frees what that process has closed.
fn send(run: &mut ScenarioThread, site: CreateFn, keep: bool) -> anyhow::Result<()> {
    let mut receiver = Receiver::start(run.ordinal, keep)?;
    let mut sent = HeldResources::new();
    while run.step(50) {
        traffic(run)?;
        let pointer = site(run, MIB)?;
        sent.push_back(pointer);
        if receiver.send(&run.device, pointer)?
            && let Some(oldest) = sent.pop_front()
        {
            end_plain(run, oldest)?;
        }
    }
    receiver.end()
}

/// The other process never closes it.
pub(super) fn uncollected(run: &mut ScenarioThread) -> anyhow::Result<()> {
    send(run, leak_uncollected, true)
}

/// The other process closes it soon.
pub(super) fn closed_by_receiver(run: &mut ScenarioThread) -> anyhow::Result<()> {
    send(run, collected, false)
}

/// Exported physical memory of which one in three is not released.
pub(super) fn exported_leak(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut churn = Churn::new(leak_shared, end_physical, 4);
    while run.step(30) {
        traffic(run)?;
        churn.advance(run, 2 * MIB, Some(3))?;
    }
    Ok(())
}

/// Exported physical memory that is released.
pub(super) fn exported_released(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut churn = Churn::new(shared, end_physical, 4);
    while run.step(30) {
        traffic(run)?;
        churn.advance(run, 2 * MIB, None)?;
    }
    Ok(())
}
