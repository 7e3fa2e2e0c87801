//! What every scenario works with: a clock of steps, random choices, and places that allocate.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::time::{Duration, Instant};

use super::{MIB, things};
use crate::cuda::{Device, Result};
use crate::signals;

/// One thread of a scenario. Its time is the sum of its steps, so that the same seed makes the same
/// calls at the same times, whatever else the machine does.
pub(super) struct Run {
    pub(super) device: Device,
    pub(super) ordinal: c_int,
    pub(super) random: fastrand::Rng,
    seconds: f64,
    start: Instant,
    at: Duration,
    waits: bool,
}

impl Run {
    /// A scenario that begins now.
    pub(super) fn new(
        device: Device,
        ordinal: c_int,
        seed: u64,
        seconds: f64,
        waits: bool,
    ) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self { device, ordinal, random, seconds, start: Instant::now(), at: Duration::ZERO, waits }
    }

    /// The same for another thread, with choices of its own.
    pub(super) fn worker(&mut self) -> Self {
        Self { random: self.random.fork(), ..*self }
    }

    /// Waits until a step of so many milliseconds is over; false when the scenario is.
    pub(super) fn step(&mut self, milliseconds: u64) -> bool {
        self.at += Duration::from_millis(milliseconds);
        if self.waits && !signals::sleep(self.at.saturating_sub(self.start.elapsed())) {
            return false;
        }
        self.at.as_secs_f64() < self.seconds && !signals::stopped()
    }

    /// How much of the time is over, from 0 to 1.
    pub(super) fn progress(&self) -> f64 {
        self.at.as_secs_f64() / self.seconds
    }

    /// In which span of so many milliseconds it is.
    pub(super) fn span(&self, milliseconds: u128) -> u128 {
        self.at.as_millis() / milliseconds.max(1)
    }

    /// One of so many times, by chance.
    pub(super) fn one_in(&mut self, times: u32) -> bool {
        self.random.u32(..times.max(1)) == 0
    }

    /// A part of a whole that grows with the time: all of it when `until` of the time is over.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "small numbers, and a conversion from floating point saturates"
    )]
    pub(super) fn share(&self, whole: usize, until: f64) -> usize {
        (whole as f64 * (self.progress() / until).min(1.0)) as usize
    }
}

/// Makes something of so many bytes, in a way of [`super::things`].
pub(super) type Make = fn(&Run, usize) -> Result<u64>;
/// Ends it.
pub(super) type End = fn(&Run, u64) -> Result<()>;

/// Places of a program: functions that are on the stack of what they make, under their own names.
macro_rules! sites {
    ($($name:ident: $make:ident),* $(,)?) => {
        $(
            #[inline(never)]
            fn $name(run: &Run, bytes: usize) -> crate::cuda::Result<u64> {
                let made = things::$make(run, bytes);
                // Without it the call could become a jump, and functions that do the same one.
                std::hint::black_box(stringify!($name));
                made
            }
        )*
    };
}
pub(super) use sites;

/// What a scenario holds, the oldest first.
pub(super) type Held = VecDeque<u64>;

/// Takes one out, by chance.
pub(super) fn take_any(run: &mut Run, held: &mut Held) -> Option<u64> {
    if held.is_empty() {
        return None;
    }
    let at = run.random.usize(..held.len());
    held.swap_remove_back(at)
}

/// Ends all of it.
pub(super) fn end_all(run: &Run, held: &mut Held, end: End) -> Result<()> {
    held.drain(..).try_for_each(|one| end(run, one))
}

/// Things that are used for a while each, one after another.
pub(super) struct Churn {
    make: Make,
    end: End,
    window: usize,
    held: Held,
}

impl Churn {
    /// As many as `window` are in use at a time.
    pub(super) const fn new(make: Make, end: End, window: usize) -> Self {
        Self { make, end, window, held: Held::new() }
    }

    /// Makes one, and is done with the oldest: ends it, or forgets it one in so many times.
    pub(super) fn turn(&mut self, run: &mut Run, bytes: usize, forgets: Option<u32>) -> Result<()> {
        self.held.push_back((self.make)(run, bytes)?);
        if self.held.len() <= self.window {
            return Ok(());
        }
        match self.held.pop_front() {
            Some(oldest) if !forgets.is_some_and(|times| run.one_in(times)) => {
                (self.end)(run, oldest)
            }
            _ => Ok(()),
        }
    }
}

sites! { step_activation: plain }

/// What a step of a program does besides: some buffers, all freed.
pub(super) fn traffic(run: &Run) -> Result<()> {
    let buffers = [step_activation(run, 2 * MIB)?, step_activation(run, MIB)?];
    buffers.into_iter().try_for_each(|buffer| things::end_plain(run, buffer))
}
