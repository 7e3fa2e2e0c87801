//! Options of checks that make a verb fail.

use clap::Args;

use crate::Outcome;
use crate::parse_units;
use crate::parse_units::LeakThreshold;

/// Default exit code of a failed check: commands rarely use it, and it is not an error of vramscope.
const CHECK_FAILED: u8 = 3;

/// Leaks that make a verb fail.
#[derive(Args)]
pub(crate) struct FailOnLeakArgs {
    /// Fail if anything leaks: exit with status 3 if a site is a leak suspect, or if a process
    /// without a caching allocator exited with more than SIZE (default 0) not freed; with
    /// `suspects`: only for suspects
    #[arg(
        long,
        value_name = "SIZE|suspects",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "0",
        value_parser = parse_units::leak_limit
    )]
    pub(crate) fail_on_leak: Option<LeakThreshold>,
    /// With --fail-on-leak: exit with CODE instead of 3 if there is a leak
    #[arg(
        long,
        value_name = "CODE",
        default_value_t = CHECK_FAILED,
        hide_default_value = true,
        requires = "fail_on_leak",
        value_parser = clap::value_parser!(u8).range(1..)
    )]
    pub(crate) leak_exit_code: u8,
}

impl FailOnLeakArgs {
    /// Returns the outcome, with the exit code of the option for findings.
    pub(crate) fn outcome(&self, outcome: Outcome) -> Outcome {
        if outcome == Outcome::Findings { Outcome::Code(self.leak_exit_code) } else { outcome }
    }
}
