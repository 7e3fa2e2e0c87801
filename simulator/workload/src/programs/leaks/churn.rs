//! Memory that is allocated and freed, and returns to the same level.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::mpsc::sync_channel;

use super::resources;
use super::resources::{end_async, end_plain};
use super::scenario_thread::{
    Churn, HeldResources, ScenarioThread, destroy_all, remove_random, sites, traffic,
};
use super::{KIB, MIB};
use crate::programs::threads::{join, spawn};

sites! {
    train_activation: plain,
    train_gradient: plain,
    train_optimizer_state: plain,
    ring_slot: plain,
    pong_buffer: plain,
    eval_batch: plain,
    epoch_statistics: plain,
    long_epoch_statistics: plain,
    mixed_sizes: plain,
    window_frame: plain,
    walk_block: plain,
    session_state: plain,
    async_step: stream_ordered,
    prefetch_batch: plain,
    tide_session: plain,
    bursty_request: plain,
}

/// Training steps: activations and gradients are freed, the optimizer state stays.
pub(super) fn training(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut first = true;
    while run.step(20) {
        let mut activations = HeldResources::new();
        let mut gradients = HeldResources::new();
        for _ in 0..8 {
            activations.push_back(train_activation(run, 2 * MIB)?);
        }
        while let Some(activation) = activations.pop_back() {
            gradients.push_back(train_gradient(run, MIB)?);
            end_plain(run, activation)?;
        }
        if first {
            first = false;
            for _ in 0..16 {
                train_optimizer_state(run, MIB)?;
            }
        }
        destroy_all(run, &mut gradients, end_plain)?;
    }
    Ok(())
}

/// Eight slots that are refilled in order.
pub(super) fn ring(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut churn = Churn::new(ring_slot, end_plain, 8);
    while run.step(30) {
        let bytes = run.random.usize(MIB..3 * MIB);
        churn.advance(run, bytes, None)?;
    }
    Ok(())
}

/// Two buffers, each reallocated while the other is read.
pub(super) fn ping_pong(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut churn = Churn::new(pong_buffer, end_plain, 2);
    while run.step(25) {
        churn.advance(run, 32 * MIB, None)?;
    }
    Ok(())
}

/// A periodic evaluation holds much memory for a short time.
pub(super) fn evaluation(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut held = HeldResources::new();
    while run.step(20) {
        traffic(run)?;
        if run.period(300) % 5 == 4 {
            if held.len() < 20 {
                held.push_back(eval_batch(run, 8 * MIB)?);
            }
        } else {
            destroy_all(run, &mut held, end_plain)?;
        }
    }
    Ok(())
}

/// Memory collected during an epoch is freed at its end.
pub(super) fn sawtooth(run: &mut ScenarioThread) -> anyhow::Result<()> {
    sawtooth_with_period(run, epoch_statistics, 1500)
}

/// The same with long epochs.
pub(super) fn long_sawtooth(run: &mut ScenarioThread) -> anyhow::Result<()> {
    sawtooth_with_period(run, long_epoch_statistics, 4000)
}

fn sawtooth_with_period(
    run: &mut ScenarioThread,
    site: super::scenario_thread::CreateFn,
    milliseconds: u128,
) -> anyhow::Result<()> {
    let (mut epoch, mut collected) = (0, HeldResources::new());
    while run.step(20) {
        traffic(run)?;
        collected.push_back(site(run, MIB)?);
        if run.period(milliseconds) != epoch {
            epoch = run.period(milliseconds);
            destroy_all(run, &mut collected, end_plain)?;
        }
    }
    Ok(())
}

/// Blocks with the time of their free, by time.
type Timed = BinaryHeap<Reverse<(u128, u64)>>;

/// Frees blocks that are due.
fn end_due(run: &ScenarioThread, timed: &mut Timed) -> anyhow::Result<()> {
    while timed.peek().is_some_and(|Reverse((due, _))| *due <= run.period(1)) {
        if let Some(Reverse((_, pointer))) = timed.pop() {
            end_plain(run, pointer)?;
        }
    }
    Ok(())
}

