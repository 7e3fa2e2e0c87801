//! Allocations of one site over time: what the classifier knows of it. The same for traces and
//! files.

use super::{GrowthHistory, LifetimeHistogram, SiteObservation, classify, growth_run};
use crate::model::{ByteSum, Nanos, SamplingInterval, Timestamp};
use crate::verdict::{Confidence, Evidence, Verdict};

/// Allocations of one kind from one site, in bytes or numbers of objects.
#[derive(Clone, Debug, Default)]
pub struct Track {
    /// Live quantity.
    pub(crate) live: ByteSum,
    /// Number of live allocations.
    pub(crate) count: u64,
    /// Number of allocations.
    pub(crate) allocations: u64,
    /// Number freed by calls, or implied by another allocation with the same key.
    pub(crate) freed: u64,
    /// Times of the first and the last allocation.
    pub(crate) first: Timestamp,
    pub(crate) last: Timestamp,
    /// Sum of the allocation times of live allocations, and sum of the lifetimes of freed ones.
    allocated_at_sum: ByteSum,
    lifetime_sum: ByteSum,
    /// Lifetimes of freed allocations.
    pub(crate) lifetimes: LifetimeHistogram,
    /// Live quantity over time.
    pub(crate) history: GrowthHistory,
    /// Largest interval, if allocations were sampled. Bytes are then estimates, and numbers are those
    /// of the samples: they are the evidence.
    pub(crate) sampled: Option<SamplingInterval>,
    /// Frees since the last allocation.
    final_frees: FinalFrees,
}

/// Longest time between two frees of a program that is still freeing, if it frees at least eight times as
/// fast on average.
const MIN_FREE_IDLE_NS: u64 = 2_000_000_000;

/// Frees since the last allocation: at the end of a process, its final frees.
#[derive(Clone, Debug, Default)]
struct FinalFrees {
    /// Number of allocations that ended; 0: there are none.
    ended: u64,
    /// Of those: freed by calls.
    freed: u64,
    /// Time of the newest.
    last: Timestamp,
    /// Lifetimes of those, as buckets of the histogram, and the longest lifetime before.
    lifetimes: Vec<(u8, u32)>,
    longest: Nanos,
    /// Sums of the allocation times of all, and of the lifetimes of those freed by calls.
    allocated_at_sum: ByteSum,
    lifetime_sum: ByteSum,
}

impl Track {
    /// Creates an empty track.
    pub fn new(at: Timestamp) -> Self {
        Self { first: at, last: at, ..Self::default() }
    }

    /// Live quantity.
    pub fn quantity(&self) -> u64 {
        self.live.bytes().0
    }

    /// Records an allocation. `start` is that of the trace.
    pub fn allocated(&mut self, start: Timestamp, at: Timestamp, size: u64) {
        self.history.allocated(at - start, self.quantity(), size);
        self.live.add(size);
        self.count += 1;
        self.allocations += 1;
        self.last = self.last.max(at);
        self.allocated_at_sum.add(at.0);
        if self.final_frees.ended > 0 {
            self.final_frees.ended = 0;
        }
    }

    /// Records the end of an allocation; `freed`: by a call of the program.
    pub fn ended(
        &mut self,
        start: Timestamp,
        allocated_at: Timestamp,
        at: Timestamp,
        size: u64,
        freed: bool,
    ) {
        let final_frees = &mut self.final_frees;
        if final_frees.ended == 0 {
            final_frees.freed = 0;
            final_frees.lifetimes.clear();
            final_frees.longest = self.lifetimes.max().unwrap_or_default();
            final_frees.allocated_at_sum = ByteSum::default();
            final_frees.lifetime_sum = ByteSum::default();
        }
        final_frees.ended += 1;
        final_frees.last = at;
        final_frees.allocated_at_sum.add(allocated_at.0);
        self.history.freed(allocated_at - start, at - start, self.live.bytes().0, size);
        self.live.subtract(size);
        self.count = self.count.saturating_sub(1);
        self.allocated_at_sum.subtract(allocated_at.0);
        if freed {
            let lifetime = at - allocated_at;
            self.freed += 1;
            self.lifetime_sum.add(lifetime.0);
            let bucket = self.lifetimes.add(lifetime);
            final_frees.freed += 1;
            final_frees.lifetime_sum.add(lifetime.0);
            match final_frees.lifetimes.iter_mut().find(|(other, _)| *other == bucket) {
                Some((_, count)) => *count = count.saturating_add(1),
                None => final_frees.lifetimes.push((bucket, 1)),
            }
        }
    }

    /// Records that a live allocation is larger by `more` than assumed.
    pub fn resized(&mut self, start: Timestamp, allocated_at: Timestamp, at: Timestamp, more: u64) {
        self.history.resized(allocated_at - start, at - start, self.quantity(), more);
        self.live.add(more);
    }

    /// Mean age of live allocations.
    pub(crate) fn mean_age(&self, at: Timestamp) -> Nanos {
        match self.count {
            0 => Nanos(0),
            count => at - Timestamp(self.allocated_at_sum.mean(count)),
        }
    }

