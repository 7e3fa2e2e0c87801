//! Processor time that answering may take. Requests beyond it wait, in the order in which they came, so that
//! no client, however eager, takes processor time from tracing or from the programs that are traced.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Mutex;
use tokio::time::sleep;

/// What was not used is there at once later, up to this.
const SAVED: Duration = Duration::from_millis(100);

/// What the engine thread and the thread that answers tell each other.
pub(crate) struct Allowance {
    /// Of one core, in thousandths of a percent.
    share: AtomicU64,
    /// Processor time of the thread that answers, in nanoseconds.
    used: AtomicU64,
}

impl Allowance {
    /// The most, in percent of one core.
    pub(crate) const MOST: f64 = 5.0;
    /// The least: there is always an answer.
    pub(crate) const LEAST: f64 = 1.0;

    /// Allows so many percent of one core from now on.
    pub(crate) fn allow(&self, percent: f64) {
        let share = percent.clamp(Self::LEAST, Self::MOST) * 1000.0;
        self.share.store(share as u64, Ordering::Relaxed);
    }

    /// Processor time that answers took since the start, in seconds.
    pub(crate) fn used_seconds(&self) -> f64 {
        Duration::from_nanos(self.used.load(Ordering::Relaxed)).as_secs_f64()
    }

    /// The part of a core.
    fn share(&self) -> f64 {
        self.share.load(Ordering::Relaxed) as f64 / 100_000.0
    }
}

impl Default for Allowance {
    fn default() -> Self {
        let allowance = Self { share: AtomicU64::new(0), used: AtomicU64::new(0) };
        allowance.allow(Self::MOST);
        allowance
    }
}

/// Who may go on: one after the other.
pub(super) struct Gate {
    account: Mutex<Account>,
}

impl Gate {
    pub(super) fn new() -> Self {
        let account = Account { at: Instant::now(), used: Duration::ZERO, balance: 0.0 };
        Self { account: Mutex::new(account) }
    }

    /// Waits until there is processor time for more. Must be called on the thread that answers.
    pub(super) async fn pass(&self, allowance: &Allowance) {
        let mut account = self.account.lock().await;
        loop {
            let used = thread_time();
            allowance.used.store(used.as_nanos() as u64, Ordering::Relaxed);
            let wait = account.settle(Instant::now(), used, allowance.share());
            if wait.is_zero() {
                return;
            }
            sleep(wait).await;
        }
    }
}

/// What this thread took so far.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Time that may be taken, and that was.
struct Account {
    /// The moment of the last settling, and what had been used by then.
    at: Instant,
    used: Duration,
    /// Seconds of processor time; below zero too much was taken.
    balance: f64,
}

impl Account {
    /// Adds what was earned since the last time and takes off what was used; how long to wait until
    /// nothing is owed.
    fn settle(&mut self, now: Instant, used: Duration, share: f64) -> Duration {
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * share;
        let spent = used.saturating_sub(self.used).as_secs_f64();
        (self.at, self.used) = (now, used);
        self.balance = (self.balance + earned).min(SAVED.as_secs_f64()) - spent;
        if self.balance >= 0.0 {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(-self.balance / share).unwrap_or(SAVED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: f64 = 0.1;

    #[test]
    fn what_was_taken_too_much_is_waited_for() {
        let start = Instant::now();
        let mut account = Account { at: start, used: Duration::ZERO, balance: 0.0 };
        let second = Duration::from_secs(1);
        // A second earns a tenth of one, and that may be taken.
        let wait = account.settle(start + second, second / 10, SHARE);
        assert!(wait < Duration::from_micros(1), "{wait:?}");
        let wait = account.settle(start + second, second / 5, SHARE);
        assert!(wait.abs_diff(second) < Duration::from_micros(1), "{wait:?}");
        assert_eq!(account.settle(start + second * 3, second / 5, SHARE), Duration::ZERO);
    }

    #[test]
    fn a_long_pause_does_not_allow_a_long_burst() {
        let start = Instant::now();
        let mut account = Account { at: start, used: Duration::ZERO, balance: 0.0 };
        let later = start + Duration::from_secs(3600);
        assert_eq!(account.settle(later, Duration::ZERO, SHARE), Duration::ZERO);
        assert_eq!(account.settle(later, SAVED, SHARE), Duration::ZERO);
        let wait = account.settle(later, SAVED * 2, SHARE);
        assert!(wait.abs_diff(SAVED * 10) < Duration::from_micros(1), "{wait:?}");
    }

    #[test]
    fn there_is_always_a_little_and_never_too_much() {
        let allowance = Allowance::default();
        for (percent, share) in [(-3.0, 0.01), (0.0, 0.01), (4.0, 0.04), (90.0, 0.05)] {
            allowance.allow(percent);
            assert!((allowance.share() - share).abs() < 1e-9, "{percent}");
        }
    }

    /// Work that never pauses takes its share of a core and no more.
    #[test]
    fn a_thread_that_passes_takes_no_more_than_its_share() {
        let allowance = Allowance::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (gate, before, begun) = (Gate::new(), thread_time(), Instant::now());
        runtime.block_on(async {
            // What this thread used before is no debt.
            gate.account.lock().await.used = before;
            while begun.elapsed() < Duration::from_millis(1500) {
                gate.pass(&allowance).await;
                let burnt = thread_time() + Duration::from_millis(1);
                while thread_time() < burnt {
                    std::hint::spin_loop();
                }
            }
        });
        let used = (thread_time() - before).as_secs_f64();
        let allowed = begun.elapsed().as_secs_f64() * allowance.share();
        assert!(used < allowed + 0.03, "{used} of {allowed}");
        assert!((allowance.used_seconds() - thread_time().as_secs_f64()).abs() < 0.05);
    }
}
