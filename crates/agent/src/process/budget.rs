//! CPU and memory budget of the agent, and what it drops to stay within it: call stacks first, then
//! call sites. Memory accounting is never dropped.

use std::collections::VecDeque;
use std::time::Duration;

use engine::model::Bytes;

use crate::api::CpuShare;
use crate::process::self_usage::SelfUsage;

/// Degradation steps, in the order in which they are taken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum DegradationStep {
    /// Frame-pointer stacks only.
    FramePointerStacks,
    /// No stacks: new allocations have no call site.
    NoStacks,
    /// Call sites are merged: one for each process and kind.
    MergedSites,
}

impl DegradationStep {
    const ALL: [Self; 3] = [Self::FramePointerStacks, Self::NoStacks, Self::MergedSites];

    /// Name in messages, the API and alerts.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::FramePointerStacks => "frame_pointer_stacks",
            Self::NoStacks => "no_stacks",
            Self::MergedSites => "merged_sites",
        }
    }

    /// Description for log messages.
    const fn description(self) -> &'static str {
        match self {
            Self::FramePointerStacks => "using frame-pointer stacks only",
            Self::NoStacks => "call stacks disabled",
            Self::MergedSites => "call sites merged per process",
        }
    }
}

/// Resource usage and state of the agent.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct AgentUsage {
    /// CPU time since the start, in seconds.
    pub(crate) cpu_seconds: f64,
    /// CPU usage of the last seconds, in percent of one core.
    pub(crate) cpu_percent: f64,
    /// Resident memory.
    pub(crate) memory: Bytes,
    /// Start time, in seconds of the Unix clock.
    pub(crate) started: f64,
    /// Probes are attached to a driver.
    pub(crate) tracing: bool,
    /// Applied events.
    pub(crate) events: u64,
    /// Active steps, in order.
    pub(crate) steps: Vec<DegradationStep>,
}

/// A change of the active steps.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct BudgetChange {
    /// Steps that are active from now on.
    pub(crate) steps: Vec<DegradationStep>,
    /// Log message.
    pub(crate) message: String,
}

/// Window over which CPU usage is averaged.
const CPU_WINDOW: Duration = Duration::from_secs(10);

/// Time for a step to take effect before the next one.
const STEP_SETTLE_TIME: Duration = Duration::from_secs(10);

/// A step is reverted after this long at less than half of the budget.
const RECOVERY_TIME: Duration = Duration::from_mins(10);

/// Tracks the agent's usage and decides on degradation steps.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Percent of one core.
    max_cpu: Option<f64>,
    max_memory: Option<Bytes>,
    /// Steps that apply to the traced data.
    available: Vec<DegradationStep>,
    active: usize,
    /// Recent usage, oldest first.
    samples: VecDeque<SelfUsage>,
    settle_until: Duration,
    quiet_since: Option<Duration>,
    is_exhausted: bool,
}

impl Budget {
    /// `first`: the first step that applies; stacks may not be collected in full anyway.
    pub(crate) fn new(
        max_cpu: Option<f64>,
        max_memory: Option<Bytes>,
        first: DegradationStep,
    ) -> Self {
        Self {
            max_cpu,
            max_memory,
            available: DegradationStep::ALL.into_iter().filter(|step| *step >= first).collect(),
            active: 0,
            samples: VecDeque::new(),
            settle_until: Duration::ZERO,
            quiet_since: None,
            is_exhausted: false,
        }
    }

    /// Active steps.
    pub(crate) fn steps(&self) -> &[DegradationStep] {
        self.available.get(..self.active).unwrap_or_default()
    }

    /// CPU usage in percent of one core, over the last seconds.
    pub(crate) fn cpu_percent(&self) -> f64 {
        self.percent(|usage| usage.cpu_seconds)
    }

    /// The same without HTTP responses. Dropping data does not reduce the number of requests, so
    /// clients that send many requests must not cause degradation.
    fn tracing_percent(&self) -> f64 {
        self.percent(|usage| usage.cpu_seconds - usage.http_seconds)
    }

