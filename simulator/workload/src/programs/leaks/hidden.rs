//! Hidden leaks: on one thread of many, in error paths, in caches, behind other activity.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::sync_channel;

use super::resources;
use super::resources::end_plain;
use super::scenario_thread::{
    Churn, HeldResources, ScenarioThread, destroy_all, remove_random, sites, traffic,
};
use super::{KIB, MIB};
use crate::programs::threads::{join, spawn};

sites! {
    leak_worker_buffer: plain,
    worker_buffer: plain,
    leak_on_one_thread: plain,
    request_input: plain,
    leak_on_error_path: plain,
    leak_unbounded_cache: plain,
    leak_handed_over: plain,
    leak_lru_evicted: plain,
    leak_subscriptions: plain,
    leak_rising_floor: plain,
    leak_swapped_layer: plain,
    leak_one_per_epoch: plain,
    leak_in_phases: plain,
    leak_behind_shrinking: plain,
    shrinking_cache: plain,
    shared_helper: plain,
}

/// Four threads do the same, and one of them leaks.
pub(super) fn one_thread(run: &mut ScenarioThread) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let mut handles = Vec::new();
        for number in 0..4 {
            let mut run = run.worker();
            handles.push(spawn(scope, run.device, number, move || {
                let mut churn = Churn::new(leak_worker_buffer, end_plain, 4);
                let leak_one_in = (number == 2).then_some(20);
                while run.step(8) {
                    churn.advance(&mut run, 512 * KIB, leak_one_in)?;
                }
                Ok(())
            })?);
        }
        join(handles)
    })
}

/// Four threads do the same, and one of them also allocates at its own site.
pub(super) fn own_site_of_a_thread(run: &mut ScenarioThread) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let mut handles = Vec::new();
        for number in 0..4 {
            let mut run = run.worker();
            handles.push(spawn(scope, run.device, number, move || {
                let mut churn = Churn::new(worker_buffer, end_plain, 4);
                while run.step(10) {
                    churn.advance(&mut run, MIB, None)?;
                    if number == 1 && run.one_in(5) {
                        leak_on_one_thread(&run, 64 * KIB)?;
                    }
                }
                Ok(())
            })?);
        }
        join(handles)
    })
}

/// One in fifty requests fails, and then skips a free.
pub(super) fn error_path(run: &mut ScenarioThread) -> anyhow::Result<()> {
    while run.step(5) {
        let input = request_input(run, MIB)?;
        let scratch = leak_on_error_path(run, 2 * MIB)?;
        let failed = run.one_in(50);
        end_plain(run, input)?;
        if !failed {
            end_plain(run, scratch)?;
        }
    }
    Ok(())
}

/// A cache with many hits that never evicts.
pub(super) fn unbounded_cache(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut entries = HeldResources::new();
    while run.step(5) {
        traffic(run)?;
        if run.one_in(10) {
            entries.push_back(leak_unbounded_cache(run, 512 * KIB)?);
        }
    }
    Ok(())
}

/// One thread allocates, another should free, but leaks one in twelve.
pub(super) fn hand_over(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let (sender, receiver) = sync_channel::<u64>(4);
    std::thread::scope(|scope| {
        let mut consumer = run.worker();
        let handle = spawn(scope, run.device, 1, move || {
            while let Ok(pointer) = receiver.recv() {
                if !consumer.one_in(12) {
                    end_plain(&consumer, pointer)?;
                }
            }
            Ok(())
        })?;
        let mut produce = || -> anyhow::Result<()> {
            while run.step(10) {
                sender.send(leak_handed_over(run, MIB)?)?;
            }
            Ok(())
        };
        let produced = produce();
        // Without a sender, the consumer's next receive fails and ends it.
        drop(sender);
        join(vec![handle]).and(produced)
    })
}

/// A bounded cache that does not always free evicted entries.
pub(super) fn leaky_lru(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut entries: BTreeMap<u32, u64> = BTreeMap::new();
    let mut order: VecDeque<u32> = VecDeque::new();
    while run.step(5) {
        let key = run.random.u32(..128);
        if entries.contains_key(&key) {
            order.retain(|other| *other != key);
            order.push_back(key);
            continue;
        }
        entries.insert(key, leak_lru_evicted(run, MIB)?);
        order.push_back(key);
        if order.len() > 64
            && let Some(evicted) = order.pop_front().and_then(|key| entries.remove(&key))
            && !run.one_in(12)
        {
            end_plain(run, evicted)?;
        }
    }
    Ok(())
}

