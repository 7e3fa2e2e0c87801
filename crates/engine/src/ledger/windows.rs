//! How much was live over time, in few numbers: the end of each of up to 32 windows that cover the
//! whole trace. When they are full, each two become one of twice the length.

use crate::snapshot::Growth;
use crate::units::{Bytes, Moment, Nanos};

/// The most windows.
const WINDOWS: usize = 32;

/// The first windows are 2^20 nanoseconds long, about a millisecond.
const SHORTEST: u32 = 20;

/// See the module. Windows are counted from the beginning of the trace, so that those of all sites
/// lie side by side. Nothing is done while nothing happens: what is missing is made up for then.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    /// What was live at the end of those that are over; apart, for it is rarely looked at.
    ends: Box<[u64; WINDOWS]>,
    over: u32,
    /// The length is two to this power.
    power: u32,
}

impl Default for Windows {
    fn default() -> Self {
        Self { ends: Box::new([0; WINDOWS]), over: 0, power: SHORTEST }
    }
}

impl Windows {
    /// Time has gone on, and so much was live all the while.
    #[inline]
    pub(super) fn advance(&mut self, since_start: Nanos, live: Bytes) {
        if since_start.0 >> self.power > u64::from(self.over) {
            self.catch_up(since_start, live);
        }
    }

    #[cold]
    fn catch_up(&mut self, since_start: Nanos, live: Bytes) {
        while since_start.0 >> self.power >= WINDOWS as u64 {
            self.double();
        }
        let over = (since_start.0 >> self.power) as u32;
        for end in self.ends.iter_mut().take(over as usize).skip(self.over as usize) {
            *end = live.0;
        }
        self.over = self.over.max(over);
    }

    fn double(&mut self) {
        // A pair of which only the first window is over is one that is not over.
        self.over /= 2;
        for pair in 0..self.over as usize {
            self.ends[pair] = self.ends[pair * 2 + 1];
        }
        self.power += 1;
    }

    /// Adds another site's, where both stand at the same moment.
    pub(super) fn absorb(&mut self, other: &Self) {
        let mut other = other.clone();
        while other.power < self.power {
            other.double();
        }
        while self.power < other.power {
            self.double();
        }
        self.over = self.over.min(other.over);
        for (end, more) in self.ends.iter_mut().zip(*other.ends) {
            *end = end.saturating_add(more);
        }
    }

    /// The ends so far, and what is live now.
    pub(super) fn view(&self, start: Moment, live: Bytes) -> Growth {
        let over = self.ends.iter().take(self.over as usize).map(|bytes| Bytes(*bytes));
        let window = Nanos(1_u64.checked_shl(self.power).unwrap_or(u64::MAX));
        Growth { start, window, live: over.chain([live]).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: u64 = 1 << SHORTEST;

    fn view(windows: &Windows) -> (u64, Vec<u64>) {
        let growth = windows.view(Moment(0), Bytes(99));
        (growth.window.0 / LENGTH, growth.live.iter().map(|bytes| bytes.0).collect())
    }

    #[test]
    fn an_idle_time_is_made_up_for() {
        let mut windows = Windows::default();
        windows.advance(Nanos(LENGTH / 2), Bytes(5));
        assert_eq!(view(&windows), (1, vec![99]));
        windows.advance(Nanos(LENGTH * 3 + 1), Bytes(7));
        windows.advance(Nanos(LENGTH * 4), Bytes(8));
        assert_eq!(view(&windows), (1, vec![7, 7, 7, 8, 99]));
    }

    #[test]
    fn full_windows_become_half_as_many_of_twice_the_length() {
        let mut windows = Windows::default();
        for number in 1..=32 {
            windows.advance(Nanos(LENGTH * number), Bytes(number));
        }
        // Windows 0 and 1 ended with 1 and 2; the pair ended with 2.
        let (length, ends) = view(&windows);
        assert_eq!((length, ends.len()), (2, 17));
        assert_eq!((ends[0], ends[14], ends[15]), (2, 30, 32));
    }

    #[test]
    fn a_step_to_the_end_of_time_is_survived() {
        let mut windows = Windows::default();
        windows.advance(Nanos(LENGTH * 5), Bytes(1));
        windows.advance(Nanos(u64::MAX), Bytes(2));
        let (_, ends) = view(&windows);
        assert_eq!((ends.len(), ends[0]), (32, 2));
        windows.advance(Nanos(0), Bytes(3));
        assert_eq!(view(&windows).1.len(), 32);
    }

    #[test]
    fn those_of_several_sites_add_up_whatever_their_lengths() {
        let mut early = Windows::default();
        early.advance(Nanos(LENGTH * 2), Bytes(1));
        let mut late = Windows::default();
        for windows in [&mut early, &mut late] {
            windows.advance(Nanos(LENGTH * 40), Bytes(10));
        }
        early.absorb(&late);
        let (length, ends) = view(&early);
        assert_eq!((length, ends.len()), (2, 21));
        assert_eq!((ends[0], ends[1]), (11, 20));
    }
}
