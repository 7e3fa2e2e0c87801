//! Histogram of the lifetimes of freed allocations, by powers of two of nanoseconds.
#![allow(clippy::cast_possible_truncation, reason = "a logarithm of 64 bits")]

use crate::model::Nanos;

const BUCKETS: usize = 64;

/// From this number of frees on, the longest lifetime may be an outlier.
const MIN_FREES_FOR_QUANTILE: u64 = 20;

/// Histogram of lifetimes.
#[derive(Clone, Debug)]
pub struct LifetimeHistogram {
    /// Boxed, to keep the data that every event needs close together.
    counts: Box<[u32; BUCKETS]>,
    longest: Nanos,
}

impl Default for LifetimeHistogram {
    fn default() -> Self {
        Self { counts: Box::new([0; BUCKETS]), longest: Nanos(0) }
    }
}

impl LifetimeHistogram {
    /// Adds the lifetime of a freed allocation; returns its bucket.
    pub fn add(&mut self, time: Nanos) -> u8 {
        self.longest = self.longest.max(time);
        let power = (time.0 | 1).ilog2() as u8;
        let bucket = usize::from(power);
        if self.counts[bucket] == u32::MAX {
            // Only the proportions matter.
            self.counts.iter_mut().for_each(|count| *count /= 2);
        }
        self.counts[bucket] += 1;
        power
    }

    /// The histogram without some lifetimes, given as buckets; `longest` is that of the rest.
    pub(super) fn without(&self, lifetimes: &[(u8, u32)], longest: Nanos) -> Self {
        let mut rest = Self { counts: self.counts.clone(), longest };
        for (bucket, count) in lifetimes {
            if let Some(all) = rest.counts.get_mut(usize::from(*bucket)) {
                *all = all.saturating_sub(*count);
            }
        }
        rest
    }

    /// Adds the lifetimes of another site.
    pub fn merge(&mut self, other: &Self) {
        self.longest = self.longest.max(other.longest);
        for (count, more) in self.counts.iter_mut().zip(*other.counts) {
            *count = count.saturating_add(more);
        }
    }

    /// Binary logarithms of lifetimes, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (u8, u64)> {
        let counts = (0..).zip(*self.counts).filter(|(_, count)| *count > 0);
        counts.map(|(power, count)| (power, u64::from(count)))
    }

    /// Longest lifetime, if any.
    pub fn max(&self) -> Option<Nanos> {
        // The first bucket is that of the lifetime 0.
        (self.longest > Nanos(0) || self.counts[0] > 0).then_some(self.longest)
    }

    /// Upper bound of the median lifetime, at most twice its value.
    pub fn median(&self) -> Option<Nanos> {
        self.bucket(1, 2).map(|power| self.top(power))
    }

    /// Age by which almost everything that is ever freed has been freed: the 99th percentile of
    /// lifetimes, or the maximum if there are few. Older allocations will probably never be freed.
    pub fn due_age(&self) -> Option<Nanos> {
        if self.all() < MIN_FREES_FOR_QUANTILE {
            return self.max();
        }
        self.bucket(99, 100).map(|power| self.top(power))
    }

    /// Longest lifetime of a bucket.
    fn top(&self, power: u8) -> Nanos {
        let from = 1_u64 << power;
        Nanos(from.saturating_add(from - 1)).min(self.longest)
    }

    fn all(&self) -> u64 {
        self.counts.iter().map(|count| u64::from(*count)).sum()
    }

    /// Bucket that contains a quantile.
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
        let mut histogram = LifetimeHistogram::default();
        assert_eq!((histogram.due_age(), histogram.median(), histogram.max()), (None, None, None));
        histogram.add(Nanos(5000));
        assert_eq!(
            (histogram.due_age(), histogram.median()),
            (Some(Nanos(5000)), Some(Nanos(5000)))
        );
        for _ in 0..199 {
            histogram.add(Nanos(10));
        }
        // 199 of 200 lived between 8 and 15.
        assert_eq!((histogram.due_age(), histogram.median()), (Some(Nanos(15)), Some(Nanos(15))));
        histogram.add(Nanos(u64::MAX));
        histogram.add(Nanos(u64::MAX));
        assert_eq!(histogram.due_age(), Some(Nanos(8191)));
    }

    #[test]
    fn saturated_count_keeps_proportions() {
        let mut histogram = LifetimeHistogram::default();
        histogram.counts[0] = u32::MAX;
        histogram.counts[3] = 1000;
        histogram.add(Nanos(1));
        let counts: Vec<_> = histogram.iter().collect();
        assert_eq!(counts, [(0, u64::from(u32::MAX / 2) + 1), (3, 500)]);
    }
}
