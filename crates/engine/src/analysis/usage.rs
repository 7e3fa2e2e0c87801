//! Memory over time, by device, kind and process: every change, or few enough points for a chart,
//! in constant memory.
//!
//! A sampled series keeps the first, lowest, highest and last point of equal time buckets, so that
//! peaks and troughs are exact. When a file is longer than the buckets cover, neighboring buckets
//! are merged.

use hashbrown::HashMap;

use super::{GroupKey, MemoryScope, RunningSum};
use crate::model::change::{AllocationChange, ChangeKind};
use crate::model::ids::{DeviceId, Pid};
use crate::model::memory_kind::MemoryKind;
use crate::model::units::Timestamp;

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

/// Effect of a change on the total of one group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UsageDelta {
    /// The group, without its site.
    pub key: GroupKey,
    /// Bytes to subtract.
    pub less: u64,
    /// Bytes to add.
    pub more: u64,
}

/// Effects of a change: none, one, or two if an update moves memory to another device.
#[must_use]
pub fn steps(change: &AllocationChange) -> [Option<UsageDelta>; 2] {
    let key = GroupKey { site: None, ..GroupKey::of(change) };
    let step = |key, less, more| (less != more).then_some(UsageDelta { key, less, more });
    let bytes = change.bytes;
    match change.action {
        ChangeKind::Allocated => [step(key, 0, bytes), None],
        ChangeKind::Ended { .. } => [step(key, bytes, 0), None],
        ChangeKind::Updated { before, .. } if before.device == change.device => {
            [step(key, before.bytes, bytes), None]
        }
        ChangeKind::Updated { before, .. } => {
            [step(key.on(before.device), before.bytes, 0), step(key, 0, bytes)]
        }
    }
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
    tracks: Vec<SeriesTrack>,
    index: HashMap<(u64, u64), u32>,
    last: Option<((u64, u64), u32)>,
    totals: Vec<SeriesTrack>,
}

#[derive(Clone, Debug)]
struct SeriesTrack {
    device: Option<DeviceId>,
    kind: Option<MemoryKind>,
    pid: Option<Pid>,
    now: RunningSum,
    peak: UsagePoint,
    sampling: Sampling,
}

#[derive(Clone, Debug)]
enum Sampling {
    Every(Vec<UsagePoint>),
    Buckets(TimeBuckets),
}

/// Time buckets, each 2^`shift` ns long.
#[derive(Clone, Debug)]
struct TimeBuckets {
    max: u64,
    shift: u32,
    changes: u64,
    list: Vec<TimeBucket>,
}

/// A point with its sequence number, which orders points of the same time.
type OrderedPoint = (u64, UsagePoint);

#[derive(Clone, Copy, Debug)]
struct TimeBucket {
    number: u64,
    first: OrderedPoint,
    low: OrderedPoint,
    high: OrderedPoint,
    last: OrderedPoint,
}

impl UsageAnalysis {
    /// Creates an analysis that keeps every change, or at most `points` points per series, but at
    /// least [`MIN_POINTS`].
    #[must_use]
    pub fn new(scope: MemoryScope, points: Option<usize>) -> Self {
        let buckets = points.map(|points| (points.max(MIN_POINTS) / MIN_POINTS) as u64);
        Self { scope, buckets, ..Self::default() }
    }

    /// Adds a change.
    pub fn observe(&mut self, change: &AllocationChange) {
        self.origin.get_or_insert(change.at);
        for UsageDelta { key, less, more } in steps(change).into_iter().flatten() {
            self.step(change.at, key, less, more);
        }
    }

    fn step(&mut self, at: Timestamp, key: GroupKey, less: u64, more: u64) {
        let since = at - self.origin.unwrap_or(at);
        let packed = key.packed();
        let index = match self.last {
            Some((last, index)) if last == packed => index,
            _ => self.find(packed, key),
        };
        if let Some(track) = self.tracks.get_mut(index as usize) {
            track.step(at, since.0, less, more);
        }
        if self.scope.counts(key.kind) {
            let known = self.totals.iter_mut().find(|track| track.device == key.device);
            let track = match known {
                Some(track) => track,
                None => {
                    self.totals.push(SeriesTrack::new(key.device, None, None, self.buckets));
                    let Some(track) = self.totals.last_mut() else { return };
                    track
                }
            };
            track.step(at, since.0, less, more);
        }
    }

    fn find(&mut self, packed: (u64, u64), key: GroupKey) -> u32 {
        let Self { index, tracks, buckets, .. } = self;
        let found = *index.entry(packed).or_insert_with(|| {
            tracks.push(SeriesTrack::new(key.device, Some(key.kind), Some(key.pid), *buckets));
            (tracks.len() - 1) as u32
        });
        self.last = Some((packed, found));
        found
    }