/// Random lifetimes.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a conversion from floating point saturates, and lifetimes are short"
)]
fn milliseconds(time: f64) -> u128 {
    time as u128
}

/// Sizes from bytes to many megabytes, with random lifetimes.
pub(super) fn mixed(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut timed = Timed::new();
    while run.step(4) {
        let bytes = run.random.usize(256..512) << run.random.u32(..15);
        let lifetime = -300.0 * (1.0 - run.random.f64()).ln();
        let pointer = mixed_sizes(run, bytes)?;
        timed.push(Reverse((run.period(1) + milliseconds(lifetime), pointer)));
        end_due(run, &mut timed)?;
    }
    Ok(())
}

/// The last hundred frames.
pub(super) fn sliding(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut churn = Churn::new(window_frame, end_plain, 100);
    while run.step(20) {
        churn.advance(run, MIB, None)?;
    }
    Ok(())
}

/// A random walk around 60 blocks.
pub(super) fn walk(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut held = HeldResources::new();
    while run.step(5) {
        if run.random.usize(..120) >= held.len() {
            held.push_back(walk_block(run, MIB)?);
        } else if let Some(pointer) = remove_random(run, &mut held) {
            end_plain(run, pointer)?;
        }
    }
    Ok(())
}

/// Sessions start at a constant rate; most are short, few are long, none longer than 4 seconds.
pub(super) fn sessions(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut timed = Timed::new();
    while run.step(5) {
        traffic(run)?;
        let lifetime = (50.0 / (1.0 - run.random.f64()).powf(0.9)).min(4000.0);
        let pointer = session_state(run, MIB)?;
        timed.push(Reverse((run.period(1) + milliseconds(lifetime), pointer)));
        end_due(run, &mut timed)?;
    }
    Ok(())
}

/// Stream-ordered buffers of each step.
pub(super) fn stream_ordered(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut churn = Churn::new(async_step, end_async, 4);
    while run.step(10) {
        let bytes = run.random.usize(64 * KIB..4 * MIB);
        churn.advance(run, bytes, None)?;
    }
    Ok(())
}

/// One thread prefetches, another frees the buffers that it used.
pub(super) fn prefetch(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let (sender, receiver) = sync_channel::<u64>(4);
    std::thread::scope(|scope| {
        let consumer = run.worker();
        let handle = spawn(scope, run.device, 1, move || {
            receiver.iter().try_for_each(|batch| end_plain(&consumer, batch))?;
            Ok(())
        })?;
        let mut produce = || -> anyhow::Result<()> {
            while run.step(10) {
                sender.send(prefetch_batch(run, 8 * MIB)?)?;
            }
            Ok(())
        };
        let produced = produce();
        // Without a sender, the consumer's next receive fails and ends it.
        drop(sender);
        join(vec![handle]).and(produced)
    })
}

/// Sessions for a load that rises and falls every 6 seconds.
pub(super) fn tides(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut held = HeldResources::new();
    while run.step(20) {
        traffic(run)?;
        // From 0 to 30 and back, in steps of 100 milliseconds.
        let phase = run.period(100) % 60;
        let target = 20 + 4 * phase.min(60 - phase);
        while (held.len() as u128) < target {
            held.push_back(tide_session(run, MIB)?);
        }
        while held.len() as u128 > target
            && let Some(oldest) = held.pop_front()
        {
            end_plain(run, oldest)?;
        }
    }
    Ok(())
}

/// Occasional bursts of requests; each takes half a second.
pub(super) fn bursts(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut timed = Timed::new();
    while run.step(20) {
        traffic(run)?;
        if run.one_in(40) {
            for _ in 0..run.random.u32(5..60) {
                timed.push(Reverse((run.period(1) + 500, bursty_request(run, MIB)?)));
            }
        }
        end_due(run, &mut timed)?;
    }
    Ok(())
}
