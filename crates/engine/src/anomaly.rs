//! Anomaly detection: allocations much larger than others of the same site or process, and growth
//! in a short time that is much faster than usual. `docs/guide/leak-verdicts.md` explains the
//! rules.
//!
//! Repeated anomalies become the new baseline: the next one is reported only if it is more than
//! twice as large as the largest so far.
#![allow(clippy::cast_possible_truncation, reason = "fewer buckets than 2^32")]

use crate::model::{Bytes, Nanos, Timestamp};

/// Sizes are counted in buckets of half powers of two, starting at 64 KiB; smaller sizes share one
/// bucket.
const MIN_SIZE_LOG2: u32 = 16;
const BUCKETS: usize = 64;

/// Factor over the baseline from which on a size is an anomaly, for a site and for a process.
const SITE_FACTOR: u64 = 8;
const PROCESS_FACTOR: u64 = 16;

/// Smallest size that is reported, for a site and for a process.
const MIN_SITE_BYTES: u64 = MIN_ANOMALY_BYTES;
const MIN_PROCESS_BYTES: u64 = 64 << 20;

/// Smaller allocations are never anomalies.
pub(crate) const MIN_ANOMALY_BYTES: u64 = 1 << 20;

/// Allocations needed for a baseline, of a site and of a process.
const MIN_SITE_SAMPLES: u64 = 32;
const MIN_PROCESS_SAMPLES: u64 = 16;

/// Binary logarithm of the length of a growth interval in nanoseconds: about one second.
const GROWTH_WINDOW_LOG2_NS: u32 = 30;

/// Intervals needed for a baseline, smallest growth that is reported, and lower limit of the
/// baseline.
const MIN_GROWTH_SAMPLES: u64 = 32;
const MIN_GROWTH_BYTES: u64 = 256 << 20;
const MIN_BASELINE_BYTES: u64 = 32 << 20;

/// Histogram of sizes, with quantiles.
#[derive(Clone, Debug)]
struct Histogram {
    counts: [u32; BUCKETS],
    all: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], all: 0 }
    }
}

const fn bucket(bytes: u64) -> usize {
    let power = (bytes | 1).ilog2();
    if power < MIN_SIZE_LOG2 {
        return 0;
    }
    let half = (bytes >> (power - 1) & 1) as usize;
    let index = 1 + (power - MIN_SIZE_LOG2) as usize * 2 + half;
    if index < BUCKETS { index } else { BUCKETS - 1 }
}

/// Largest size of a bucket.
const fn top(bucket: usize) -> u64 {
    if bucket == 0 {
        return (1 << MIN_SIZE_LOG2) - 1;
    }
    let power = MIN_SIZE_LOG2 + (bucket as u32 - 1) / 2;
    let half = 1_u64 << (power - 1);
    let from = (1 << power) + if bucket.is_multiple_of(2) { half } else { 0 };
    from + (half - 1)
}

impl Histogram {
    fn add(&mut self, bytes: u64) {
        if let Some(count) = self.counts.get_mut(bucket(bytes)) {
            *count = count.saturating_add(1);
            self.all = self.all.saturating_add(1);
        }
    }

    /// Upper bound of a quantile, to within a half power of two.
    fn at(&self, part: u64, of: u64) -> u64 {
        let wanted = self.all.saturating_mul(part).div_ceil(of);
        let mut below = 0;
        let found = self.counts.iter().position(|count| {
            below += u64::from(*count);
            below >= wanted
        });
        found.map_or(u64::MAX, top)
    }
}

/// What a size is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Baseline {
    /// 90th percentile of earlier sizes for a process, or the largest size of a site.
    pub bytes: Bytes,
    /// Number of earlier allocations.
    pub of: u64,
    /// Whether this is the baseline of the site; otherwise that of the process.
    pub of_site: bool,
}

/// Earlier allocations of a site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SiteBaseline {
    /// Number of allocations.
    pub count: u64,
    /// Largest size.
    pub largest: u64,
}

/// Detects anomalous sizes in one process.
#[derive(Clone, Debug, Default)]
pub struct SizeAnomalyDetector {
    histogram: Histogram,
    reported: u64,
}

impl SizeAnomalyDetector {
    /// Adds an allocation; returns the baseline if the size is far above it.
    pub fn add(&mut self, bytes: u64, site: Option<SiteBaseline>) -> Option<Baseline> {
        let baseline = if bytes < MIN_SITE_BYTES { None } else { self.compare(bytes, site) };
        self.histogram.add(bytes);
        baseline
    }

    fn compare(&mut self, bytes: u64, site: Option<SiteBaseline>) -> Option<Baseline> {
        let baseline = match site.filter(|site| site.count >= MIN_SITE_SAMPLES) {
            Some(site) => {
                let is_anomaly = bytes / SITE_FACTOR > site.largest;
                let baseline =
                    Baseline { bytes: Bytes(site.largest), of: site.count, of_site: true };
                is_anomaly.then_some(baseline)?
            }
            None => {
                let all = self.histogram.all;
                let is_anomaly = bytes >= MIN_PROCESS_BYTES
                    && all >= MIN_PROCESS_SAMPLES
                    && bytes / PROCESS_FACTOR > self.histogram.at(99, 100);
                let baseline = Bytes(self.histogram.at(9, 10));
                is_anomaly.then_some(Baseline { bytes: baseline, of: all, of_site: false })?
            }
        };
        let more = bytes / 2 > self.reported;
        self.reported = self.reported.max(bytes);
        more.then_some(baseline)
    }
}

