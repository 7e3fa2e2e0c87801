//! Memory of PyTorch's cache that its tensors do not explain, and memory that they do.

use std::collections::{BTreeSet, VecDeque};
use std::hint::black_box;

use super::scenario_thread::ScenarioThread;
use super::{MIB, resources};
use crate::cuda::Handle;
use crate::programs::torch::Cache;

/// Functions that allocate tensors, each on the stack under its own name.
macro_rules! tensors {
    ($($name:ident),*) => {
        $(
            #[inline(never)]
            pub(super) fn $name(
                cache: &Cache,
                run: &ScenarioThread,
                bytes: usize,
            ) -> anyhow::Result<u64> {
                let address = cache.tensor(run.ordinal, bytes as u64);
                // Prevents tail calls, and merging of functions with the same code.
                black_box(stringify!($name));
                address
            }
        )*
    };
}

tensors! {
    leak_private_pool, leak_failed_capture, leak_waiting_blocks, leak_kept_tensors, step_tensor,
    tensor_window, tensor_shapes, leak_stored_exception, tensor_retried, shape_pool, early_capture,
    copied_block, leak_tiny_tensor, leak_tensor_entry, tensor_entry
}

/// Tensors of a step, all freed.
fn step(cache: &Cache, run: &ScenarioThread) -> anyhow::Result<()> {
    let tensors = [step_tensor(cache, run, MIB)?, step_tensor(cache, run, 3 * MIB)?];
    tensors.into_iter().for_each(|tensor| cache.free_tensor(tensor));
    Ok(())
}

/// A function that allocates a tensor.
type TensorFn = fn(&Cache, &ScenarioThread, usize) -> anyhow::Result<u64>;

/// Captures a graph whose tensors come from a private pool; `fails`: with a call that no capture
/// permits.
fn capture(
    cache: &Cache,
    run: &ScenarioThread,
    stream: Handle,
    tensor: TensorFn,
    fails: bool,
) -> anyhow::Result<()> {
    let driver = run.device.driver;
    // SAFETY: a plain call on a stream of this program.
    unsafe { driver.cuStreamBeginCapture_v2(stream, 2) }?;
    cache.begin_pool();
    let address = tensor(cache, run, 12 * MIB)?;
    cache.free_tensor(address);
    if fails {
        // SAFETY: as above.
        let synchronized = unsafe { driver.cuStreamSynchronize(stream) };
        anyhow::ensure!(synchronized.is_err(), "a capture permits every call");
    }
    cache.end_pool();
    let mut graph = 0;
    // SAFETY: the pointer is valid for writing.
    let ended = unsafe { driver.cuStreamEndCapture(stream, &raw mut graph) };
    anyhow::ensure!(ended.is_err() == fails, "the capture ended in another way");
    if !fails {
        resources::end_graph(run, graph)?;
    }
    Ok(())
}

fn capture_again(run: &mut ScenarioThread, tensor: TensorFn, fails: bool) -> anyhow::Result<()> {
    let cache = Cache::load(run.ordinal)?;
    let stream = resources::stream(run, 0)?;
    while run.step(50) {
        step(&cache, run)?;
        if run.one_in(2) {
            capture(&cache, run, stream, tensor, fails)?;
        }
    }
    cache.report();
    Ok(())
}

/// A graph is captured for each new shape, each with its own pool.
pub(super) fn private_pools(run: &mut ScenarioThread) -> anyhow::Result<()> {
    capture_again(run, leak_private_pool, false)
}

/// Captures that all fail, and keep their pool.
pub(super) fn failed_captures(run: &mut ScenarioThread) -> anyhow::Result<()> {
    capture_again(run, leak_failed_capture, true)
}

/// Freed blocks wait for another stream, which never finishes.
pub(super) fn waiting_blocks(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let cache = Cache::load(run.ordinal)?;
    while run.step(50) {
        step(&cache, run)?;
        if run.one_in(2) {
            let address = leak_waiting_blocks(&cache, run, 12 * MIB)?;
            cache.wait_for_stream(address);
            cache.free_tensor(address);
        }
    }
    cache.report();
    Ok(())
}

