//! CPU share of the HTTP API. Requests beyond it wait in order of arrival, so no client can take
//! CPU time from tracing or from the traced programs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Mutex;
use tokio::time::sleep;

/// Maximum unused CPU time that accumulates.
const MAX_BURST: Duration = Duration::from_millis(100);

/// State shared by the engine thread and the HTTP thread.
pub(crate) struct CpuShare {
    /// Share of one core, in thousandths of a percent.
    share: AtomicU64,
    /// CPU time of the HTTP thread, in nanoseconds.
    used: AtomicU64,
}

impl CpuShare {
    /// Maximum share, in percent of one core.
    pub(crate) const MAX_CPU_PERCENT: f64 = 5.0;
    /// Minimum share, so that requests are always served.
    pub(crate) const MIN_CPU_PERCENT: f64 = 1.0;

    /// Sets the share, in percent of one core.
    pub(crate) fn allow(&self, percent: f64) {
        let share = percent.clamp(Self::MIN_CPU_PERCENT, Self::MAX_CPU_PERCENT) * 1000.0;
        self.share.store(share as u64, Ordering::Relaxed);
    }

    /// Sets no limit.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(in crate::api) fn allow_any(&self) {
        self.share.store(u64::MAX, Ordering::Relaxed);
    }

    /// CPU time of HTTP responses since the start, in seconds.
    pub(crate) fn used_seconds(&self) -> f64 {
        Duration::from_nanos(self.used.load(Ordering::Relaxed)).as_secs_f64()
    }

    /// Share of one core, from 0 to 1.
    fn share(&self) -> f64 {
        self.share.load(Ordering::Relaxed) as f64 / 100_000.0
    }
}

impl Default for CpuShare {
    fn default() -> Self {
        let cpu_share = Self { share: AtomicU64::new(0), used: AtomicU64::new(0) };
        cpu_share.allow(Self::MAX_CPU_PERCENT);
        cpu_share
    }
}

/// Lets requests continue one at a time.
pub(in crate::api) struct CpuGate {
    budget: Mutex<CpuBudget>,
    /// Returns the CPU time of the calling thread.
    thread_time: fn() -> Duration,
}

impl CpuGate {
    pub(in crate::api) fn new() -> Self {
        let budget = CpuBudget { at: Instant::now(), used: Duration::ZERO, balance: 0.0 };
        Self { budget: Mutex::new(budget), thread_time }
    }

    /// Waits until CPU time is available. Must be called on the HTTP thread.
    pub(in crate::api) async fn pass(&self, cpu_share: &CpuShare) {
        let mut budget = self.budget.lock().await;
        let used = (self.thread_time)();
        cpu_share.used.store(used.as_nanos() as u64, Ordering::Relaxed);
        let wait = budget.update(Instant::now(), used, cpu_share.share());
        // Waking up takes CPU time, which the next request waits for: this one might wait forever.
        if !wait.is_zero() {
            sleep(wait).await;
        }
    }
}

/// Returns the CPU time of this thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Granted and used CPU time.
struct CpuBudget {
    /// Time of the last update, and CPU time used by then.
    at: Instant,
    used: Duration,
    /// Available CPU time in seconds; negative if too much was used.
    balance: f64,
}

impl CpuBudget {
    /// Adds the time granted since the last call and subtracts the time used. Returns how long to
    /// wait until the balance is not negative.
    fn update(&mut self, now: Instant, used: Duration, share: f64) -> Duration {
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * share;
        let spent = used.saturating_sub(self.used).as_secs_f64();
        (self.at, self.used) = (now, used);
        self.balance = (self.balance + earned).min(MAX_BURST.as_secs_f64()) - spent;
        if self.balance >= 0.0 {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(-self.balance / share).unwrap_or(MAX_BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: f64 = 0.1;

    #[test]
    fn request_waits_once_although_waking_up_takes_cpu_time() {
        static READS: AtomicU64 = AtomicU64::new(0);
        let thread_time = || Duration::from_millis(5 * READS.fetch_add(1, Ordering::Relaxed));
        let gate = CpuGate { thread_time, ..CpuGate::new() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            for _ in 0..3 {
                gate.pass(&CpuShare::default()).await;
            }
        });
        assert_eq!(READS.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn overuse_is_waited_for() {
        let start = Instant::now();
        let mut budget = CpuBudget { at: start, used: Duration::ZERO, balance: 0.0 };
        let second = Duration::from_secs(1);
        // A second grants a tenth of a second, which may be used.
        let wait = budget.update(start + second, second / 10, SHARE);
        assert!(wait < Duration::from_micros(1), "{wait:?}");
        let wait = budget.update(start + second, second / 5, SHARE);
        assert!(wait.abs_diff(second) < Duration::from_micros(1), "{wait:?}");
        assert_eq!(budget.update(start + second * 3, second / 5, SHARE), Duration::ZERO);
    }

    #[test]
    fn long_pause_allows_no_long_burst() {
        let start = Instant::now();
        let mut budget = CpuBudget { at: start, used: Duration::ZERO, balance: 0.0 };
        let later = start + Duration::from_hours(1);
        assert_eq!(budget.update(later, Duration::ZERO, SHARE), Duration::ZERO);
        assert_eq!(budget.update(later, MAX_BURST, SHARE), Duration::ZERO);
        let wait = budget.update(later, MAX_BURST * 2, SHARE);
        assert!(wait.abs_diff(MAX_BURST * 10) < Duration::from_micros(1), "{wait:?}");
    }

    #[test]
    fn share_is_clamped() {
        let cpu_share = CpuShare::default();
        for (percent, share) in [(-3.0, 0.01), (0.0, 0.01), (4.0, 0.04), (90.0, 0.05)] {
            cpu_share.allow(percent);
            assert!((cpu_share.share() - share).abs() < 1e-9, "{percent}");
        }
    }

    /// A busy loop gets its share of a core and no more.
    #[test]
    fn busy_thread_stays_within_its_share() {
        let cpu_share = CpuShare::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (gate, before, start) = (CpuGate::new(), thread_time(), Instant::now());
        runtime.block_on(async {
            // CPU time used before the test does not count.
            gate.budget.lock().await.used = before;
            while start.elapsed() < Duration::from_millis(1500) {
                gate.pass(&cpu_share).await;
                let until = thread_time() + Duration::from_millis(1);
                while thread_time() < until {
                    std::hint::spin_loop();
                }
            }
        });
        let used = thread_time().checked_sub(before).unwrap().as_secs_f64();
        let allowed = start.elapsed().as_secs_f64() * cpu_share.share();
        assert!(used < allowed + 0.03, "{used} of {allowed}");
        assert!((cpu_share.used_seconds() - thread_time().as_secs_f64()).abs() < 0.05);
    }
}
