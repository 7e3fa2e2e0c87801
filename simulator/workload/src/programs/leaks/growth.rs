//! Memory that grows for a good reason, and stops.

use super::resources;
use super::resources::{end_pinned, end_plain};
use super::scenario_thread::{
    Churn, HeldResources, ScenarioThread, destroy_all, remove_random, sites, traffic,
};
use super::{KIB, MIB};
use crate::programs::threads::{join, spawn};

sites! {
    arena_grow: plain,
    warm_up_layer: plain,
    warm_up_plan: plain,
    burst_import: plain,
    huge_embedding: plain,
    worker_pool_get: plain,
    slow_start_shard: plain,
    load_layer: plain,
    staging_pool_get: pinned,
    client_buffer: plain,
    shape_workspace: plain,
}

/// An arena that doubles while its contents grow, for six tenths of the time.
pub(super) fn arena(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut capacity = MIB;
    let mut arena = arena_grow(run, capacity)?;
    while run.step(20) {
        traffic(run)?;
        while run.share(100 * MIB, 0.6) > capacity {
            capacity *= 2;
            let bigger = arena_grow(run, capacity)?;
            end_plain(run, arena)?;
            arena = bigger;
        }
    }
    Ok(())
}

/// All layers at once, and nothing more.
pub(super) fn warm_up(run: &mut ScenarioThread) -> anyhow::Result<()> {
    fill(run, warm_up_layer, 60, 0.15)
}

/// Grows at a constant rate for six tenths of the time.
pub(super) fn slow_start(run: &mut ScenarioThread) -> anyhow::Result<()> {
    fill(run, slow_start_shard, 120, 0.6)
}

/// Allocates blocks at a constant rate, until `until` of the time has passed.
fn fill(
    run: &mut ScenarioThread,
    site: super::scenario_thread::CreateFn,
    blocks: usize,
    until: f64,
) -> anyhow::Result<()> {
    let mut allocated = 0;
    while run.step(20) {
        traffic(run)?;
        while allocated < run.share(blocks, until) {
            site(run, 4 * MIB)?;
            allocated += 1;
        }
    }
    Ok(())
}

/// Plans for new shapes, which become rarer.
pub(super) fn decaying(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut allocated = 0.0;
    while run.step(20) {
        traffic(run)?;
        while allocated < 100.0 * (1.0 - (-6.0 * run.progress()).exp()) {
            warm_up_plan(run, 2 * MIB)?;
            allocated += 1.0;
        }
    }
    Ok(())
}

/// Something large is loaded once, processed and freed.
pub(super) fn burst(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut held = HeldResources::new();
    while run.step(10) {
        traffic(run)?;
        let progress = run.progress();
        if (0.4..0.44).contains(&progress) {
            held.push_back(burst_import(run, 8 * MIB)?);
        }
        if progress > 0.55
            && let Some(pointer) = held.pop_front()
        {
            end_plain(run, pointer)?;
        }
    }
    Ok(())
}

/// One huge block at the start.
pub(super) fn huge(run: &mut ScenarioThread) -> anyhow::Result<()> {
    huge_embedding(run, 4096 * MIB)?;
    while run.step(20) {
        traffic(run)?;
    }
    Ok(())
}

/// Four threads with their own pools, which fill up at different times.
pub(super) fn worker_pools(run: &mut ScenarioThread) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let mut handles = Vec::new();
        for number in 0_u8..4 {
            let mut run = run.worker();
            handles.push(spawn(scope, run.device, number.into(), move || {
                let until = 0.15 + 0.1 * f64::from(number);
                fill(&mut run, worker_pool_get, 10 + 10 * usize::from(number), until)
            })?);
        }
        join(handles)
    })
}

/// Three models are loaded one after another, and used.
pub(super) fn models(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut loaded = 0_u8;
    while run.step(20) {
        traffic(run)?;
        if loaded < 3 && run.progress() > 0.05 + 0.2 * f64::from(loaded) {
            loaded += 1;
            for _ in 0..12 {
                load_layer(run, 16 * MIB)?;
                run.step(10);
            }
        }
    }
    Ok(())
}

/// Staging buffers on the host: a new one is allocated only if all are in use.
pub(super) fn staging(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let (mut idle, mut busy) = (HeldResources::new(), HeldResources::new());
    while run.step(10) {
        if run.random.usize(..16) >= busy.len() {
            let buffer = match idle.pop_front() {
                Some(buffer) => buffer,
                None => staging_pool_get(run, 512 * KIB)?,
            };
            busy.push_back(buffer);
        } else if let Some(buffer) = remove_random(run, &mut busy) {
            idle.push_back(buffer);
        }
    }
    // Like the destructor of the pool.
    destroy_all(run, &mut idle, end_pinned)?;
    destroy_all(run, &mut busy, end_pinned)?;
    Ok(())
}

/// More clients arrive after a quarter and after half of the time; each needs the same memory.
pub(super) fn clients(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut groups = [20, 20, 40].map(|window| Churn::new(client_buffer, end_plain, window));
    while run.step(15) {
        let active = 1 + run.share(2, 0.5);
        for churn in groups.iter_mut().take(active) {
            churn.advance(run, MIB, None)?;
        }
    }
    Ok(())
}

/// Workspaces for shapes: nearly all early, and three rare ones later.
pub(super) fn rare_shapes(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let rare = [0.45, 0.6, 0.8];
    let mut allocated = 0;
    while run.step(20) {
        traffic(run)?;
        let rare_seen = rare.iter().filter(|at| run.progress() > **at).count();
        while allocated < run.share(40, 0.2) + rare_seen {
            shape_workspace(run, 2 * MIB)?;
            allocated += 1;
        }
    }
    Ok(())
}