/// Tensors that are kept: the cache grows with them.
pub(super) fn kept_tensors(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let cache = Cache::load(run.ordinal)?;
    while run.step(40) {
        step(&cache, run)?;
        if run.one_in(2) {
            leak_kept_tensors(&cache, run, 2 * MIB)?;
        }
    }
    cache.report();
    Ok(())
}

/// A window of tensors that fills for a third of the time.
pub(super) fn tensors_in_window(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let cache = Cache::load(run.ordinal)?;
    let mut window = VecDeque::new();
    while run.step(20) {
        step(&cache, run)?;
        window.push_back(tensor_window(&cache, run, 4 * MIB)?);
        while window.len() > run.share(60, 0.3).max(1)
            && let Some(oldest) = window.pop_front()
        {
            cache.free_tensor(oldest);
        }
    }
    cache.report();
    Ok(())
}

/// Tensors of many sizes: the cache grows until it has a block for each.
pub(super) fn many_shapes(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let cache = Cache::load(run.ordinal)?;
    while run.step(20) {
        step(&cache, run)?;
        let bytes = MIB * (10 + run.random.usize(..24));
        let tensor = tensor_shapes(&cache, run, bytes)?;
        cache.free_tensor(tensor);
    }
    cache.report();
    Ok(())
}

/// More than any device has.
const TOO_LARGE: usize = 1 << 44;

/// Each tenth step fails, and its exception is stored with the tensors of the step.
pub(super) fn stored_exceptions(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let cache = Cache::load(run.ordinal)?;
    while run.step(20) {
        step(&cache, run)?;
        let tensor = leak_stored_exception(&cache, run, 2 * MIB)?;
        if run.one_in(10) {
            let failed = step_tensor(&cache, run, TOO_LARGE).is_err();
            anyhow::ensure!(failed, "there is memory for everything");
        } else {
            cache.free_tensor(tensor);
        }
    }
    cache.report();
    Ok(())
}

/// Each tenth step fails, frees its tensors, and is done again in two parts.
pub(super) fn retried(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let cache = Cache::load(run.ordinal)?;
    while run.step(20) {
        step(&cache, run)?;
        let tensor = tensor_retried(&cache, run, 2 * MIB)?;
        let failed = run.one_in(10) && step_tensor(&cache, run, TOO_LARGE).is_err();
        cache.free_tensor(tensor);
        if failed {
            cache.empty_cache();
            for _ in 0..2 {
                let part = tensor_retried(&cache, run, MIB)?;
                cache.free_tensor(part);
            }
        }
    }
    cache.report();
    Ok(())
}

/// A graph is captured for each of twelve shapes, when it is first seen.
pub(super) fn pool_of_each_shape(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let cache = Cache::load(run.ordinal)?;
    let stream = resources::stream(run, 0)?;
    let mut known = BTreeSet::new();
    while run.step(50) {
        step(&cache, run)?;
        if known.insert(run.random.u32(..12)) {
            capture(&cache, run, stream, shape_pool, false)?;
        }
    }
    cache.report();
    Ok(())
}

/// The first captures fail, until one succeeds.
pub(super) fn early_failures(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let cache = Cache::load(run.ordinal)?;
    let stream = resources::stream(run, 0)?;
    let mut captures = 0;
    while run.step(50) {
        step(&cache, run)?;
        if captures < 12 && run.one_in(3) {
            captures += 1;
            capture(&cache, run, stream, early_capture, captures < 12)?;
        }
    }
    cache.report();
    Ok(())
}

/// Freed blocks wait for another stream, which finishes every half second.
pub(super) fn streams_finish(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let cache = Cache::load(run.ordinal)?;
    let mut period = 0;
    while run.step(50) {
        step(&cache, run)?;
        if run.one_in(2) {
            let address = copied_block(&cache, run, 12 * MIB)?;
            cache.wait_for_stream(address);
            cache.free_tensor(address);
        }
        if run.period(500) != period {
            period = run.period(500);
            cache.streams_finished();
        }
    }
    cache.report();
    Ok(())
}
