//! What the agent may take, and what it gives up when that is too much: call stacks first, then places
//! in programs. The accounting of memory is never given up.

use std::collections::VecDeque;
use std::time::Duration;

use engine::units::Bytes;

use super::http::Allowance;
use super::own::Usage;

/// Steps down, in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Step {
    /// Stacks along frame pointers only.
    CheapStacks,
    /// No stacks: what is new has no place in a program.
    NoStacks,
    /// Places are put together: one for each process and kind.
    CoarseSites,
}

impl Step {
    const ALL: [Self; 3] = [Self::CheapStacks, Self::NoStacks, Self::CoarseSites];

    /// The word for it in messages, the API and alerts.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::CheapStacks => "frame_pointer_stacks",
            Self::NoStacks => "no_stacks",
            Self::CoarseSites => "merged_sites",
        }
    }

    /// What it means to whoever reads the figures.
    const fn means(self) -> &'static str {
        match self {
            Self::CheapStacks => "using frame-pointer stacks only",
            Self::NoStacks => "call stacks disabled",
            Self::CoarseSites => "call sites merged per process",
        }
    }
}

/// What the agent takes.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Standing {
    /// Processor time since the start, in seconds.
    pub(crate) cpu_seconds: f64,
    /// Of the last seconds, in percent of one core.
    pub(crate) cpu_percent: f64,
    /// Resident memory.
    pub(crate) memory: Bytes,
    /// When it began, in seconds of the Unix clock.
    pub(crate) started: f64,
    /// Probes are on a driver.
    pub(crate) tracing: bool,
    /// Events that were applied.
    pub(crate) events: u64,
    /// Steps that were taken, in order.
    pub(crate) steps: Vec<Step>,
}

/// What is to be done, and told.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Change {
    /// The steps that hold from now on.
    pub(crate) steps: Vec<Step>,
    /// What to say.
    pub(crate) words: String,
}

/// Over this time processor time is added up.
const WINDOW: Duration = Duration::from_secs(10);

/// After a step its effect is waited for.
const SETTLE: Duration = Duration::from_secs(10);

/// A step is taken back after so long at less than half of what is allowed.
const QUIET: Duration = Duration::from_secs(600);

/// See the module.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Percent of one core.
    max_cpu: Option<f64>,
    max_memory: Option<Bytes>,
    /// Steps that make sense with what is traced.
    possible: Vec<Step>,
    taken: usize,
    /// When, and the processor time then.
    samples: VecDeque<Usage>,
    waits_until: Duration,
    quiet_since: Option<Duration>,
    said_enough: bool,
}

impl Budget {
    /// `possible`: the first steps fall away where stacks are not taken in full anyway.
    pub(crate) fn new(max_cpu: Option<f64>, max_memory: Option<Bytes>, first: Step) -> Self {
        Self {
            max_cpu,
            max_memory,
            possible: Step::ALL.into_iter().filter(|step| *step >= first).collect(),
            taken: 0,
            samples: VecDeque::new(),
            waits_until: Duration::ZERO,
            quiet_since: None,
            said_enough: false,
        }
    }

    /// Steps that were taken.
    pub(crate) fn steps(&self) -> &[Step] {
        self.possible.get(..self.taken).unwrap_or_default()
    }

    /// Percent of one core over the last seconds.
    pub(crate) fn cpu_percent(&self) -> f64 {
        self.percent(|usage| usage.cpu_seconds)
    }

    /// Of that, all but what answers take: giving something up does not make requests fewer, so that
    /// whoever asks a lot cannot make the agent give up anything.
    fn tracing_percent(&self) -> f64 {
        self.percent(|usage| usage.cpu_seconds - usage.answering_seconds)
    }

    fn percent(&self, seconds: impl Fn(&Usage) -> f64) -> f64 {
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else {
            return 0.0;
        };
        let time = last.at.saturating_sub(first.at).as_secs_f64();
        if time > 0.0 { (seconds(last) - seconds(first)) / time * 100.0 } else { 0.0 }
    }

    /// What answers may take, in percent of one core: what tracing leaves of the budget.
    pub(crate) fn for_answers(&self) -> f64 {
        self.max_cpu.map_or(Allowance::MOST, |most| most - self.tracing_percent())
    }

    /// To be told once a second what the agent takes. Says what changes, if anything.
    pub(crate) fn observe(&mut self, usage: Usage) -> Option<Change> {
        self.samples.push_back(usage);
        while self.samples.get(1).is_some_and(|next| usage.at - next.at >= WINDOW) {
            self.samples.pop_front();
        }
        let whole = self.samples.front().is_some_and(|first| usage.at - first.at >= WINDOW);
        let cpu = self.tracing_percent();
        let over_cpu = whole && self.max_cpu.is_some_and(|most| cpu > most);
        let over_memory = self.max_memory.is_some_and(|most| usage.memory > most);
        if (over_cpu || over_memory) && usage.at >= self.waits_until {
            self.quiet_since = None;
            return self.step_down(&usage, over_cpu, cpu);
        }
        let quiet = self.max_cpu.is_none_or(|most| cpu < most / 2.0)
            && self.max_memory.is_none_or(|most| usage.memory.0 < most.0 / 5 * 4);
        if !quiet {
            self.quiet_since = None;
            return None;
        }
        let since = *self.quiet_since.get_or_insert(usage.at);
        if usage.at - since < QUIET {
            return None;
        }
        self.quiet_since = None;
        self.step_up()
    }

