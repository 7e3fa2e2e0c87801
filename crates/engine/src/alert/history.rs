//! What series were a while ago, for rules that ask how much something grew.

use std::collections::{HashMap, VecDeque};

use crate::metrics::{Bound, Metric};
use crate::units::{Moment, Nanos};

/// Points of a series in its time: how exact the beginning of that time is.
const POINTS: u64 = 32;

/// Series that are remembered; beyond, rules of growth do not see a new one.
const MOST: usize = 4096;

/// A rule and the labels that tell its alerts apart.
pub(super) type Series = (usize, Vec<Box<str>>);

/// See the module.
#[derive(Default)]
pub(super) struct History {
    tracks: HashMap<Series, Track>,
}

struct Track {
    points: VecDeque<(Moment, f64)>,
    /// The last value, as it came.
    last: f64,
    /// Of counters: all that was added, whatever fell back to zero meanwhile.
    sum: f64,
    within: Nanos,
    seen: Moment,
}

impl History {
    /// By how much a counter grew within the time. The agent counts from zero, so a series that
    /// appears counts whole; only processes and containers come and go between their own series and
    /// `other`, and count from where they are first seen.
    pub(super) fn increase(
        &mut self,
        series: Series,
        metric: &Metric,
        value: f64,
        within: Nanos,
        now: Moment,
    ) -> Option<f64> {
        let comes_and_goes = !matches!(metric.bound, Bound::Fixed(_) | Bound::Gpus);
        let start = if comes_and_goes { value } else { 0.0 };
        let track = self.track(series, start, within, now)?;
        // Less than before: it began anew.
        track.sum += if value < track.last { value } else { value - track.last };
        track.last = value;
        let before = track.before(now).or(track.points.front()).map_or(0.0, |(_, sum)| *sum);
        track.keep(now, track.sum);
        Some(track.sum - before)
    }

    /// By how much a gauge grew; nothing while the series is younger than the time.
    pub(super) fn growth(
        &mut self,
        series: Series,
        value: f64,
        within: Nanos,
        now: Moment,
    ) -> Option<f64> {
        let track = self.track(series, value, within, now)?;
        let before = track.before(now).map(|(_, before)| *before);
        track.keep(now, value);
        before.map(|before| value - before)
    }

    fn track(
        &mut self,
        series: Series,
        start: f64,
        within: Nanos,
        now: Moment,
    ) -> Option<&mut Track> {
        if self.tracks.len() >= MOST && !self.tracks.contains_key(&series) {
            return None;
        }
        let track = self.tracks.entry(series).or_insert_with(|| Track {
            points: VecDeque::from([(now, start)]),
            last: start,
            sum: start,
            within,
            seen: now,
        });
        track.seen = now;
        Some(track)
    }

    /// Forgets what was not seen for as long as it would be asked for.
    pub(super) fn forget(&mut self, now: Moment) {
        self.tracks.retain(|_, track| now - track.seen <= track.within);
    }
}

impl Track {
    /// The newest point that is as old as the time is long.
    fn before(&self, now: Moment) -> Option<&(Moment, f64)> {
        self.points.iter().rev().find(|(at, _)| now - *at >= self.within)
    }

    fn keep(&mut self, now: Moment, value: f64) {
        let step = Nanos(self.within.0 / POINTS);
        if self.points.back().is_none_or(|(at, _)| now - *at >= step && now > *at) {
            self.points.push_back((now, value));
        }
        // The second is old enough to answer, so the first is not needed.
        while self.points.get(1).is_some_and(|(at, _)| now - *at >= self.within) {
            self.points.pop_front();
        }
    }
}