/// Detects anomalous growth of one process in intervals of about one second.
#[derive(Clone, Debug, Default)]
pub struct GrowthAnomalyDetector {
    histogram: Histogram,
    reported: u64,
    /// Number of the current interval, and the live bytes at its start.
    current: Option<(u64, u64)>,
    /// Largest anomalous allocation in it: growth that it explains is not reported again.
    explained: u64,
}

/// Growth far above the baseline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrowthAnomaly {
    /// End of the interval.
    pub at: Timestamp,
    /// Growth in bytes.
    pub bytes: Bytes,
    /// Length of the interval.
    pub within: Nanos,
    /// 90th percentile of the growth in earlier intervals.
    pub baseline: Bytes,
}

impl GrowthAnomalyDetector {
    /// Called before an allocation is counted, with the live bytes. Returns an anomaly if the
    /// interval that just ended grew too fast.
    #[inline]
    pub fn observe(&mut self, at: Timestamp, live: u64) -> Option<GrowthAnomaly> {
        match self.current {
            Some((number, _)) if at.0 >> GROWTH_WINDOW_LOG2_NS <= number => None,
            _ => self.close(at, live),
        }
    }

    /// Records that an anomalous allocation was reported on its own.
    pub fn mark_explained(&mut self, bytes: u64) {
        self.explained = self.explained.max(bytes);
    }

    #[cold]
    fn close(&mut self, at: Timestamp, live: u64) -> Option<GrowthAnomaly> {
        let (number, before) = self.current.replace((at.0 >> GROWTH_WINDOW_LOG2_NS, live))?;
        let explained = std::mem::take(&mut self.explained);
        let grown = live.saturating_sub(before);
        let baseline = self.histogram.at(99, 100).max(MIN_BASELINE_BYTES);
        let is_anomaly = self.histogram.all >= MIN_GROWTH_SAMPLES
            && grown >= MIN_GROWTH_BYTES
            && grown / SITE_FACTOR > baseline
            && explained < grown / 2
            && grown / 2 > self.reported;
        let p90 = Bytes(self.histogram.at(9, 10));
        self.histogram.add(grown);
        is_anomaly.then(|| {
            self.reported = grown;
            let at = Timestamp((number + 1) << GROWTH_WINDOW_LOG2_NS);
            GrowthAnomaly {
                at,
                bytes: Bytes(grown),
                within: Nanos(1 << GROWTH_WINDOW_LOG2_NS),
                baseline: p90,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn bucket_contains_sizes_up_to_its_top() {
        for bytes in [0, 1, 65_535, 65_536, 98_303, 98_304, 131_071, 131_072, MIB, 3 * MIB] {
            let bucket = bucket(bytes);
            assert!(bytes <= top(bucket), "{bytes}");
            assert!(bucket == 0 || bytes > top(bucket - 1), "{bytes}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn single_large_allocation_is_an_anomaly() {
        let mut sizes = SizeAnomalyDetector::default();
        assert!((0..20).all(|_| sizes.add(10 * MIB, None).is_none()));
        let baseline = sizes.add(2096 * MIB, None).unwrap();
        assert_eq!((baseline.of, baseline.of_site), (20, false));
        assert!((10 * MIB..16 * MIB).contains(&baseline.bytes.0), "{}", baseline.bytes);
        // Further allocations of that size are not reported.
        assert!((0..20).all(|_| sizes.add(2096 * MIB, None).is_none()));
    }

    #[test]
    fn site_has_its_own_baseline() {
        let mut sizes = SizeAnomalyDetector::default();
        let site = |count, largest| Some(SiteBaseline { count, largest });
        assert_eq!(sizes.add(20 * MIB, site(31, MIB)), None);
        assert_eq!(sizes.add(8 * MIB, site(32, MIB)), None);
        let baseline = sizes.add(90 * MIB, site(32, 2 * MIB)).unwrap();
        assert_eq!(baseline, Baseline { bytes: Bytes(2 * MIB), of: 32, of_site: true });
        assert_eq!(sizes.add(100 * MIB, site(32, 2 * MIB)), None);
    }

    #[test]
    fn varied_sizes_become_the_baseline() {
        let mut sizes = SizeAnomalyDetector::default();
        let reported = (0..2000_u64).filter(|step| {
            let power = step * 7919 % 20;
            sizes.add(1024 << power, None).is_some()
        });
        assert!(reported.count() <= 1);
    }

    #[test]
    fn jump_after_steady_time_is_reported_once() {
        let mut growths = GrowthAnomalyDetector::default();
        let second = |number: u64| Timestamp(number << GROWTH_WINDOW_LOG2_NS);
        assert!((0..40).all(|n| growths.observe(second(n), n * MIB).is_none()));
        let jump = 1024 * MIB;
        assert_eq!(
            growths.observe(second(40), 40 * MIB + jump).map(|grown| grown.bytes.0 >> 20),
            Some(1025)
        );
        assert_eq!(growths.observe(second(41), 2 * jump), None);
        growths.mark_explained(4 * jump);
        assert_eq!(growths.observe(second(42), 8 * jump), None);
    }

    #[test]
    fn startup_growth_is_not_an_anomaly() {
        let mut growths = GrowthAnomalyDetector::default();
        assert!((0..20).all(|n| {
            growths.observe(Timestamp(n << GROWTH_WINDOW_LOG2_NS), n * 1024 * MIB).is_none()
        }));
    }
}
