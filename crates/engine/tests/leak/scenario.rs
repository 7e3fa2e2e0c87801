//! A small notation for the history of a site: allocations with a start, an end and a size, in
//! seconds and arbitrary units of size.
//!
//! ```text
//! Play::new().keep(every(0.0, 60.0, 0.1), 1)          leaks ten per second
//!     .churn(every(0.0, 60.0, 0.01), 0.005, 8)        and has others that live 5 ms
//! ```

use engine::leak::Track;
use engine::model::units::{Nanos, Timestamp};
use engine::verdict::{Confidence, Evidence, Verdict};

/// Returns times from `from` to `to`, `step` apart.
pub(crate) fn every(from: f64, to: f64, step: f64) -> Vec<f64> {
    let count = ((to - from) / step).round() as u64;
    (0..count).map(|number| from + number as f64 * step).collect()
}

/// A deterministic generator of numbers from 0 to 1.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f64 / f64::from(1 << 24)
    }

    /// Returns an exponentially distributed lifetime with that mean.
    pub(crate) fn decay(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.roll()).ln()
    }
}

#[derive(Clone, Copy)]
struct AllocationSpan {
    allocated_at: f64,
    freed_at: Option<f64>,
    size: u64,
}

/// The allocations of one site over time.
#[derive(Clone, Default)]
pub(crate) struct Scenario(Vec<AllocationSpan>);

fn nanos(seconds: f64) -> Nanos {
    Nanos((seconds * 1e9) as u64)
}

impl Scenario {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn one(mut self, allocated_at: f64, freed_at: Option<f64>, size: u64) -> Self {
        self.0.push(AllocationSpan { allocated_at, freed_at, size });
        self
    }

    /// Adds allocations that are never freed.
    pub(crate) fn keep(mut self, times: Vec<f64>, size: u64) -> Self {
        self.0.extend(times.into_iter().map(|allocated_at| AllocationSpan {
            allocated_at,
            freed_at: None,
            size,
        }));
        self
    }

    /// Adds allocations that are freed one after another, from a time on.
    pub(crate) fn keep_until(self, times: Vec<f64>, end: f64, size: u64) -> Self {
        let mut freed = end;
        self.with_lifetimes(times, size, |allocated_at| {
            freed += 1e-5;
            freed - allocated_at
        })
    }

    /// Adds allocations with a fixed lifetime.
    pub(crate) fn churn(self, times: Vec<f64>, life: f64, size: u64) -> Self {
        self.with_lifetimes(times, size, |_| life)
    }

    pub(crate) fn with_lifetimes(
        mut self,
        times: Vec<f64>,
        size: u64,
        mut life: impl FnMut(f64) -> f64,
    ) -> Self {
        let one = |allocated_at| AllocationSpan {
            allocated_at,
            freed_at: Some(allocated_at + life(allocated_at)),
            size,
        };
        self.0.extend(times.into_iter().map(one));
        self
    }

    /// Adds allocations that are freed at the next multiple of a period.
    pub(crate) fn until_next(self, times: Vec<f64>, period: f64, size: u64) -> Self {
        self.with_lifetimes(times, size, |allocated_at| {
            (allocated_at / period).floor().mul_add(period, period) - allocated_at
        })
    }

    /// Adds allocations to a queue: beyond `limit` live ones, the oldest is freed.
    pub(crate) fn fifo(mut self, times: Vec<f64>, limit: usize, size: u64) -> Self {
        for (number, allocated_at) in times.iter().enumerate() {
            self.0.push(AllocationSpan {
                allocated_at: *allocated_at,
                freed_at: times.get(number + limit).copied(),
                size,
            });
        }
        self
    }

    /// Adds allocations to a cache: beyond `limit` live ones, a random one is freed.
    pub(crate) fn random_cache(
        mut self,
        times: Vec<f64>,
        limit: usize,
        size: u64,
        seed: u64,
    ) -> Self {
        let mut dice = Dice(seed);
        let mut live: Vec<f64> = Vec::new();
        for allocated_at in times {
            if live.len() == limit {
                let victim = live.swap_remove((dice.roll() * limit as f64) as usize % limit);
                self.0.push(AllocationSpan {
                    allocated_at: victim,
                    freed_at: Some(allocated_at),
                    size,
                });
            }
            live.push(allocated_at);
        }
        self.0.extend(live.into_iter().map(|allocated_at| AllocationSpan {
            allocated_at,
            freed_at: None,
            size,
        }));
        self
    }

    /// Classifies the site at a time; `has_ended`: its process has exited.
    pub(crate) fn classify(&self, now: f64, has_ended: bool) -> (Verdict, Confidence, Evidence) {
        self.classify_as(now, has_ended, true)
    }

    /// Classifies the site; `has_stack`: its stack is known.
    pub(crate) fn classify_as(
        &self,
        now: f64,
        has_ended: bool,
        has_stack: bool,
    ) -> (Verdict, Confidence, Evidence) {
        let mut events: Vec<(Nanos, bool, AllocationSpan)> = Vec::new();
        for life in self.0.iter().filter(|life| life.allocated_at <= now) {
            events.push((nanos(life.allocated_at), false, *life));
            if let Some(freed_at) = life.freed_at.filter(|freed_at| *freed_at <= now) {
                events.push((nanos(freed_at), true, *life));
            }
        }
        events.sort_by_key(|(at, is_end, _)| (*at, *is_end));
        let time = |at: Nanos| Timestamp(at.0);
        let first = events.first().map_or(Timestamp(0), |(at, ..)| time(*at));
        let (start, mut track) = (Timestamp(0), Track::new(first));
        for (at, is_end, life) in &events {
            if *is_end {
                let allocated_at = time(nanos(life.allocated_at));
                track.ended(start, allocated_at, time(*at), life.size, true);
            } else {
                track.allocated(start, time(*at), life.size);
            }
        }
        Track::classify(&[&track], (start, time(nanos(now))), has_ended, has_stack)
    }

    pub(crate) fn verdict(&self, now: f64) -> Verdict {
        self.classify(now, false).0
    }
}
