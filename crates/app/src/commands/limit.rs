//! Leak thresholds that make verbs on files fail (`--fail-on-leak`).

use std::path::Path;

use anyhow::Result;
use engine::analysis::Measure;
use engine::analysis::groups::Groups;
use engine::analysis::leakage::Leakage;
use engine::analysis::suspects::Suspects;
use engine::change::Change;
use engine::units::Bytes;
use engine::verdict::{Judgement, Verdict};
use formats::import::gather::{Facts, Only};

use super::input;
use crate::quantity::LeakLimit;
use crate::{Outcome, output};

/// A threshold that observes the changes of a file.
pub(crate) enum Limit {
    NotFreed(Bytes, Groups),
    Suspects(Box<Suspects>),
}

impl Limit {
    pub(crate) fn new(limit: LeakLimit, measure: Measure) -> Self {
        match limit {
            LeakLimit::NotFreed(limit) => Self::NotFreed(limit, Groups::new(measure)),
            LeakLimit::Suspects => Self::Suspects(Box::new(Suspects::new(measure))),
        }
    }

    pub(crate) fn change(&mut self, change: &Change) {
        match self {
            Self::NotFreed(_, groups) => groups.change(change),
            Self::Suspects(suspects) => suspects.change(change),
        }
    }

    /// Logs leaks beyond the threshold.
    pub(crate) fn judge(self, facts: &Facts) -> Outcome {
        match self {
            Self::NotFreed(limit, groups) => {
                let leaked = Bytes(Leakage::of(&groups).avoidable().bytes);
                if leaked <= limit {
                    return Outcome::Fine;
                }
                output::complain(&format!("{leaked} of device memory never freed (limit {limit})"));
            }
            Self::Suspects(suspects) => {
                let leaks = |judged: &&Judgement| judged.verdict == Verdict::Leak;
                let objects_and_tensors = facts.judged.iter().filter(leaks).count();
                match facts.findings(*suspects).suspects.len() + objects_and_tensors {
                    0 => return Outcome::Fine,
                    1 => output::complain("1 leak suspect"),
                    n => output::complain(&format!("{n} leak suspects")),
                }
            }
        }
        Outcome::Findings
    }
}

/// Reads a file again to check its threshold.
pub(crate) fn evaluate_file(
    limit: Option<LeakLimit>,
    path: &Path,
    only: Only,
    measure: Measure,
) -> Result<Outcome> {
    let Some(limit) = limit else { return Ok(Outcome::Fine) };
    let mut limit = Limit::new(limit, measure);
    let input = input::read(path, only, &mut |change, _| limit.change(change))?;
    Ok(limit.judge(&input.facts))
}
