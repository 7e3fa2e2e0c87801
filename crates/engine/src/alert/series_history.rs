//! Past samples of series, for rules on increase and growth.

use std::collections::{HashMap, VecDeque};

use crate::metrics::{Cardinality, Metric};
use crate::model::{Nanos, Timestamp};

/// Resolution of the window: the start of the window is exact to 1/32 of its length.
const SAMPLES_PER_WINDOW: u64 = 32;

/// Limit of tracked series. Beyond it, increase and growth rules ignore new series.
const MAX_SERIES: usize = 4096;

/// Index of the rule, and the labels that identify the alert.
pub(super) type SeriesKey = (usize, Vec<Box<str>>);

/// Past samples of all series that increase and growth rules need.
#[derive(Default)]
pub(super) struct SeriesHistory {
    tracks: HashMap<SeriesKey, SeriesSamples>,
}

struct SeriesSamples {
    points: VecDeque<(Timestamp, f64)>,
    /// Last raw value.
    last: f64,
    /// For counters: everything added so far, across resets to zero.
    sum: f64,
    within: Nanos,
    seen: Timestamp,
}

impl SeriesHistory {
    /// Returns the increase of a counter within the window. The agent counts from zero, so a new
    /// series counts from zero as well. Processes and containers are different: they move between
    /// their own series and `other`, so they count from their first value.
    pub(super) fn increase(
        &mut self,
        series: SeriesKey,
        metric: &Metric,
        value: f64,
        within: Nanos,
        now: Timestamp,
    ) -> Option<f64> {
        let is_transient = !matches!(metric.bound, Cardinality::Fixed(_) | Cardinality::Gpus);
        let start = if is_transient { value } else { 0.0 };
        let track = self.track(series, start, within, now)?;
        // A smaller value means that the counter was reset.
        track.sum += if value < track.last { value } else { value - track.last };
        track.last = value;
        let before = track.before(now).or(track.points.front()).map_or(0.0, |(_, sum)| *sum);
        track.push(now, track.sum);
        Some(track.sum - before)
    }

    /// Returns the growth of a gauge within the window, or `None` while the series is younger than
    /// that.
    pub(super) fn growth(
        &mut self,
        series: SeriesKey,
        value: f64,
        within: Nanos,
        now: Timestamp,
    ) -> Option<f64> {
        let track = self.track(series, value, within, now)?;
        let before = track.before(now).map(|(_, before)| *before);
        track.push(now, value);
        before.map(|before| value - before)
    }

    fn track(
        &mut self,
        series: SeriesKey,
        start: f64,
        within: Nanos,
        now: Timestamp,
    ) -> Option<&mut SeriesSamples> {
        if self.tracks.len() >= MAX_SERIES && !self.tracks.contains_key(&series) {
            return None;
        }
        let track = self.tracks.entry(series).or_insert_with(|| SeriesSamples {
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
    pub(super) fn drop_stale(&mut self, now: Timestamp) {
        self.tracks.retain(|_, track| now - track.seen <= track.within);
    }
}

impl SeriesSamples {
    /// Newest point that is at least as old as the window is long.
    fn before(&self, now: Timestamp) -> Option<&(Timestamp, f64)> {
        self.points.iter().rev().find(|(at, _)| now - *at >= self.within)
    }

    fn push(&mut self, now: Timestamp, value: f64) {
        let step = Nanos(self.within.0 / SAMPLES_PER_WINDOW);
        if self.points.back().is_none_or(|(at, _)| now - *at >= step && now > *at) {
            self.points.push_back((now, value));
        }
        // The second point is old enough to serve as the start, so the first can go.
        while self.points.get(1).is_some_and(|(at, _)| now - *at >= self.within) {
            self.points.pop_front();
        }
    }
}
