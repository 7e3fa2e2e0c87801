//! How long those lived that were freed, counted by power of two of nanoseconds.

use crate::units::Nanos;

const BUCKETS: usize = 64;

/// Frees from which on the longest life may be an exception.
const MANY: u64 = 20;

/// See the module.
#[derive(Clone, Debug)]
pub struct Spans {
    /// Apart, so that what every event needs is close together.
    counts: Box<[u32; BUCKETS]>,
    longest: Nanos,
}

impl Default for Spans {
    fn default() -> Self {
        Self { counts: Box::new([0; BUCKETS]), longest: Nanos(0) }
    }
}

impl Spans {
    /// One that was freed had lived so long.
    pub fn add(&mut self, time: Nanos) {
        self.longest = self.longest.max(time);
        let bucket = (time.0 | 1).ilog2() as usize;
        if self.counts[bucket] == u32::MAX {
            // Their proportions are what counts.
            self.counts.iter_mut().for_each(|count| *count /= 2);
        }
        self.counts[bucket] += 1;
    }

    /// Adds those of another place.
    pub fn absorb(&mut self, other: &Self) {
        self.longest = self.longest.max(other.longest);
        for (count, more) in self.counts.iter_mut().zip(*other.counts) {
            *count = count.saturating_add(more);
        }
    }

    /// Powers of two that occurred, and how often.
    pub fn iter(&self) -> impl Iterator<Item = (u8, u64)> {
        let counts = (0..).zip(*self.counts).filter(|(_, count)| *count > 0);
        counts.map(|(power, count)| (power, u64::from(count)))
    }

    /// The longest life, if there was one.
    #[must_use]
    pub fn longest(&self) -> Option<Nanos> {
        self.counts.iter().any(|count| *count > 0).then_some(self.longest)
    }

    /// A life that at least half of them were not longer than, at most twice the middle one.
    #[must_use]
    pub fn median(&self) -> Option<Nanos> {
        self.bucket(1, 2).map(|power| self.top(power))
    }

    /// The age at which nearly everything that is ever freed has been: 99 of 100 lives were shorter,
    /// of few all. What is older will hardly be freed any more.
    #[must_use]
    pub fn due(&self) -> Option<Nanos> {
        if self.all() < MANY {
            return self.longest();
        }
        self.bucket(99, 100).map(|power| self.top(power))
    }

    /// The longest life of a bucket.
    fn top(&self, power: u8) -> Nanos {
        let from = 1_u64 << power;
        Nanos(from.saturating_add(from - 1)).min(self.longest)
    }

    fn all(&self) -> u64 {
        self.counts.iter().map(|count| u64::from(*count)).sum()
    }

    /// The bucket in which a share of all is reached.
    fn bucket(&self, part: u64, of: u64) -> Option<u8> {
        let wanted = self.all().saturating_mul(part).div_ceil(of).max(1);
        let mut below = 0_u64;
        let found = self.iter().find(|(_, count)| {
            below = below.saturating_add(*count);
            below >= wanted
        });
        found.map(|(power, _)| power)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearly_everything_is_freed_at_the_due_age() {
        let mut spans = Spans::default();
        assert_eq!((spans.due(), spans.median(), spans.longest()), (None, None, None));
        spans.add(Nanos(5000));
        assert_eq!((spans.due(), spans.median()), (Some(Nanos(5000)), Some(Nanos(5000))));
        for _ in 0..199 {
            spans.add(Nanos(10));
        }
        // 199 of 200 lived between 8 and 15.
        assert_eq!((spans.due(), spans.median()), (Some(Nanos(15)), Some(Nanos(15))));
        spans.add(Nanos(u64::MAX));
        spans.add(Nanos(u64::MAX));
        assert_eq!(spans.due(), Some(Nanos(8191)));
    }

    #[test]
    fn a_full_count_keeps_the_proportions() {
        let mut spans = Spans::default();
        spans.counts[0] = u32::MAX;
        spans.counts[3] = 1000;
        spans.add(Nanos(1));
        let counts: Vec<_> = spans.iter().collect();
        assert_eq!(counts, [(0, u64::from(u32::MAX / 2) + 1), (3, 500)]);
    }
}