    fn percent(&self, seconds: impl Fn(&SelfUsage) -> f64) -> f64 {
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else {
            return 0.0;
        };
        let time = last.at.saturating_sub(first.at).as_secs_f64();
        if time > 0.0 { (seconds(last) - seconds(first)) / time * 100.0 } else { 0.0 }
    }

    /// CPU share of HTTP responses, in percent of one core: what tracing leaves of the budget.
    pub(crate) fn http_share(&self) -> f64 {
        self.max_cpu.map_or(CpuShare::MAX_CPU_PERCENT, |max| max - self.tracing_percent())
    }

    /// Observes the usage, once a second. Returns the change of steps, if any.
    pub(crate) fn observe(&mut self, usage: SelfUsage) -> Option<BudgetChange> {
        self.samples.push_back(usage);
        while self.samples.get(1).is_some_and(|next| usage.at - next.at >= CPU_WINDOW) {
            self.samples.pop_front();
        }
        let is_full = self.samples.front().is_some_and(|first| usage.at - first.at >= CPU_WINDOW);
        let cpu = self.tracing_percent();
        let over_cpu = is_full && self.max_cpu.is_some_and(|max| cpu > max);
        let over_memory = self.max_memory.is_some_and(|max| usage.memory > max);
        if (over_cpu || over_memory) && usage.at >= self.settle_until {
            self.quiet_since = None;
            return self.step_down(&usage, over_cpu, cpu);
        }
        let quiet = self.max_cpu.is_none_or(|max| cpu < max / 2.0)
            && self.max_memory.is_none_or(|max| usage.memory.0 < max.0 / 5 * 4);
        if !quiet {
            self.quiet_since = None;
            return None;
        }
        let since = *self.quiet_since.get_or_insert(usage.at);
        if usage.at - since < RECOVERY_TIME {
            return None;
        }
        self.quiet_since = None;
        self.step_up()
    }

    fn step_down(&mut self, usage: &SelfUsage, over_cpu: bool, cpu: f64) -> Option<BudgetChange> {
        let reason = match (over_cpu, self.max_cpu, self.max_memory) {
            (true, Some(max), _) => format!("{cpu:.1} % of a core, limit {max} %"),
            (_, _, max) => {
                format!("{} of memory, limit {}", usage.memory, max.unwrap_or_default())
            }
        };
        self.settle_until = usage.at + STEP_SETTLE_TIME;
        let Some(step) = self.available.get(self.active).copied() else {
            let is_first = !std::mem::replace(&mut self.is_exhausted, true);
            return is_first.then(|| BudgetChange {
                steps: self.steps().to_vec(),
                message: format!(
                    "over budget ({reason}) with nothing left to drop; memory accounting stays exact. \
                     Raise the budget or trace less"
                ),
            });
        };
        self.active += 1;
        Some(BudgetChange {
            steps: self.steps().to_vec(),
            message: format!(
                "over budget ({reason}): {}; memory accounting stays exact",
                step.description()
            ),
        })
    }

