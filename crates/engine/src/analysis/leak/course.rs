//! What was live of one place over time, in few numbers: up to 32 windows that cover its whole life.
//! When they are full, each two become one of twice the length.
//!
//! Windows lie on one grid for all places of a trace, so that those of several can be added; but each
//! place has its own first one, so that what begins late is seen as finely as what began early.
//! Nothing is done while nothing happens: what is missing is made up for later.

use crate::snapshot::Growth;
use crate::units::{Bytes, Moment, Nanos};

/// The most windows.
pub const WINDOWS: usize = 32;

/// The first windows are 2^20 nanoseconds long, about a millisecond.
const SHORTEST: u32 = 20;

/// One window. Quantities are bytes, or numbers of objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Window {
    /// The least that was live in it.
    pub low: u64,
    /// The most.
    pub high: u64,
    /// What was live at its end.
    pub end: u64,
    /// What was born in it and is live now.
    pub kept: u64,
    /// How many that are.
    pub kept_count: u32,
    /// How many were born in it.
    pub born: u32,
}

impl Window {
    /// One in which nothing changed.
    const fn idle(live: u64) -> Self {
        Self { low: live, high: live, end: live, kept: 0, kept_count: 0, born: 0 }
    }

    /// Both as one, where `next` is the later one.
    fn then(self, next: Self) -> Self {
        Self {
            low: self.low.min(next.low),
            high: self.high.max(next.high),
            end: next.end,
            kept: self.kept.saturating_add(next.kept),
            kept_count: self.kept_count.saturating_add(next.kept_count),
            born: self.born.saturating_add(next.born),
        }
    }

    /// Both at the same time. The least is not more than this, the most is not less.
    fn beside(self, other: Self) -> Self {
        Self {
            low: self.low.saturating_add(other.low),
            high: self.high.saturating_add(other.high),
            end: self.end.saturating_add(other.end),
            kept: self.kept.saturating_add(other.kept),
            kept_count: self.kept_count.saturating_add(other.kept_count),
            born: self.born.saturating_add(other.born),
        }
    }
}

/// See the module. Moments are counted from the beginning of the trace.
#[derive(Clone, Debug)]
pub struct Course {
    windows: Vec<Window>,
    /// The number of the first window on the grid.
    first: u64,
    /// The length is two to this power.
    power: u32,
}

impl Default for Course {
    fn default() -> Self {
        Self { windows: Vec::new(), first: 0, power: SHORTEST }
    }
}

impl Course {
    /// Something of that size was born; so much was live before.
    pub fn begin(&mut self, at: Nanos, live: u64, size: u64) {
        self.enter(at, live);
        let after = live.saturating_add(size);
        let birth = self.place(at);
        if let Some(window) = self.windows.last_mut() {
            window.high = window.high.max(after);
            window.end = after;
        }
        if let Some(window) = self.windows.get_mut(birth) {
            window.kept = window.kept.saturating_add(size);
            window.kept_count = window.kept_count.saturating_add(1);
            window.born = window.born.saturating_add(1);
        }
    }

    /// Something of that size ended that was born at `began`; so much was live before.
    pub fn finish(&mut self, began: Nanos, at: Nanos, live: u64, size: u64) {
        self.enter(at, live);
        let after = live.saturating_sub(size);
        if let Some(window) = self.windows.last_mut() {
            window.low = window.low.min(after);
            window.end = after;
        }
        let birth = self.place(began);
        if let Some(window) = self.windows.get_mut(birth) {
            window.kept = window.kept.saturating_sub(size);
            window.kept_count = window.kept_count.saturating_sub(1);
        }
    }

    /// Something that was born at `began` turned out to be bigger; so much was live before.
    pub fn grow(&mut self, began: Nanos, at: Nanos, live: u64, more: u64) {
        self.enter(at, live);
        let after = live.saturating_add(more);
        if let Some(window) = self.windows.last_mut() {
            window.high = window.high.max(after);
            window.end = after;
        }
        let birth = self.place(began);
        if let Some(window) = self.windows.get_mut(birth) {
            window.kept = window.kept.saturating_add(more);
        }
    }

