//! Many tensors in each step, so that a tracer cannot capture the call stacks of all.

use super::scenario_thread::ScenarioThread;
use super::segments::{leak_tensor_entry, leak_tiny_tensor, step_tensor, tensor_entry};
use super::{KIB, MIB};
use crate::programs::torch::Cache;

/// Forty tensors of a step, from 512 bytes to 4 MiB, all freed.
fn step(cache: &Cache, run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut used = Vec::new();
    for _ in 0..40 {
        let bytes = 512 << run.random.u32(..14);
        used.push(step_tensor(cache, run, bytes)?);
        if used.len() > 8 {
            cache.free_tensor(used.swap_remove(run.random.usize(..used.len())));
        }
    }
    used.into_iter().for_each(|tensor| cache.free_tensor(tensor));
    Ok(())
}

/// Tensors of all steps are freed.
pub(super) fn many(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let cache = Cache::load(run.ordinal)?;
    while run.step(10) {
        step(&cache, run)?;
    }
    cache.report();
    Ok(())
}

/// One tiny tensor of each step is kept.
pub(super) fn tiny_kept(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let cache = Cache::load(run.ordinal)?;
    while run.step(10) {
        step(&cache, run)?;
        leak_tiny_tensor(&cache, run, 512)?;
    }
    cache.report();
    Ok(())
}

/// Entries of a cache, which are never freed.
pub(super) fn unbounded_cache(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let cache = Cache::load(run.ordinal)?;
    while run.step(10) {
        step(&cache, run)?;
        if run.one_in(2) {
            leak_tensor_entry(&cache, run, MIB)?;
        }
    }
    cache.report();
    Ok(())
}

/// Six hundred entries of a cache, of which random ones are replaced.
pub(super) fn bounded_cache(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let cache = Cache::load(run.ordinal)?;
    let mut entries = Vec::new();
    while run.step(10) {
        step(&cache, run)?;
        for _ in 0..2 {
            entries.push(tensor_entry(&cache, run, 64 * KIB)?);
        }
        while entries.len() > 600 {
            cache.free_tensor(entries.swap_remove(run.random.usize(..entries.len())));
        }
    }
    cache.report();
    Ok(())
}