    /// Reverts the last step. Merged sites stay merged.
    fn step_up(&mut self) -> Option<BudgetChange> {
        let last = *self.steps().last()?;
        if last == DegradationStep::MergedSites {
            return None;
        }
        self.active -= 1;
        self.is_exhausted = false;
        let message = format!("back within budget: restored from \"{}\"", last.description());
        Some(BudgetChange { steps: self.steps().to_vec(), message })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Bytes = Bytes(100);

    /// Simulates seconds of a given usage: percent of a core, memory.
    struct TestClock {
        budget: Budget,
        at: u64,
        cpu: f64,
        /// CPU time of HTTP responses, and their percent of a core.
        http_seconds: f64,
        http_percent: f64,
    }

    impl TestClock {
        fn new(max_cpu: Option<f64>, max_memory: Option<Bytes>) -> Self {
            Self {
                budget: Budget::new(max_cpu, max_memory, DegradationStep::FramePointerStacks),
                at: 0,
                cpu: 0.0,
                http_seconds: 0.0,
                http_percent: 0.0,
            }
        }

        fn run(&mut self, seconds: u64, percent: f64, memory: u64) -> Vec<String> {
            let mut messages = Vec::new();
            for _ in 0..seconds {
                self.at += 1;
                self.cpu += percent / 100.0;
                self.http_seconds += self.http_percent / 100.0;
                let usage = SelfUsage {
                    at: Duration::from_secs(self.at),
                    cpu_seconds: self.cpu + self.http_seconds,
                    http_seconds: self.http_seconds,
                    memory: Bytes(memory),
                };
                messages.extend(self.budget.observe(usage).map(|change| change.message));
            }
            messages
        }
    }

    #[test]
    fn stacks_are_dropped_step_by_step_with_a_message() {
        let mut clock = TestClock::new(Some(5.0), None);
        assert_eq!(clock.run(60, 4.9, 1 << 30), [""; 0]);
        let messages = clock.run(120, 9.0, 0);
        assert_eq!(messages.len(), 4, "{messages:?}");
        assert!(messages[0].contains("frame-pointer stacks only"), "{messages:?}");
        assert!(messages[1].contains("call stacks disabled"), "{messages:?}");
        assert!(messages[2].contains("merged per process"), "{messages:?}");
        assert!(messages[3].contains("nothing left to drop"), "{messages:?}");
        assert!(messages.iter().all(|message| message.contains("memory accounting stays exact")));
        assert_eq!(clock.budget.steps(), DegradationStep::ALL);
    }

    #[test]
    fn short_cpu_peaks_change_nothing() {
        let mut clock = TestClock::new(Some(5.0), None);
        clock.run(30, 1.0, 0);
        assert_eq!(clock.run(2, 20.0, 0), [""; 0]);
        assert_eq!(clock.run(30, 1.0, 0), [""; 0]);
    }

    #[test]
    fn http_load_causes_no_degradation() {
        let mut clock = TestClock::new(Some(5.0), None);
        clock.http_percent = 50.0;
        assert_eq!(clock.run(60, 3.0, 0), [""; 0]);
        assert!((clock.budget.http_share() - 2.0).abs() < 1e-6, "{}", clock.budget.http_share());
        assert!((clock.budget.cpu_percent() - 53.0).abs() < 1e-6, "{}", clock.budget.cpu_percent());
        let free = TestClock::new(None, None);
        assert!((free.budget.http_share() - CpuShare::MAX_CPU_PERCENT).abs() < 1e-6);
    }

    #[test]
    fn memory_over_budget_takes_one_step_at_a_time() {
        let mut clock = TestClock::new(None, Some(MAX));
        let messages = clock.run(1, 0.0, 101);
        assert!(messages[0].contains("101 B of memory, limit 100 B"), "{messages:?}");
        assert_eq!(clock.run(9, 0.0, 101), [""; 0]);
        assert_eq!(clock.budget.steps(), [DegradationStep::FramePointerStacks]);
    }

    #[test]
    fn steps_recover_except_merged_sites() {
        let mut clock = TestClock::new(None, Some(MAX));
        clock.run(1, 0.0, 101);
        assert_eq!(clock.run(600, 0.0, 50), [""; 0]);
        assert_eq!(clock.run(5, 0.0, 50).len(), 1);
        assert_eq!(clock.budget.steps(), []);
        clock.run(60, 0.0, 101);
        assert_eq!(clock.budget.steps(), DegradationStep::ALL);
        assert_eq!(clock.run(2000, 0.0, 50), [""; 0]);
        assert_eq!(clock.budget.steps(), DegradationStep::ALL);
    }

    #[test]
    fn nothing_is_dropped_without_a_budget() {
        assert_eq!(TestClock::new(None, None).run(100, 100.0, u64::MAX), [""; 0]);
    }
}
