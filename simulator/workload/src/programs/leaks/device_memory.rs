//! Leaks of device memory that grow in different ways.

use super::resources;
use super::resources::end_plain;
use super::scenario_thread::{Churn, HeldResources, ScenarioThread, remove_random, sites, traffic};
use super::{KIB, MIB};

sites! {
    leak_kept_losses: plain,
    leak_one_in_hundred: plain,
    leak_epoch_history: plain,
    leak_under_noise: plain,
    leak_from_a_third: plain,
    leak_small_records: plain,
    big_batch: plain,
    leak_growing_sizes: plain,
    leak_first_of_two: plain,
    leak_second_of_two: plain,
    warm_up_weights: plain,
    leak_after_warm_up: plain,
    leak_checkpoints: plain,
}

/// Leaks in every step.
pub(super) fn fast(run: &mut ScenarioThread) -> anyhow::Result<()> {
    while run.step(20) {
        traffic(run)?;
        leak_kept_losses(run, 256 * KIB)?;
    }
    Ok(())
}

/// Leaks one in a hundred allocations of a busy site.
pub(super) fn slow(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut churn = Churn::new(leak_one_in_hundred, end_plain, 10);
    while run.step(2) {
        churn.advance(run, MIB, Some(100))?;
    }
    Ok(())
}

/// Leaks several blocks at the end of each epoch.
pub(super) fn epochs(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut epoch = 0;
    while run.step(20) {
        traffic(run)?;
        if run.period(800) != epoch {
            epoch = run.period(800);
            for _ in 0..6 {
                leak_epoch_history(run, 4 * MIB)?;
            }
        }
    }
    Ok(())
}

/// Random allocations and frees, of which a few leak.
pub(super) fn noisy(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut held = HeldResources::new();
    while run.step(10) {
        for _ in 0..run.random.u32(..4) {
            let bytes = run.random.usize(64 * KIB..4 * MIB);
            let pointer = leak_under_noise(run, bytes)?;
            if !run.one_in(25) {
                held.push_back(pointer);
            }
        }
        // The more are held, the more are freed.
        let max = 1 + held.len() / 20;
        for _ in 0..run.random.usize(..=max) {
            if let Some(pointer) = remove_random(run, &mut held) {
                end_plain(run, pointer)?;
            }
        }
    }
    Ok(())
}

/// Leaks only after a third of the time.
pub(super) fn late(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut churn = Churn::new(leak_from_a_third, end_plain, 8);
    while run.step(10) {
        let leak_one_in = (run.progress() > 0.34).then_some(4);
        churn.advance(run, 512 * KIB, leak_one_in)?;
    }
    Ok(())
}

/// Leaks small blocks next to large ones that are freed.
pub(super) fn small(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut churn = Churn::new(big_batch, end_plain, 3);
    while run.step(20) {
        let bytes = run.random.usize(32 * MIB..96 * MIB);
        churn.advance(run, bytes, None)?;
        leak_small_records(run, 4 * KIB)?;
    }
    Ok(())
}

/// Leaks ever larger blocks.
pub(super) fn growing(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut bytes = 0;
    while run.step(100) {
        traffic(run)?;
        bytes += 64 * KIB;
        leak_growing_sizes(run, bytes)?;
    }
    Ok(())
}

/// One site leaks all, another one in ten.
pub(super) fn two(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut churn = Churn::new(leak_second_of_two, end_plain, 5);
    while run.step(30) {
        traffic(run)?;
        leak_first_of_two(run, 128 * KIB)?;
        churn.advance(run, MIB, Some(10))?;
    }
    Ok(())
}

/// First weights that stay, then small blocks that leak.
pub(super) fn after_warm_up(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut weights = 0;
    while run.step(25) {
        traffic(run)?;
        while weights < run.share(40, 0.1) {
            warm_up_weights(run, 16 * MIB)?;
            weights += 1;
        }
        if weights == 40 {
            leak_after_warm_up(run, 64 * KIB)?;
        }
    }
    Ok(())
}

/// Leaks a large block occasionally.
pub(super) fn checkpoints(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut second = 0;
    while run.step(20) {
        traffic(run)?;
        if run.period(1000) != second {
            second = run.period(1000);
            leak_checkpoints(run, 128 * MIB)?;
        }
    }
    Ok(())
}
