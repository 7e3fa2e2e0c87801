//! Sampled blocks of an allocator: exact totals, estimates by site, and verdicts on them.

use std::collections::{BTreeMap, VecDeque};

use engine::ledger::Ledger;
use engine::model::blocks::{BlockEvent, BlockOp};
use engine::model::event::{Event, EventKind};
use engine::model::ids::{DeviceId, Pid, SiteId, Tid};
use engine::model::sampling::{Sampling, SamplingInterval};
use engine::model::stack::SiteName;
use engine::model::units::{Bytes, Timestamp};
use engine::snapshot::{Snapshot, SnapshotOptions};

/// Blocks at the given times, in seconds, which are sampled at an interval.
struct SampledBlocks {
    events: Vec<Event>,
    interval: SamplingInterval,
    random: u64,
    next: u64,
    /// Allocated and live bytes of each site.
    truth: BTreeMap<u32, (u64, u64)>,
}

impl SampledBlocks {
    fn new(interval: u64, seed: u64) -> Self {
        let interval = SamplingInterval::from_bytes(interval).unwrap();
        Self { events: Vec::new(), interval, random: seed, next: 0, truth: BTreeMap::new() }
    }

    fn roll(&mut self) -> f64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn push(&mut self, seconds: f64, op: BlockOp) {
        let at = Timestamp((seconds * 1e9) as u64);
        let kind = EventKind::Block(BlockEvent::pytorch(op, DeviceId(0), 0, 0));
        self.events.push(Event { pid: Pid(7), tid: Tid(8), entry_time: at, time: at, kind });
    }

    fn block(&mut self, at: f64, until: Option<f64>, bytes: u64, site: u32) {
        let expected = bytes as f64 / self.interval.bytes().0 as f64 + 1.0 / 16.0;
        let is_sampled = self.roll() < 1.0 - (-expected).exp();
        let (sampling, own) = match is_sampled {
            true => (Sampling::Sampled(self.interval), Some(SiteId(site))),
            false => (Sampling::Skipped(self.interval), None),
        };
        self.next += 1;
        let address = self.next << 32;
        self.push(at, BlockOp::Allocated { address, bytes, site: own, sampling });
        let truth = self.truth.entry(site).or_default();
        truth.0 += bytes;
        match until {
            Some(until) => self.push(until, BlockOp::Freed { address, bytes }),
            None => truth.1 += bytes,
        }
    }

    fn snapshot(&mut self, seconds: f64) -> Snapshot {
        self.events.sort_by_key(|event| event.time);
        let mut ledger = Ledger::new();
        let until = Timestamp((seconds * 1e9) as u64);
        self.events
            .iter()
            .filter(|event| event.time <= until)
            .for_each(|event| ledger.apply(event));
        ledger.snapshot(until, &SnapshotOptions::default())
    }

    fn suspects(&mut self, seconds: f64) -> Vec<SiteName> {
        self.snapshot(seconds).suspects.iter().map(|one| one.site).collect()
    }
}

#[test]
fn sites_of_sampled_blocks_are_unbiased_estimates() {
    let mut blocks = SampledBlocks::new(1 << 20, 3);
    for step in 0..20_000 {
        let at = f64::from(step) / 1000.0;
        blocks.block(at, None, 512, 1);
        blocks.block(at, Some(at + 0.01), 100_000, 2);
        blocks.block(at, (step % 2 == 0).then_some(30.0), 3 << 20, 3);
    }
    let snapshot = blocks.snapshot(40.0);
    let torch = snapshot.processes[0].torch().next().unwrap();
    let pool = torch.pools[0];
    let live: u64 = blocks.truth.values().map(|(_, live)| live).sum();
    // Blocks that are not sampled count in totals.
    assert_eq!((pool.tracked_bytes, pool.allocations_total), (Bytes(live), 60_000));
    assert_eq!(pool.blocks, 30_000);
    let sampling = torch.sampling.unwrap();
    assert_eq!((sampling.since, sampling.interval.bytes()), (Timestamp(0), Bytes(1 << 20)));
    assert!((30_000..45_000).contains(&sampling.skipped), "{sampling:?}");
    assert_eq!(snapshot.tensor_sites_total, 3);
    for site in &snapshot.tensor_sites {
        let SiteName::Pending(SiteId(number)) = site.name else { panic!("{site:?}") };
        let (allocated, live) = blocks.truth[&number];
        let is_near = |estimate: u64, truth: u64| estimate.abs_diff(truth) <= truth / 8;
        assert!(is_near(site.bytes_total.0, allocated), "{site:?}");
        assert!(is_near(site.live_bytes.0, live), "{site:?}");
        assert!(is_near(site.allocations_total, 20_000), "{site:?}");
        let freed = [0, 20_000, 10_000][number as usize - 1];
        assert!(is_near(site.freed_total, freed), "{site:?}");
        assert!(site.sampling.is_some());
    }
}

#[test]
fn sampled_leak_is_a_suspect_and_a_cache_is_not() {
    let leaking = SiteName::Pending(SiteId(1));
    let mut accused = Vec::new();
    for seed in 0..10 {
        let mut blocks = SampledBlocks::new(64 << 20, seed);
        let mut cache = VecDeque::new();
        for step in 0..6000 {
            let at = f64::from(step) / 100.0;
            // One tiny tensor of each step stays, beside many that do not.
            blocks.block(at, None, 512, 1);
            for site in 2..6 {
                blocks.block(at, Some(at + 0.005), 1 << 20, site);
            }
            // Caches of a thousand entries, replaced in order and at random, after a warm-up.
            cache.push_back(at);
            if cache.len() > 1000 {
                let oldest = cache.pop_front().unwrap();
                blocks.block(oldest, Some(at), 4096, 6);
                let victim = (blocks.roll() * cache.len() as f64) as usize;
                let life = cache[victim] - oldest;
                blocks.block(oldest, Some(oldest + life), 4096, 7);
            }
        }
        // The entries of the end.
        for at in cache {
            blocks.block(at, None, 4096, 6);
        }
        for seconds in [35.0, 45.0, 60.0] {
            let suspects = blocks.suspects(seconds);
            accused.extend(suspects.iter().filter(|one| **one != leaking).map(|one| (seed, *one)));
            // In 60 seconds 6000 are kept, of which one in 16 is sampled.
            assert!(seconds < 45.0 || suspects.contains(&leaking), "{seed} {seconds}");
        }
    }
    assert_eq!(accused, []);
}