    fn step_down(&mut self, usage: &Usage, over_cpu: bool, cpu: f64) -> Option<Change> {
        let why = match (over_cpu, self.max_cpu, self.max_memory) {
            (true, Some(most), _) => format!("{cpu:.1} % of a core, limit {most} %"),
            (_, _, most) => {
                format!("{} of memory, limit {}", usage.memory, most.unwrap_or_default())
            }
        };
        self.waits_until = usage.at + SETTLE;
        let Some(step) = self.possible.get(self.taken).copied() else {
            let first = !std::mem::replace(&mut self.said_enough, true);
            return first.then(|| Change {
                steps: self.steps().to_vec(),
                words: format!(
                    "over budget ({why}) with nothing left to drop; memory accounting stays exact. \
                     Raise the budget or trace less"
                ),
            });
        };
        self.taken += 1;
        Some(Change {
            steps: self.steps().to_vec(),
            words: format!("over budget ({why}): {}; memory accounting stays exact", step.means()),
        })
    }

    /// Takes back the last step; places that were put together stay so.
    fn step_up(&mut self) -> Option<Change> {
        let last = *self.steps().last()?;
        if last == Step::CoarseSites {
            return None;
        }
        self.taken -= 1;
        self.said_enough = false;
        let words = format!("back within budget: restored from \"{}\"", last.means());
        Some(Change { steps: self.steps().to_vec(), words })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Bytes = Bytes(100);

    /// Feeds seconds of a usage: percent of a core, memory.
    struct Clock {
        budget: Budget,
        at: u64,
        cpu: f64,
        /// Processor time of answers, and their percent of a core.
        answers: f64,
        asked: f64,
    }

    impl Clock {
        fn new(max_cpu: Option<f64>, max_memory: Option<Bytes>) -> Self {
            Self {
                budget: Budget::new(max_cpu, max_memory, Step::CheapStacks),
                at: 0,
                cpu: 0.0,
                answers: 0.0,
                asked: 0.0,
            }
        }

        fn run(&mut self, seconds: u64, percent: f64, memory: u64) -> Vec<String> {
            let mut words = Vec::new();
            for _ in 0..seconds {
                self.at += 1;
                self.cpu += percent / 100.0;
                self.answers += self.asked / 100.0;
                let usage = Usage {
                    at: Duration::from_secs(self.at),
                    cpu_seconds: self.cpu + self.answers,
                    answering_seconds: self.answers,
                    memory: Bytes(memory),
                };
                words.extend(self.budget.observe(usage).map(|change| change.words));
            }
            words
        }
    }

    #[test]
    fn stacks_are_given_up_step_by_step_and_each_step_is_told() {
        let mut clock = Clock::new(Some(5.0), None);
        assert_eq!(clock.run(60, 4.9, 1 << 30), [""; 0]);
        let told = clock.run(120, 9.0, 0);
        assert_eq!(told.len(), 4, "{told:?}");
        assert!(told[0].contains("frame-pointer stacks only"), "{told:?}");
        assert!(told[1].contains("call stacks disabled"), "{told:?}");
        assert!(told[2].contains("merged per process"), "{told:?}");
        assert!(told[3].contains("nothing left to drop"), "{told:?}");
        assert!(told.iter().all(|words| words.contains("memory accounting stays exact")));
        assert_eq!(clock.budget.steps(), Step::ALL);
    }

    #[test]
    fn a_short_peak_of_processor_time_changes_nothing() {
        let mut clock = Clock::new(Some(5.0), None);
        clock.run(30, 1.0, 0);
        assert_eq!(clock.run(2, 20.0, 0), [""; 0]);
        assert_eq!(clock.run(30, 1.0, 0), [""; 0]);
    }

    #[test]
    fn whoever_asks_a_lot_gets_what_is_left_and_nothing_is_given_up_for_it() {
        let mut clock = Clock::new(Some(5.0), None);
        clock.asked = 50.0;
        assert_eq!(clock.run(60, 3.0, 0), [""; 0]);
        assert!((clock.budget.for_answers() - 2.0).abs() < 1e-6, "{}", clock.budget.for_answers());
        assert!((clock.budget.cpu_percent() - 53.0).abs() < 1e-6, "{}", clock.budget.cpu_percent());
        let free = Clock::new(None, None);
        assert!((free.budget.for_answers() - Allowance::MOST).abs() < 1e-6);
    }

    #[test]
    fn too_much_memory_is_a_reason_too_and_a_step_has_time_to_work() {
        let mut clock = Clock::new(None, Some(MAX));
        let told = clock.run(1, 0.0, 101);
        assert!(told[0].contains("101 B of memory, limit 100 B"), "{told:?}");
        assert_eq!(clock.run(9, 0.0, 101), [""; 0]);
        assert_eq!(clock.budget.steps(), [Step::CheapStacks]);
    }

    #[test]
    fn a_step_is_taken_back_after_a_long_quiet_time_but_places_stay_together() {
        let mut clock = Clock::new(None, Some(MAX));
        clock.run(1, 0.0, 101);
        assert_eq!(clock.run(600, 0.0, 50), [""; 0]);
        assert_eq!(clock.run(5, 0.0, 50).len(), 1);
        assert_eq!(clock.budget.steps(), []);
        clock.run(60, 0.0, 101);
        assert_eq!(clock.budget.steps(), Step::ALL);
        assert_eq!(clock.run(2000, 0.0, 50), [""; 0]);
        assert_eq!(clock.budget.steps(), Step::ALL);
    }

    #[test]
    fn without_a_budget_nothing_is_given_up() {
        assert_eq!(Clock::new(None, None).run(100, 100.0, u64::MAX), [""; 0]);
    }
}
