//! Leaks of memory other than linear device memory.

use super::resources;
use super::resources::REGISTERED;
use super::scenario_thread::{Churn, CreateFn, DestroyFn, HeldResources, ScenarioThread, sites};
use super::{KIB, MIB};

sites! {
    leak_async: stream_ordered,
    leak_pinned: pinned,
    leak_managed: managed,
    leak_physical: physical,
    leak_array: array,
    leak_registered: registered,
}

/// Allocates and frees, and leaks one in five.
fn churn(
    run: &mut ScenarioThread,
    site: CreateFn,
    destroy: DestroyFn,
    bytes: usize,
) -> anyhow::Result<()> {
    let mut churn = Churn::new(site, destroy, 5);
    while run.step(20) {
        churn.advance(run, bytes, Some(5))?;
    }
    Ok(())
}

/// Stream-ordered memory.
pub(super) fn stream_ordered(run: &mut ScenarioThread) -> anyhow::Result<()> {
    churn(run, leak_async, resources::end_async, MIB)
}

/// Page-locked host memory.
pub(super) fn pinned(run: &mut ScenarioThread) -> anyhow::Result<()> {
    churn(run, leak_pinned, resources::end_pinned, 256 * KIB)
}

/// Managed memory.
pub(super) fn managed(run: &mut ScenarioThread) -> anyhow::Result<()> {
    churn(run, leak_managed, resources::end_plain, MIB)
}

/// Physical memory that is not mapped.
pub(super) fn physical(run: &mut ScenarioThread) -> anyhow::Result<()> {
    churn(run, leak_physical, resources::end_physical, 2 * MIB)
}

/// Arrays.
pub(super) fn array(run: &mut ScenarioThread) -> anyhow::Result<()> {
    churn(run, leak_array, resources::end_array, MIB)
}

/// Registered memory of the program.
pub(super) fn registered(run: &mut ScenarioThread) -> anyhow::Result<()> {
    churn(run, leak_registered, resources::end_registered, REGISTERED)
}

#[inline(never)]
fn leak_from_own_pool(run: &ScenarioThread, pool: u64, bytes: usize) -> crate::cuda::Result<u64> {
    let created = resources::pooled(run, pool, bytes);
    // Prevents a tail call.
    std::hint::black_box("leak_from_own_pool");
    created
}

/// Memory of a pool that the program created.
pub(super) fn own_pool(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let pool = resources::pool(run, 0)?;
    let mut held = HeldResources::new();
    while run.step(20) {
        held.push_back(leak_from_own_pool(run, pool, MIB)?);
        if held.len() > 5
            && let Some(oldest) = held.pop_front()
            && !run.one_in(5)
        {
            resources::end_async(run, oldest)?;
        }
    }
    Ok(())
}