    /// A level that is not made of births and ends went from one value to another.
    pub fn level(&mut self, at: Nanos, before: u64, after: u64) {
        self.enter(at, before);
        if let Some(window) = self.windows.last_mut() {
            window.low = window.low.min(after);
            window.high = window.high.max(after);
            window.end = after;
        }
    }

    /// Nothing follows: gives back room for more.
    pub fn close(&mut self) {
        self.windows.shrink_to_fit();
    }

    /// Time has gone on, and so much was live all the while.
    #[inline]
    fn enter(&mut self, at: Nanos, live: u64) {
        if (at.0 >> self.power).wrapping_sub(self.first) >= self.windows.len() as u64 {
            self.catch_up(at, live);
        }
    }

    #[cold]
    fn catch_up(&mut self, at: Nanos, live: u64) {
        if self.windows.is_empty() {
            self.first = at.0 >> self.power;
        }
        while (at.0 >> self.power).saturating_sub(self.first) >= WINDOWS as u64 {
            self.double();
        }
        let number = (at.0 >> self.power).saturating_sub(self.first) as usize;
        while self.windows.len() <= number {
            self.windows.push(Window::idle(live));
        }
    }

    fn double(&mut self) {
        let (old, first) = (self.first, self.first / 2);
        let mut kept = 0;
        for index in 0..self.windows.len() {
            let target = ((old + index as u64) / 2 - first) as usize;
            let Some(&window) = self.windows.get(index) else { break };
            if let Some(place) = self.windows.get_mut(target) {
                *place = if target < kept { place.then(window) } else { window };
            }
            kept = target + 1;
        }
        self.windows.truncate(kept);
        self.first = first;
        self.power += 1;
    }

    /// The window of a moment: the nearest one that is there.
    fn place(&self, at: Nanos) -> usize {
        let number = (at.0 >> self.power).saturating_sub(self.first);
        usize::try_from(number).unwrap_or(usize::MAX).min(self.windows.len().saturating_sub(1))
    }

    /// Adds another place's, of which so much is live.
    pub fn absorb(&mut self, live: u64, other: &Self, other_live: u64) {
        if other.windows.is_empty() {
            return;
        }
        if self.windows.is_empty() {
            self.clone_from(other);
            return;
        }
        let mut other = other.clone();
        while other.power < self.power {
            other.double();
        }
        while self.power < other.power {
            self.double();
        }
        let first = self.first.min(other.first);
        while self.next().max(other.next()) - self.first.min(other.first) > WINDOWS as u64 {
            self.double();
            other.double();
        }
        let (from, to) = (self.first.min(other.first), self.next().max(other.next()));
        debug_assert!(from <= first);
        self.windows = (from..to)
            .map(|number| self.at(number, live).beside(other.at(number, other_live)))
            .collect();
        self.first = from;
    }

    /// The number of the window after the last.
    fn next(&self) -> u64 {
        self.first + self.windows.len() as u64
    }

    /// A window by number, also before and after those that are kept.
    fn at(&self, number: u64, live: u64) -> Window {
        match number.checked_sub(self.first) {
            None => Window::default(),
            Some(index) => {
                let index = usize::try_from(index).unwrap_or(usize::MAX);
                self.windows.get(index).copied().unwrap_or(Window::idle(live))
            }
        }
    }

    /// The windows up to a moment, with so much live now: their length, when the first began, and
    /// the windows.
    #[must_use]
    pub fn until(&self, now: Nanos, live: u64) -> (Nanos, Nanos, Vec<Window>) {
        let mut course = self.clone();
        if !course.windows.is_empty() {
            course.enter(now, live);
        }
        let start = course.first << course.power;
        (Nanos(1 << course.power), Nanos(start), course.windows)
    }

