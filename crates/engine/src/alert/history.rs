//! Past samples of series, for rules on increase and growth.

use std::collections::{HashMap, VecDeque};

use crate::metrics::{Bound, Metric};
use crate::units::{Moment, Nanos};

/// Resolution of the window: the start of the window is exact to 1/32 of its length.
const POINTS: u64 = 32;

/// Limit of tracked series. Beyond it, increase and growth rules ignore new series.
const MOST: usize = 4096;

/// Index of the rule, and the labels that identify the alert.
pub(super) type Series = (usize, Vec<Box<str>>);

/// Past samples of all series that increase and growth rules need.
#[derive(Default)]
pub(super) struct History {
    tracks: HashMap<Series, Track>,
}

struct Track {
    points: VecDeque<(Moment, f64)>,
    /// Last raw value.
    last: f64,
    /// For counters: everything added so far, across resets to zero.
    sum: f64,
    within: Nanos,
    seen: Moment,
}

impl History {
    /// Returns the increase of a counter within the window. The agent counts from zero, so a new
    /// series counts from zero as well. Processes and containers are different: they move between
    /// their own series and `other`, so they count from their first value.
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
        // A smaller value means that the counter was reset.
        track.sum += if value < track.last { value } else { value - track.last };
        track.last = value;
        let before = track.before(now).or(track.points.front()).map_or(0.0, |(_, sum)| *sum);
        track.keep(now, track.sum);
        Some(track.sum - before)
    }

    /// Returns the growth of a gauge within the window, or `None` while the series is younger than
    /// that.
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

    /// Drops series without a sample for longer than their window.
    pub(super) fn drop_stale(&mut self, now: Moment) {
        self.tracks.retain(|_, track| now - track.seen <= track.within);
    }
}

impl Track {
    /// Newest point that is at least as old as the window is long.
    fn before(&self, now: Moment) -> Option<&(Moment, f64)> {
        self.points.iter().rev().find(|(at, _)| now - *at >= self.within)
    }

    fn keep(&mut self, now: Moment, value: f64) {
        let step = Nanos(self.within.0 / POINTS);
        if self.points.back().is_none_or(|(at, _)| now - *at >= step && now > *at) {
            self.points.push_back((now, value));
        }
        // The second point is old enough to serve as the start, so the first can go.
        while self.points.get(1).is_some_and(|(at, _)| now - *at >= self.within) {
            self.points.pop_front();
        }
    }
}
