//! Places whose memory grows over the whole file and never stands still: leak suspects, with the
//! evidence. Careful rather than clever: a place is only a suspect when it grows window by window,
//! late as well as early; and too little data is no answer.
//!
//! The file is cut into equal windows of time. What counts in each is the *least* that was live: a
//! program that allocates and frees in steps shows its troughs, whatever its peaks are.

use std::cmp::Reverse;

use hashbrown::HashMap;

use super::{Amount, Measure, Place, Running};
use crate::change::{Change, How, Turn};
use crate::units::{Moment, Nanos};

/// Windows that are kept; a longer file makes them longer.
const WINDOWS: usize = 16;

/// Windows that a judgement needs.
const ENOUGH_WINDOWS: usize = 6;

/// Allocations that a judgement of a place needs.
const ENOUGH_ALLOCATIONS: u64 = 8;

/// A place that grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suspect {
    /// The place.
    pub place: Place,
    /// What is live there, at the end of the file or of its process.
    pub live: Amount,
    /// The least that was live in the first window.
    pub first_bytes: u64,
    /// The least that was live in the last window.
    pub last_bytes: u64,
    /// Steps from window to window, and those of them in which it grew. It never shrank.
    pub steps: usize,
    /// See `steps`.
    pub growing_steps: usize,
    /// How long the windows are together.
    pub span: Nanos,
    /// All that began there.
    pub allocations: u64,
    /// Those that the program freed.
    pub freed: u64,
    /// How old the live ones are, on average.
    pub mean_age: Nanos,
    /// How old the freed ones became, on average.
    pub mean_life: Option<Nanos>,
}

impl Suspect {
    /// How fast it grows.
    #[must_use]
    pub fn bytes_per_hour(&self) -> u64 {
        let grown = u128::from(self.last_bytes.saturating_sub(self.first_bytes));
        let hourly = grown * 3_600_000_000_000 / u128::from(self.span.0.max(1));
        u64::try_from(hourly).unwrap_or(u64::MAX)
    }
}

/// What can be said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The file is too short, or too little happens in it.
    NotEnoughData,
    /// These places grow without end, the fastest first; or none does.
    Judged(Vec<Suspect>),
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Suspects {
    measure: Measure,
    origin: Option<Moment>,
    end: Moment,
    /// Windows are 2^`shift` ns long.
    shift: u32,
    tracks: Vec<Track>,
    index: HashMap<(u64, u64), u32>,
    last: Option<((u64, u64), u32)>,
}

#[derive(Clone, Copy, Debug)]
struct Track {
    place: Place,
    live: Running,
    count: i64,
    allocations: u64,
    freed: u64,
    /// Moments at which the live ones began, added up; and how long the freed ones lived.
    began_sum: Running,
    life_sum: Running,
    /// When its process ended.
    until: Option<Moment>,
    /// How long its windows are; brought up to date when something changes.
    shift: u32,
    first: usize,
    current: usize,
    lows: [u64; WINDOWS],
}

impl Suspects {
    /// Nothing yet; the measure decides what is judged.
    #[must_use]
    pub fn new(measure: Measure) -> Self {
        Self { measure, ..Self::default() }
    }

    /// Takes note of a change.
    pub fn change(&mut self, change: &Change) {
        let origin = *self.origin.get_or_insert(change.at);
        self.end = self.end.max(change.at);
        if !self.measure.counts(change.kind) || change.kind.is_static() {
            return;
        }
        let since = (change.at - origin).0;
        while since.checked_shr(self.shift).unwrap_or(0) >= WINDOWS as u64 {
            self.shift += 1;
        }
        let window = since.checked_shr(self.shift).unwrap_or(0) as usize;
        let place = Place::of(change);
        let Change { at, bytes, .. } = *change;
        match change.what {
            Turn::Began => {
                let track = self.track(place, window);
                track.allocations += 1;
                track.begin(window, at, bytes);
            }
            Turn::Ended { how: How::Exited, .. } => {
                let track = self.track(place, window);
                track.until.get_or_insert(at);
            }
            Turn::Ended { began, how } => {
                let track = self.track(place, window);
                if matches!(how, How::Freed | How::Replaced) {
                    track.freed += 1;
                    track.life_sum.add((at - began).0);
                }
                track.end(window, began, bytes);
            }
            Turn::Learned { began, before } => {
                let old = self.track(place.on(before.device), window);
                old.allocations = old.allocations.saturating_sub(1);
                old.end(window, began, before.bytes);
                let new = self.track(place, window);
                new.allocations += 1;
                new.begin(window, began, bytes);
            }
        }
    }

