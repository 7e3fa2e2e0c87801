//! Functions that create several things at once, as a library does for a plan or a compiled kernel.

use std::collections::VecDeque;
use std::hint::black_box;

use super::scenario_thread::{ScenarioThread, traffic};
use super::{MIB, resources};
use crate::cuda::Result;

/// What a plan consists of.
struct Plan {
    module: u64,
    stream: u64,
    workspace: u64,
}

impl Plan {
    fn end(self, run: &ScenarioThread) -> Result<()> {
        resources::end_plain(run, self.workspace)?;
        resources::end_stream(run, self.stream)?;
        resources::end_module(run, self.module)
    }
}

/// Functions that create a plan, each on the stack under its own name.
macro_rules! plans {
    ($($name:ident),*) => {
        $(
            #[inline(never)]
            fn $name(run: &ScenarioThread) -> Result<Plan> {
                let module = resources::module(run, 0)?;
                let stream = resources::stream(run, 0)?;
                let workspace = resources::plain(run, MIB)?;
                // Prevents merging of functions with the same code.
                black_box(stringify!($name));
                Ok(Plan { module, stream, workspace })
            }
        )*
    };
}

plans! { leak_plan, plan_cached, plan_per_step }

#[inline(never)]
fn leak_compiled(run: &ScenarioThread) -> Result<(u64, u64)> {
    let compiled = (resources::module(run, 0)?, resources::library(run, 0)?);
    black_box("leak_compiled");
    Ok(compiled)
}

/// A plan for each new shape, and every shape is new.
pub(super) fn plan_leak(run: &mut ScenarioThread) -> anyhow::Result<()> {
    while run.step(60) {
        traffic(run)?;
        if run.one_in(2) {
            leak_plan(run)?;
        }
    }
    Ok(())
}

/// Code that is compiled and loaded again for each request.
pub(super) fn compile_leak(run: &mut ScenarioThread) -> anyhow::Result<()> {
    while run.step(50) {
        traffic(run)?;
        leak_compiled(run)?;
    }
    Ok(())
}

/// Plans in a cache of 12 shapes.
pub(super) fn plan_cache(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut plans: VecDeque<(u32, Plan)> = VecDeque::new();
    while run.step(30) {
        traffic(run)?;
        let shape = run.random.u32(..40);
        if plans.iter().any(|(known, _)| *known == shape) {
            continue;
        }
        plans.push_back((shape, plan_cached(run)?));
        if plans.len() > 12
            && let Some((_, oldest)) = plans.pop_front()
        {
            oldest.end(run)?;
        }
    }
    Ok(())
}

/// A plan for each step, destroyed after it.
pub(super) fn plan_steps(run: &mut ScenarioThread) -> anyhow::Result<()> {
    while run.step(25) {
        traffic(run)?;
        let plan = plan_per_step(run)?;
        plan.end(run)?;
    }
    Ok(())
}