    /// What was live at the end of each window of the whole trace, the same windows for all places;
    /// the last one is not over, and has what is live now.
    #[must_use]
    pub fn growth(&self, start: Moment, now: Nanos, live: u64) -> Growth {
        let mut course = self.clone();
        course.enter(now, live);
        let last = |course: &Self| (now.0 >> course.power).max(course.next().saturating_sub(1));
        while last(&course) >= WINDOWS as u64 {
            course.double();
        }
        let ends = (0..last(&course)).map(|number| Bytes(course.at(number, live).end));
        let live = ends.chain([Bytes(live)]).collect();
        Growth { start, window: Nanos(1 << course.power), live }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: u64 = 1 << SHORTEST;

    /// A place that has so much live from the given windows on.
    fn course(steps: &[(u64, u64)]) -> Course {
        let mut course = Course::default();
        let mut live = 0;
        for &(window, size) in steps {
            course.begin(Nanos(window * LENGTH), live, size);
            live += size;
        }
        course
    }

    fn ends(course: &Course, now: u64, live: u64) -> (u64, Vec<u64>) {
        let growth = course.growth(Moment(0), Nanos(now * LENGTH), live);
        (growth.window.0 / LENGTH, growth.live.iter().map(|bytes| bytes.0).collect())
    }

    #[test]
    fn an_idle_time_is_made_up_for_and_a_late_place_began_with_nothing() {
        let course = course(&[(2, 7), (5, 1)]);
        assert_eq!(ends(&course, 6, 8), (1, vec![0, 0, 7, 7, 7, 8, 8]));
        assert_eq!(ends(&course, 2, 8).1.len(), 6);
    }

    #[test]
    fn full_windows_become_half_as_many_of_twice_the_length() {
        let steps: Vec<_> = (0..33).map(|number| (number, 1)).collect();
        let course = course(&steps);
        let (length, start, windows) = course.until(Nanos(32 * LENGTH), 33);
        assert_eq!((length.0 / LENGTH, start, windows.len()), (2, Nanos(0), 17));
        // The second pair: 2 were live before, two were born and stayed.
        let want = Window { low: 2, high: 4, end: 4, kept: 2, kept_count: 2, born: 2 };
        assert_eq!(windows[1], want);
        assert_eq!(windows.iter().map(|window| window.kept).sum::<u64>(), 33);
    }

    #[test]
    fn what_is_born_late_has_short_windows_of_the_same_grid() {
        let mut course = course(&[(1001, 5)]);
        course.begin(Nanos(1003 * LENGTH), 5, 5);
        let (length, start, windows) = course.until(Nanos(1004 * LENGTH), 10);
        assert_eq!((length.0, start.0 / LENGTH, windows.len()), (LENGTH, 1001, 4));
        let (length, ends) = ends(&course, 1004, 10);
        // 1004 windows are 31 of 32 each; the last is not over.
        assert_eq!((length, ends.len(), ends[31], ends[30]), (32, 32, 10, 0));
    }

    #[test]
    fn an_end_is_taken_from_the_window_of_its_birth() {
        let mut course = course(&[(0, 10), (40, 20)]);
        course.finish(Nanos(0), Nanos(41 * LENGTH), 30, 10);
        let (_, _, windows) = course.until(Nanos(41 * LENGTH), 20);
        let kept: Vec<_> = windows.iter().map(|window| window.kept).collect();
        assert_eq!(kept.iter().sum::<u64>(), 20);
        assert_eq!((kept[0], kept[20], windows[20].low), (0, 20, 10));
    }

    #[test]
    fn a_step_to_the_end_of_time_is_survived() {
        let mut course = course(&[(5, 1)]);
        course.begin(Nanos(u64::MAX), 1, 1);
        course.begin(Nanos(0), 2, 1);
        course.finish(Nanos(0), Nanos(3), 3, 1);
        let (_, _, windows) = course.until(Nanos(u64::MAX), 2);
        assert_eq!(windows.len(), 32);
        assert_eq!(windows.iter().map(|window| window.kept).sum::<u64>(), 2);
    }

    #[test]
    fn those_of_several_places_add_up_whatever_their_lengths() {
        let (mut early, late) = (course(&[(0, 1), (2, 9)]), course(&[(39, 10)]));
        early.absorb(10, &late, 10);
        let (length, ends) = ends(&early, 40, 20);
        assert_eq!((length, ends.len()), (2, 21));
        assert_eq!((ends[0], ends[1], ends[18], ends[19]), (1, 10, 10, 20));
        let mut none = Course::default();
        none.absorb(0, &early, 20);
        assert_eq!(none.until(Nanos(40 * LENGTH), 20), early.until(Nanos(40 * LENGTH), 20));
    }
}
