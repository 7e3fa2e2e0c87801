//! Memory over time, by device, kind and process: every change, or few enough points for a chart,
//! in constant memory.
//!
//! A sampled series keeps the first, lowest, highest and last point of equal time buckets, so that
//! peaks and troughs are exact.

use super::time_buckets::{Mark, TimeBuckets};
use super::{Delta, GroupKey, MemoryScope, RunningSum, Table};
use crate::model::{AllocationChange, DeviceId, MemoryKind, Nanos, Pid, Timestamp};

/// Minimum number of points: one bucket has four.
pub const MIN_POINTS: usize = 4;

/// Size from a given time on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UsagePoint {
    /// Time.
    pub at: Timestamp,
    /// Size.
    pub bytes: u64,
}

/// Memory over time for one device, kind and process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UsageSeries {
    /// Device, if known.
    pub device: Option<DeviceId>,
    /// Memory kind; `None` for all counted memory.
    pub kind: Option<MemoryKind>,
    /// Process; `None` for all processes.
    pub pid: Option<Pid>,
    /// Highest point.
    pub peak: UsagePoint,
    /// Points in order of time; each is valid until the next.
    pub points: Vec<UsagePoint>,
}

/// Memory over time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UsageReport {
    /// Counted memory by device; the unknown device last.
    pub totals: Vec<UsageSeries>,
    /// Each kind of each process, ordered by device, process and kind.
    pub series: Vec<UsageSeries>,
}

/// Computes memory over time.
#[derive(Clone, Debug, Default)]
pub struct UsageAnalysis {
    scope: MemoryScope,
    /// Buckets per series; `None` to keep every change.
    buckets: Option<u64>,
    /// Time of the first change.
    origin: Option<Timestamp>,
    series: Table<(u64, u64), SeriesTrack>,
    totals: Table<Option<DeviceId>, SeriesTrack>,
}

#[derive(Clone, Debug)]
struct SeriesTrack {
    device: Option<DeviceId>,
    kind: Option<MemoryKind>,
    pid: Option<Pid>,
    now: RunningSum,
    changes: u64,
    peak: UsagePoint,
    sampling: Sampling,
}

#[derive(Clone, Debug)]
enum Sampling {
    Every(Vec<UsagePoint>),
    Buckets(TimeBuckets),
}

impl UsageAnalysis {
    /// Creates an analysis that keeps every change, or at most `points` points per series, but at
    /// least [`MIN_POINTS`].
    pub fn new(scope: MemoryScope, points: Option<usize>) -> Self {
        let buckets = points.map(|points| (points.max(MIN_POINTS) / MIN_POINTS) as u64);
        Self { scope, buckets, ..Self::default() }
    }

    /// Adds a change.
    pub fn observe(&mut self, change: &AllocationChange) {
        let since = change.at - *self.origin.get_or_insert(change.at);
        for delta in Delta::of(change) {
            let key = GroupKey { site: None, ..delta.key };
            let new = || SeriesTrack::new(key.device, Some(key.kind), Some(key.pid), self.buckets);
            self.series.get(key.packed(), new).step(change.at, since, &delta);
            if self.scope.counts(key.kind) {
                let new = || SeriesTrack::new(key.device, None, None, self.buckets);
                self.totals.get(key.device, new).step(change.at, since, &delta);
            }
        }
    }

    /// Returns the series.
    pub fn finish(self) -> UsageReport {
        let all = |tracks: Vec<SeriesTrack>| {
            let known = tracks.into_iter().filter(|track| track.changes > 0);
            let mut series: Vec<_> = known.map(SeriesTrack::series).collect();
            series.sort_by_key(|one: &UsageSeries| {
                (one.device.is_none(), one.device, one.pid, one.kind)
            });
            series
        };
        UsageReport { totals: all(self.totals.rows), series: all(self.series.rows) }
    }
}

impl SeriesTrack {
    fn new(
        device: Option<DeviceId>,
        kind: Option<MemoryKind>,
        pid: Option<Pid>,
        buckets: Option<u64>,
    ) -> Self {
        let sampling = match buckets {
            None => Sampling::Every(Vec::new()),
            Some(max) => Sampling::Buckets(TimeBuckets::new(max)),
        };
        let peak = UsagePoint { at: Timestamp(0), bytes: 0 };
        Self { device, kind, pid, now: RunningSum::default(), changes: 0, peak, sampling }
    }

    fn step(&mut self, at: Timestamp, since: Nanos, delta: &Delta) {
        if !delta.changes_size() {
            return;
        }
        delta.apply(&mut self.now);
        self.changes += 1;
        let point = UsagePoint { at, bytes: self.now.value() };
        if point.bytes > self.peak.bytes {
            self.peak = point;
        }
        match &mut self.sampling {
            Sampling::Every(points) => points.push(point),
            Sampling::Buckets(buckets) => {
                buckets.push(since, Mark { number: self.changes, at, sum: self.now });
            }
        }
    }

    fn series(self) -> UsageSeries {
        let points = match self.sampling {
            Sampling::Every(points) => points,
            Sampling::Buckets(buckets) => points(&buckets),
        };
        let Self { device, kind, pid, peak, .. } = self;
        UsageSeries { device, kind, pid, peak, points }
    }
}

/// Points of all buckets.
fn points(buckets: &TimeBuckets) -> Vec<UsagePoint> {
    let mut points = Vec::new();
    for bucket in buckets.list() {
        let mut own = [bucket.first, bucket.low, bucket.high, bucket.last];
        own.sort_by_key(|mark| mark.number);
        let mut last = None;
        for Mark { number, at, sum } in own {
            if last.replace(number) != Some(number) {
                points.push(UsagePoint { at, bytes: sum.value() });
            }
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampled(max: u64, levels: impl Iterator<Item = (u64, u64)>) -> (TimeBuckets, Vec<u64>) {
        let mut buckets = TimeBuckets::new(max);
        for ((since, bytes), number) in levels.zip(1..) {
            let mut sum = RunningSum::default();
            sum.add(bytes);
            buckets.push(Nanos(since), Mark { number, at: Timestamp(since), sum });
        }
        let points = points(&buckets);
        assert!(points.is_sorted_by_key(|point| point.at));
        (buckets, points.iter().map(|point| point.bytes).collect())
    }

    #[test]
    fn buckets_keep_extremes() {
        let levels = [(0, 5), (1, 9), (2, 1), (1000, 7), (u64::MAX, 3), (u64::MAX, 4)];
        let (buckets, bytes) = sampled(2, levels.into_iter());
        assert_eq!(bytes, [5, 9, 1, 7, 3, 4]);
        assert!(buckets.list().len() <= 2);
    }

    #[test]
    fn sampled_series_respects_the_point_limit() {
        let levels = (0..100_000_u64).map(|since| (since * 7, since * 7919 % 1009));
        let (_, bytes) = sampled(10, levels);
        assert!(bytes.len() <= 40 && bytes.len() > 20, "{}", bytes.len());
        assert_eq!((bytes.iter().min(), bytes.iter().max()), (Some(&0), Some(&1008)));
    }
}
