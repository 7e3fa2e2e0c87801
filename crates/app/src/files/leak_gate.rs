//! Leak thresholds that make verbs on files fail (`--fail-on-leak`).

use std::path::Path;

use anyhow::Result;
use engine::analysis::MemoryScope;
use engine::analysis::groups::GroupTable;
use engine::analysis::leaks::LeakReport;
use engine::analysis::suspects::SuspectAnalysis;
use engine::model::change::AllocationChange;
use engine::model::units::Bytes;
use engine::verdict::{SiteVerdict, Verdict};
use formats::import::collecting_sink::{ChangeFilter, FileInfo};

use super::input;
use crate::Outcome;
use crate::io::output;
use crate::parse_units::LeakThreshold;

/// A threshold that observes the changes of a file.
pub(crate) enum LeakGate {
    NotFreed(Bytes, GroupTable),
    Suspects(Box<SuspectAnalysis>),
}

impl LeakGate {
    pub(crate) fn new(threshold: LeakThreshold, scope: MemoryScope) -> Self {
        match threshold {
            LeakThreshold::NotFreed(limit) => Self::NotFreed(limit, GroupTable::new(scope)),
            LeakThreshold::Suspects => Self::Suspects(Box::new(SuspectAnalysis::new(scope))),
        }
    }

    pub(crate) fn observe(&mut self, change: &AllocationChange) {
        match self {
            Self::NotFreed(_, groups) => groups.observe(change),
            Self::Suspects(suspects) => suspects.observe(change),
        }
    }

    /// Logs leaks beyond the threshold.
    pub(crate) fn evaluate(self, info: &FileInfo) -> Outcome {
        match self {
            Self::NotFreed(limit, groups) => {
                let leaked = Bytes(LeakReport::of(&groups).avoidable().bytes);
                if leaked <= limit {
                    return Outcome::Success;
                }
                output::log(&format!("{leaked} of device memory never freed (limit {limit})"));
            }
            Self::Suspects(suspects) => {
                let is_leak = |site: &&SiteVerdict| site.verdict == Verdict::Leak;
                let objects_and_tensors = info.verdicts.iter().filter(is_leak).count();
                match info.findings(*suspects).suspects.len() + objects_and_tensors {
                    0 => return Outcome::Success,
                    1 => output::log("1 leak suspect"),
                    n => output::log(&format!("{n} leak suspects")),
                }
            }
        }
        Outcome::Findings
    }
}

/// Reads a file again to check its threshold.
pub(crate) fn evaluate_file(
    threshold: Option<LeakThreshold>,
    path: &Path,
    filter: ChangeFilter,
    scope: MemoryScope,
) -> Result<Outcome> {
    let Some(threshold) = threshold else { return Ok(Outcome::Success) };
    let mut gate = LeakGate::new(threshold, scope);
    let input = input::read(path, filter, &mut |change, _| gate.observe(change))?;
    Ok(gate.evaluate(&input.info))
}