/// Half of the subscribers unsubscribe after a while.
pub(super) fn subscriptions(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut unsubscribing = HeldResources::new();
    while run.step(20) {
        traffic(run)?;
        for _ in 0..run.random.u32(..3) {
            let pointer = leak_subscriptions(run, 128 * KIB)?;
            if run.random.bool() {
                unsubscribing.push_back(pointer);
            }
        }
        if unsubscribing.len() > 30
            && let Some(pointer) = remove_random(run, &mut unsubscribing)
        {
            end_plain(run, pointer)?;
        }
    }
    Ok(())
}

/// Each epoch frees its memory except for a tenth.
pub(super) fn rising_floor(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let (mut epoch, mut collected) = (0, HeldResources::new());
    while run.step(15) {
        collected.push_back(leak_rising_floor(run, MIB)?);
        if run.period(1500) != epoch {
            epoch = run.period(1500);
            while let Some(pointer) = collected.pop_front() {
                if !run.one_in(10) {
                    end_plain(run, pointer)?;
                }
            }
        }
    }
    Ok(())
}

/// A model is replaced by the next one, except for one of its layers.
pub(super) fn swapped_model(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let (mut swap, mut layers) = (0, HeldResources::new());
    while run.step(20) {
        traffic(run)?;
        if run.period(1200) != swap {
            swap = run.period(1200);
            layers.pop_back();
            for layer in std::mem::take(&mut layers) {
                end_plain(run, layer)?;
            }
            for _ in 0..10 {
                layers.push_back(leak_swapped_layer(run, 8 * MIB)?);
            }
        }
    }
    Ok(())
}

/// Each epoch frees its memory except for one block.
pub(super) fn one_per_epoch(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let (mut epoch, mut collected) = (0, HeldResources::new());
    while run.step(15) {
        collected.push_back(leak_one_per_epoch(run, MIB)?);
        if run.period(900) != epoch {
            epoch = run.period(900);
            collected.pop_front();
            destroy_all(run, &mut collected, end_plain)?;
        }
    }
    Ok(())
}

/// Leaks for 2 seconds, then not for 1.5, and so on.
pub(super) fn phases(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut churn = Churn::new(leak_in_phases, end_plain, 6);
    while run.step(10) {
        let leak_one_in = (run.period(500) % 7 < 4).then_some(5);
        churn.advance(run, MIB, leak_one_in)?;
    }
    Ok(())
}

/// A cache shrinks while another site leaks: the total stays the same.
pub(super) fn behind_shrinking(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut cache = HeldResources::new();
    for _ in 0..200 {
        cache.push_back(shrinking_cache(run, MIB)?);
    }
    while run.step(80) {
        leak_behind_shrinking(run, MIB)?;
        while cache.len() > 200 - run.share(200, 0.9)
            && let Some(oldest) = cache.pop_front()
        {
            end_plain(run, oldest)?;
        }
    }
    Ok(())
}

#[inline(never)]
fn careful_caller(run: &mut ScenarioThread, held: &mut HeldResources) -> anyhow::Result<()> {
    held.push_back(shared_helper(run, MIB)?);
    if held.len() > 5
        && let Some(oldest) = held.pop_front()
    {
        end_plain(run, oldest)?;
    }
    Ok(())
}

#[inline(never)]
fn leak_forgetful_caller(run: &mut ScenarioThread, held: &mut HeldResources) -> anyhow::Result<()> {
    held.push_back(shared_helper(run, MIB)?);
    if held.len() > 5
        && let Some(oldest) = held.pop_front()
        && !run.one_in(6)
    {
        end_plain(run, oldest)?;
    }
    Ok(())
}

/// Two callers of one helper; one of them leaks.
pub(super) fn callers(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let (mut careful, mut forgetful) = (HeldResources::new(), HeldResources::new());
    while run.step(15) {
        careful_caller(run, &mut careful)?;
        leak_forgetful_caller(run, &mut forgetful)?;
    }
    Ok(())
}