    /// Adds the allocations of another site.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.history.merge(self.quantity(), &other.history, other.quantity());
        self.live = self.live.plus(other.live);
        self.count = self.count.saturating_add(other.count);
        self.allocations = self.allocations.saturating_add(other.allocations);
        self.freed = self.freed.saturating_add(other.freed);
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
        self.allocated_at_sum = self.allocated_at_sum.plus(other.allocated_at_sum);
        self.lifetime_sum = self.lifetime_sum.plus(other.lifetime_sum);
        self.lifetimes.merge(&other.lifetimes);
        self.sampled = self.sampled.max(other.sampled);
        self.final_frees = FinalFrees::default();
    }

    /// Whether the site can be a leak at all, from cheap values: a leak needs a minimum number of
    /// live allocations and recent growth. Avoids running the classifier on other sites.
    pub(crate) fn may_leak(&self, now: Timestamp, has_ended: bool) -> bool {
        let (life, idle) = (now - self.first, now - self.last);
        let counts = has_ended || self.is_freeing(now);
        let ended = if counts { self.final_frees.ended } else { 0 };
        self.count.saturating_add(ended) >= growth_run::MIN_SURVIVORS && idle.0 <= life.0 / 2
    }

    /// Whether it is being freed: the last change was a free, not long ago, and more can follow.
    fn is_freeing(&self, now: Timestamp) -> bool {
        let frees = &self.final_frees;
        let mean = (frees.last - self.last).0 / frees.ended.max(1);
        let is_due = frees.ended > 0 && self.count > 0;
        is_due && (now - frees.last).0 <= MIN_FREE_IDLE_NS.max(mean.saturating_mul(8))
    }

    /// Classifies a site that is given as one or more tracks. `has_ended`: its process or file has
    /// ended; then memory that grew and was only freed at the end is a leak. While it is being freed, it
    /// remains one.
    pub fn classify(
        tracks: &[&Self],
        (start, now): (Timestamp, Timestamp),
        has_ended: bool,
        has_stack: bool,
    ) -> (Verdict, Confidence, Evidence) {
        let several = match tracks {
            [_] => None,
            _ => merged(tracks.iter().map(|track| (*track).clone())),
        };
        let Some(all) = several.as_ref().or(tracks.first().copied()) else {
            return (Verdict::NotEnoughData, Confidence::Possible, Evidence::default());
        };
        let plain = classify(&SiteObservation { has_ended, has_stack, ..all.observe(start, now) });
        if plain.0 == Verdict::Leak {
            return plain;
        }
        let before: Vec<_> =
            tracks.iter().map(|track| track.before_final_frees(start, now, has_ended)).collect();
        let Some(end) = before.iter().flatten().map(|(at, _)| *at).max() else { return plain };
        let unfreed = tracks.iter().zip(before).map(|(track, before)| match before {
            Some((_, before)) => before,
            None => (*track).clone(),
        });
        let Some(unfreed) = merged(unfreed) else { return plain };
        let (verdict, confidence, evidence) = classify(&SiteObservation {
            has_ended,
            has_stack,
            freed_at_end: has_ended,
            ..unfreed.observe(start, end)
        });
        let freed_at_end = unfreed.quantity().saturating_sub(all.quantity());
        match verdict {
            Verdict::Leak => {
                let is_freeing = !has_ended;
                (verdict, confidence, Evidence { freed_at_end, is_freeing, ..evidence })
            }
            _ => plain,
        }
    }

    fn observe(&self, start: Timestamp, now: Timestamp) -> SiteObservation<'_> {
        SiteObservation {
            history: &self.history,
            lifetimes: &self.lifetimes,
            live: self.quantity(),
            live_count: self.count,
            allocated: self.allocations,
            freed: self.freed,
            mean_age: self.mean_age(now),
            mean_life: (self.freed > 0).then(|| Nanos(self.lifetime_sum.mean(self.freed))),
            first: self.first - start,
            last: self.last - start,
            now: now - start,
            has_ended: false,
            has_stack: true,
            freed_at_end: false,
            is_sampled: self.sampled.is_some(),
        }
    }

    /// The state before the frees since the last allocation, with its time, if those freed at least
    /// half, or continue, and took at most a quarter of the time of the site; half, if it grew for so long that it
    /// was a leak while the process ran.
    fn before_final_frees(
        &self,
        start: Timestamp,
        now: Timestamp,
        has_ended: bool,
    ) -> Option<(Timestamp, Self)> {
        let frees = &self.final_frees;
        if !has_ended && !self.is_freeing(now) {
            return None;
        }
        let (at, live, history) = (frees.ended > 0).then(|| self.history.before_frees())??;
        let at = Timestamp(start.0.saturating_add(at.0));
        let life = (at - self.first).0;
        let limit = if life >= growth_run::MIN_GROWTH.0 { life / 2 } else { life / 4 };
        if (now - at).0 > limit || has_ended && self.quantity() > live / 2 {
            return None;
        }
        let unfreed = Self {
            live: ByteSum::from(live),
            count: self.count.saturating_add(frees.ended),
            freed: self.freed.saturating_sub(frees.freed),
            allocated_at_sum: self.allocated_at_sum.plus(frees.allocated_at_sum),
            lifetime_sum: self.lifetime_sum.minus(frees.lifetime_sum),
            lifetimes: self.lifetimes.without(&frees.lifetimes, frees.longest),
            history,
            final_frees: FinalFrees::default(),
            ..*self
        };
        Some((at, unfreed))
    }
}

fn merged(mut tracks: impl Iterator<Item = Track>) -> Option<Track> {
    let mut all = tracks.next()?;
    tracks.for_each(|track| all.merge(&track));
    Some(all)
}