    fn track(&mut self, place: Place, window: usize) -> &mut Track {
        let packed = place.packed();
        let found = match self.last {
            Some((last, found)) if last == packed => found,
            _ => {
                let Self { index, tracks, shift, .. } = self;
                let found = *index.entry(packed).or_insert_with(|| {
                    tracks.push(Track::new(place, *shift, window));
                    (tracks.len() - 1) as u32
                });
                self.last = Some((packed, found));
                found
            }
        };
        let track = &mut self.tracks[found as usize];
        track.widen(self.shift);
        track
    }

    /// The verdict.
    #[must_use]
    pub fn finish(self) -> Verdict {
        let Self { origin, end, shift, tracks, .. } = self;
        let origin = origin.unwrap_or(end);
        let window = |moment: Moment| {
            ((moment - origin).0.checked_shr(shift).unwrap_or(0) as usize).min(WINDOWS - 1)
        };
        let allocations: u64 = tracks.iter().map(|track| track.allocations).sum();
        if window(end) + 1 < ENOUGH_WINDOWS || allocations < ENOUGH_ALLOCATIONS {
            return Verdict::NotEnoughData;
        }
        let judge = |mut track: Track| {
            let until = track.until.unwrap_or(end);
            track.widen(shift);
            track.judge(window(until), shift, until)
        };
        let mut suspects: Vec<_> = tracks.into_iter().filter_map(judge).collect();
        suspects.sort_by_key(|suspect| (Reverse(suspect.bytes_per_hour()), suspect.place));
        Verdict::Judged(suspects)
    }
}

impl Track {
    fn new(place: Place, shift: u32, window: usize) -> Self {
        Self {
            place,
            live: Running::default(),
            count: 0,
            allocations: 0,
            freed: 0,
            began_sum: Running::default(),
            life_sum: Running::default(),
            until: None,
            shift,
            first: window,
            current: window,
            lows: [0; WINDOWS],
        }
    }

    /// Makes windows as long as those of the file.
    fn widen(&mut self, shift: u32) {
        while self.shift < shift {
            self.shift += 1;
            let old = self.lows;
            let inside = |window: usize| (self.first..=self.current).contains(&window);
            for (window, low) in self.lows.iter_mut().enumerate() {
                let pair = [window * 2, window * 2 + 1].into_iter().filter(|w| inside(*w));
                *low = pair.filter_map(|w| old.get(w).copied()).min().unwrap_or(0);
            }
            self.first /= 2;
            self.current /= 2;
        }
    }

    /// Goes on to a window: nothing changed in those between.
    fn enter(&mut self, window: usize) {
        let carried = self.live.shown();
        while self.current < window.min(WINDOWS - 1) {
            self.current += 1;
            self.lows[self.current] = carried;
        }
    }

    fn begin(&mut self, window: usize, began: Moment, bytes: u64) {
        self.enter(window);
        self.live.add(bytes);
        self.count += 1;
        self.began_sum.add(began.0);
    }

    fn end(&mut self, window: usize, began: Moment, bytes: u64) {
        self.enter(window);
        self.live.take(bytes);
        self.count -= 1;
        self.began_sum.take(began.0);
        let low = &mut self.lows[self.current];
        *low = self.live.shown().min(*low);
    }

    fn judge(mut self, last: usize, shift: u32, until: Moment) -> Option<Suspect> {
        self.enter(last);
        // The window in which it began says nothing: it began with nothing.
        let lows = self.lows.get(self.first + 1..=last)?;
        let steps = lows.len().checked_sub(1)?;
        if steps + 1 < ENOUGH_WINDOWS || self.allocations < ENOUGH_ALLOCATIONS {
            return None;
        }
        let step = |pair: &[u64]| pair[1].cmp(&pair[0]);
        let never_shrank = lows.windows(2).all(|pair| step(pair).is_ge());
        let growing = |part: &[u64]| part.windows(2).filter(|pair| step(pair).is_gt()).count();
        let growing_steps = growing(lows);
        let (&first_bytes, &last_bytes) = (lows.first()?, lows.last()?);
        let middle = *lows.get(lows.len() / 2)?;
        let grown = last_bytes.saturating_sub(first_bytes);
        let late = last_bytes.saturating_sub(middle);
        let lately = growing(lows.get(lows.len() - 3..)?) > 0;
        // A quarter of the growth in the second half: slower than at first is still no plateau.
        if !never_shrank || growing_steps * 4 < steps * 3 || !lately || late < grown / 4 {
            return None;
        }
        let allocations = u64::try_from(self.count).unwrap_or(0);
        let mean_began = self.began_sum.mean(allocations);
        let mean_life = (self.freed > 0).then(|| Nanos(self.life_sum.mean(self.freed)));
        Some(Suspect {
            place: self.place,
            live: Amount { bytes: self.live.shown(), allocations },
            first_bytes,
            last_bytes,
            steps,
            growing_steps,
            span: Nanos((steps as u64).checked_shl(shift).unwrap_or(u64::MAX)),
            allocations: self.allocations,
            freed: self.freed,
            mean_age: until - Moment(mean_began),
            mean_life,
        })
    }
}
