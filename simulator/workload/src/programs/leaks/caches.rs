//! Caches that hold much and leak nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::resources;
use super::resources::end_plain;
use super::scenario_thread::{
    HeldResources, ScenarioThread, destroy_all, remove_random, sites, traffic,
};
use super::{KIB, MIB};

sites! {
    cache_lru_get: plain,
    cache_growing_get: plain,
    cache_random_get: plain,
    cache_generation_build: plain,
    allocator_segment: plain,
    cache_by_bytes_get: plain,
    cache_memo_get: plain,
}

/// Full early; then the least recently used entry is evicted for each new one.
pub(super) fn lru(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut entries: BTreeMap<u32, u64> = BTreeMap::new();
    let mut order: VecDeque<u32> = VecDeque::new();
    while run.step(5) {
        let key = run.random.u32(..200);
        if entries.contains_key(&key) {
            order.retain(|other| *other != key);
        } else {
            if order.len() == 64
                && let Some(evicted) = order.pop_front().and_then(|key| entries.remove(&key))
            {
                end_plain(run, evicted)?;
            }
            entries.insert(key, cache_lru_get(run, MIB)?);
        }
        order.push_back(key);
    }
    Ok(())
}

/// Full after half of the time; until then nothing is evicted.
pub(super) fn growing(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut entries = HeldResources::new();
    let mut due = 0;
    while run.step(20) {
        traffic(run)?;
        // New entries are added at a constant rate.
        let target = run.share(300, 1.0);
        while due < target {
            due += 1;
            entries.push_back(cache_growing_get(run, MIB)?);
            if entries.len() > 150
                && let Some(oldest) = entries.pop_front()
            {
                end_plain(run, oldest)?;
            }
        }
    }
    Ok(())
}

/// Random eviction, so that some entries become very old.
pub(super) fn random_eviction(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut entries = HeldResources::new();
    while run.step(10) {
        if entries.len() == 80
            && let Some(evicted) = remove_random(run, &mut entries)
        {
            end_plain(run, evicted)?;
        }
        entries.push_back(cache_random_get(run, MIB)?);
    }
    Ok(())
}

/// All entries are replaced at once from time to time.
pub(super) fn generations(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let (mut generation, mut entries) = (u128::MAX, HeldResources::new());
    while run.step(20) {
        traffic(run)?;
        if run.period(1500) != generation {
            generation = run.period(1500);
            let mut old = std::mem::take(&mut entries);
            for _ in 0..24 {
                entries.push_back(cache_generation_build(run, 4 * MIB)?);
            }
            destroy_all(run, &mut old, end_plain)?;
        }
    }
    Ok(())
}

/// An allocator that keeps freed blocks of four sizes, and empties itself every 4 seconds.
pub(super) fn emptied(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut idle: [HeldResources; 4] = Default::default();
    let mut busy: [HeldResources; 4] = Default::default();
    let mut emptied = 0;
    while run.step(10) {
        let size = run.random.usize(..4);
        let (Some(idle_blocks), Some(busy_blocks)) = (idle.get_mut(size), busy.get_mut(size))
        else {
            continue;
        };
        if run.random.usize(..30) >= busy_blocks.len() {
            let block = match idle_blocks.pop_front() {
                Some(block) => block,
                None => allocator_segment(run, MIB << size)?,
            };
            busy_blocks.push_back(block);
        } else if let Some(block) = remove_random(run, busy_blocks) {
            idle_blocks.push_back(block);
        }
        if run.period(4000) != emptied {
            emptied = run.period(4000);
            for blocks in &mut idle {
                destroy_all(run, blocks, end_plain)?;
            }
        }
    }
    Ok(())
}

/// Bounded by bytes; entries have any size.
pub(super) fn by_bytes(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut entries: VecDeque<(u64, usize)> = VecDeque::new();
    let mut total = 0;
    while run.step(15) {
        let bytes = run.random.usize(100 * KIB..8 * MIB);
        while total + bytes > 256 * MIB
            && let Some((oldest, size)) = entries.pop_front()
        {
            end_plain(run, oldest)?;
            total -= size;
        }
        entries.push_back((cache_by_bytes_get(run, bytes)?, bytes));
        total += bytes;
    }
    Ok(())
}

/// Results of a function with 120 possible arguments: more and more calls hit.
pub(super) fn memo(run: &mut ScenarioThread) -> anyhow::Result<()> {
    let mut results = BTreeSet::new();
    while run.step(20) {
        traffic(run)?;
        let argument = run.random.u32(..120);
        if results.insert(argument) {
            cache_memo_get(run, MIB)?;
        }
    }
    Ok(())
}