    /// Returns the series.
    #[must_use]
    pub fn finish(self) -> UsageReport {
        let all = |tracks: Vec<SeriesTrack>| {
            let mut series: Vec<_> = tracks.into_iter().map(SeriesTrack::series).collect();
            series.sort_by_key(|one: &UsageSeries| {
                (one.device.is_none(), one.device, one.pid, one.kind)
            });
            series
        };
        UsageReport { totals: all(self.totals), series: all(self.tracks) }
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
            Some(max) => {
                Sampling::Buckets(TimeBuckets { max, shift: 0, changes: 0, list: Vec::new() })
            }
        };
        let peak = UsagePoint { at: Timestamp(0), bytes: 0 };
        Self { device, kind, pid, now: RunningSum::default(), peak, sampling }
    }

    fn step(&mut self, at: Timestamp, since: u64, less: u64, more: u64) {
        self.now.subtract(less);
        self.now.add(more);
        let point = UsagePoint { at, bytes: self.now.value() };
        if point.bytes > self.peak.bytes {
            self.peak = point;
        }
        match &mut self.sampling {
            Sampling::Every(points) => points.push(point),
            Sampling::Buckets(buckets) => buckets.push(since, point),
        }
    }

    fn series(self) -> UsageSeries {
        let points = match self.sampling {
            Sampling::Every(points) => points,
            Sampling::Buckets(buckets) => buckets.points(),
        };
        let Self { device, kind, pid, peak, .. } = self;
        UsageSeries { device, kind, pid, peak, points }
    }
}

impl TimeBuckets {
    fn push(&mut self, since: u64, point: UsagePoint) {
        self.changes += 1;
        let mut number = since.checked_shr(self.shift).unwrap_or(0);
        while number >= self.max {
            self.shift += 1;
            number >>= 1;
            self.join();
        }
        let new = (self.changes, point);
        match self.list.last_mut() {
            Some(bucket) if bucket.number >= number => bucket.push(new),
            _ => self.list.push(TimeBucket { number, first: new, low: new, high: new, last: new }),
        }
    }

    /// Merges pairs of neighboring buckets.
    fn join(&mut self) {
        for bucket in &mut self.list {
            bucket.number >>= 1;
        }
        self.list.dedup_by(|later, earlier| {
            let same = later.number == earlier.number;
            if same {
                for point in [later.first, later.low, later.high, later.last] {
                    earlier.push(point);
                }
            }
            same
        });
    }

    fn points(&self) -> Vec<UsagePoint> {
        let mut points = Vec::new();
        for bucket in &self.list {
            let mut own = [bucket.first, bucket.low, bucket.high, bucket.last];
            own.sort_by_key(|(number, _)| *number);
            let mut last = None;
            for (number, point) in own {
                if last != Some(number) {
                    points.push(point);
                }
                last = Some(number);
            }
        }
        points
    }
}

impl TimeBucket {
    fn push(&mut self, point: OrderedPoint) {
        if point.1.bytes < self.low.1.bytes {
            self.low = point;
        }
        if point.1.bytes > self.high.1.bytes {
            self.high = point;
        }
        if point.0 > self.last.0 {
            self.last = point;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_keep_extremes() {
        let mut buckets = TimeBuckets { max: 2, shift: 0, changes: 0, list: Vec::new() };
        for (since, bytes) in [(0, 5), (1, 9), (2, 1), (1000, 7), (u64::MAX, 3), (u64::MAX, 4)] {
            buckets.push(since, UsagePoint { at: Timestamp(since), bytes });
        }
        let bytes: Vec<_> = buckets.points().iter().map(|point| point.bytes).collect();
        assert_eq!(bytes, [5, 9, 1, 7, 3, 4]);
        assert!(buckets.list.len() <= 2 && buckets.shift == 63);
    }

    #[test]
    fn sampled_series_respects_the_point_limit() {
        let mut buckets = TimeBuckets { max: 10, shift: 0, changes: 0, list: Vec::new() };
        for since in 0..100_000_u64 {
            buckets
                .push(since * 7, UsagePoint { at: Timestamp(since), bytes: since * 7919 % 1009 });
        }
        let points = buckets.points();
        assert!(points.len() <= 40 && points.len() > 20, "{}", points.len());
        assert!(points.is_sorted_by_key(|point| point.at));
        let all = || points.iter().map(|point| point.bytes);
        assert_eq!((all().min(), all().max()), (Some(0), Some(1008)));
    }
}
