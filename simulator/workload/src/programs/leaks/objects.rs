//! CUDA objects: some leaked, some kept for good reasons.

use std::collections::{BTreeMap, BTreeSet};

use super::resources;
use super::scenario_thread::{
    Churn, CreateFn, DestroyFn, HeldResources, ScenarioThread, remove_random, sites, traffic,
};

sites! {
    leak_stream: stream,
    leak_event: event,
    leak_graph: graph,
    leak_graph_exec: exec,
    leak_module: module,
    leak_library: library,
    leak_pool: pool,
    leak_context: context,
    stream_per_request: stream,
    stream_pool_fill: stream,
    graph_rebuild: exec,
    event_pool_get: event,
    module_lazy_load: module,
    library_reload: library,
    context_per_job: context,
}

/// Creates and destroys objects, and leaks one in four.
fn churn(run: &mut ScenarioThread, site: CreateFn, destroy: DestroyFn) -> anyhow::Result<()> {
    let mut churn = Churn::new(site, destroy, 3);
    while run.step(25) {
        traffic(run)?;
        churn.advance(run, 0, Some(4))?;
    }
    Ok(())
}

/// Streams.
pub(super) fn streams(run: &mut ScenarioThread) -> anyhow::Result<()> {
    churn(run, leak_stream, resources::end_stream)
}

/// Events.
pub(super) fn events(run: &mut ScenarioThread) -> anyhow::Result<()> {
    churn(run, leak_event, resources::end_event)
}

/// Graphs.
pub(super) fn graphs(run: &mut ScenarioThread) -> anyhow::Result<()> {
    churn(run, leak_graph, resources::end_graph)
}

/// Executable graphs.
pub(super) fn execs(run: &mut ScenarioThread) -> anyhow::Result<()> {
    churn(run, leak_graph_exec, resources::end_exec)
}

/// Modules.
pub(super) fn modules(run: &mut ScenarioThread) -> anyhow::Result<()> {
    churn(run, leak_module, resources::end_module)
}

/// Libraries.
pub(super) fn libraries(run: &mut ScenarioThread) -> anyhow::Result<()> {
    churn(run, leak_library, resources::end_library)
}

/// Memory pools.
pub(super) fn pools(run: &mut ScenarioThread) -> anyhow::Result<()> {
    churn(run, leak_pool, resources::end_pool)
}

/// Contexts.
pub(super) fn contexts(run: &mut ScenarioThread) -> anyhow::Result<()> {
    churn(run, leak_context, resources::end_context)
}

/// A stream for each request, destroyed after it.
pub(super) fn stream_churn(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut churn = Churn::new(stream_per_request, resources::end_stream, 6);
    while run.step(10) {
        traffic(run)?;
        churn.advance(run, 0, None)?;
    }
    Ok(())
}

/// Streams that are created at the start and used from then on.
pub(super) fn stream_pool(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut created = 0;
    while run.step(20) {
        traffic(run)?;
        while created < run.share(16, 0.12) {
            stream_pool_fill(run, 0)?;
            created += 1;
        }
    }
    Ok(())
}

/// A graph that is captured again occasionally and replaces the old one.
pub(super) fn graph_replaced(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut execs: BTreeMap<u32, u64> = BTreeMap::new();
    while run.step(20) {
        traffic(run)?;
        if run.one_in(6) {
            let shape = run.random.u32(..5);
            let exec = graph_rebuild(run, 0)?;
            if let Some(old) = execs.insert(shape, exec) {
                resources::end_exec(run, old)?;
            }
        }
    }
    Ok(())
}

/// Events that are reused: a new one is created only if all are in use.
pub(super) fn event_pool(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let (mut idle, mut busy) = (HeldResources::new(), HeldResources::new());
    while run.step(10) {
        traffic(run)?;
        if run.random.usize(..24) >= busy.len() {
            let event = match idle.pop_front() {
                Some(event) => event,
                None => event_pool_get(run, 0)?,
            };
            busy.push_back(event);
        } else if let Some(event) = remove_random(run, &mut busy) {
            idle.push_back(event);
        }
    }
    Ok(())
}

/// Modules that are loaded at their first use; there are 24.
pub(super) fn lazy_modules(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut loaded = BTreeSet::new();
    while run.step(20) {
        traffic(run)?;
        let module = run.random.u32(..24);
        if run.one_in(3) && loaded.insert(module) {
            module_lazy_load(run, 0)?;
        }
    }
    Ok(())
}

/// A library that is loaded again at each change, when the previous one is unloaded.
pub(super) fn library_reloaded(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut churn = Churn::new(library_reload, resources::end_library, 1);
    while run.step(20) {
        traffic(run)?;
        if run.one_in(4) {
            churn.advance(run, 0, None)?;
        }
    }
    Ok(())
}

/// A context for each job, destroyed after it; up to five jobs run at a time.
pub(super) fn context_jobs(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut churn = Churn::new(context_per_job, resources::end_context, 5);
    while run.step(30) {
        traffic(run)?;
        if run.one_in(2) {
            churn.advance(run, 0, None)?;
        }
    }
    Ok(())
}
