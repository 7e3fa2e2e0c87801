//! What the agent itself takes, and what it gives up when that is too much. Memory accounting is never
//! given up.

use engine::units::Bytes;

/// Steps down, in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Step {
    /// Stacks along frame pointers only.
    CheapStacks,
    /// No stacks: sites are one for each process and kind.
    NoStacks,
}

impl Step {
    /// The word for it in messages, the API and alerts.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::CheapStacks => "cheap_stacks",
            Self::NoStacks => "no_stacks",
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
    /// Events that were applied.
    pub(crate) events: u64,
    /// Steps that were taken, in order.
    pub(crate) steps: Vec<Step>,
}
