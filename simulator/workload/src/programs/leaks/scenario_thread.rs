//! Shared code of the scenarios: a clock of steps, random choices, and allocation sites.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::time::{Duration, Instant};

use super::{MIB, resources};
use crate::cuda::{Device, Result};
use crate::signals;

/// One thread of a scenario. Its time is the sum of its steps, so that the same seed makes the same
/// calls at the same times, whatever else the machine does.
pub(super) struct ScenarioThread {
    pub(super) device: Device,
    pub(super) ordinal: c_int,
    pub(super) random: fastrand::Rng,
    seconds: f64,
    start: Instant,
    at: Duration,
    waits: bool,
}

impl ScenarioThread {
    /// Starts a scenario.
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

    /// Returns the state for another thread, with its own random choices.
    pub(super) fn worker(&mut self) -> Self {
        Self { random: self.random.fork(), ..*self }
    }

    /// Waits for the end of a step in milliseconds. Returns false at the end of the scenario.
    pub(super) fn step(&mut self, milliseconds: u64) -> bool {
        self.at += Duration::from_millis(milliseconds);
        if self.waits && !signals::sleep(self.at.saturating_sub(self.start.elapsed())) {
            return false;
        }
        self.at.as_secs_f64() < self.seconds && !signals::stopped()
    }

    /// Waits, after the last step too.
    pub(super) fn pause(&self, time: Duration) {
        if self.waits {
            signals::sleep(time);
        }
    }

    /// Returns the elapsed fraction of the time, from 0 to 1.
    pub(super) fn progress(&self) -> f64 {
        self.at.as_secs_f64() / self.seconds
    }

    /// Returns the index of the current period of this many milliseconds.
    pub(super) fn period(&self, milliseconds: u128) -> u128 {
        self.at.as_millis() / milliseconds.max(1)
    }

    /// Returns true once in this many times, at random.
    pub(super) fn one_in(&mut self, times: u32) -> bool {
        self.random.u32(..times.max(1)) == 0
    }

    /// Returns a part of a total that grows with time: all of it when `until` of the time has
    /// passed.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "small numbers, and a conversion from floating point saturates"
    )]
    pub(super) fn share(&self, total: usize, until: f64) -> usize {
        (total as f64 * (self.progress() / until).min(1.0)) as usize
    }
}

/// Creates something of this many bytes, with a function of [`super::resources`].
pub(super) type CreateFn = fn(&ScenarioThread, usize) -> Result<u64>;
/// Destroys it.
pub(super) type DestroyFn = fn(&ScenarioThread, u64) -> Result<()>;

/// Allocation sites: functions that are on the stack of their allocations, under their own names.
macro_rules! sites {
    ($($name:ident: $create:ident),* $(,)?) => {
        $(
            #[inline(never)]
            fn $name(run: &ScenarioThread, bytes: usize) -> crate::cuda::Result<u64> {
                let created = resources::$create(run, bytes);
                // Prevents tail calls, and merging of functions with the same code.
                std::hint::black_box(stringify!($name));
                created
            }
        )*
    };
}
pub(super) use sites;

/// Resources that a scenario holds, the oldest first.
pub(super) type HeldResources = VecDeque<u64>;

/// Removes a random one.
pub(super) fn remove_random(run: &mut ScenarioThread, held: &mut HeldResources) -> Option<u64> {
    if held.is_empty() {
        return None;
    }
    let at = run.random.usize(..held.len());
    held.swap_remove_back(at)
}

/// Destroys all of them.
pub(super) fn destroy_all(
    run: &ScenarioThread,
    held: &mut HeldResources,
    destroy: DestroyFn,
) -> Result<()> {
    held.drain(..).try_for_each(|resource| destroy(run, resource))
}

/// Resources that are each used for a while, one after another.
pub(super) struct Churn {
    create: CreateFn,
    destroy: DestroyFn,
    window: usize,
    held: HeldResources,
}

impl Churn {
    /// Creates an empty window of `window` resources.
    pub(super) const fn new(create: CreateFn, destroy: DestroyFn, window: usize) -> Self {
        Self { create, destroy, window, held: HeldResources::new() }
    }

    /// Creates one and retires the oldest: destroys it, or leaks it once in `leak_one_in` times.
    pub(super) fn advance(
        &mut self,
        run: &mut ScenarioThread,
        bytes: usize,
        leak_one_in: Option<u32>,
    ) -> Result<()> {
        self.held.push_back((self.create)(run, bytes)?);
        if self.held.len() <= self.window {
            return Ok(());
        }
        match self.held.pop_front() {
            Some(oldest) if !leak_one_in.is_some_and(|times| run.one_in(times)) => {
                (self.destroy)(run, oldest)
            }
            _ => Ok(()),
        }
    }
}

sites! { step_activation: plain }

/// Makes the normal allocations of a step, all freed.
pub(super) fn traffic(run: &ScenarioThread) -> Result<()> {
    let buffers = [step_activation(run, 2 * MIB)?, step_activation(run, MIB)?];
    buffers.into_iter().try_for_each(|buffer| resources::end_plain(run, buffer))
}
