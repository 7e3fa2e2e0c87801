//! Leak thresholds that make verbs fail (`--fail-on-leak`): the same for traces and files.

use std::path::Path;

use anyhow::Result;
use engine::analysis::MemoryScope;
use engine::ledger::FileLedger;
use engine::model::AllocationChange;
use engine::snapshot::{NotFreed, Snapshot};
use engine::view::{GpuFacts, View};
use formats::import::collecting_sink::FileInfo;
use formats::report::live::text::format_count;
use formats::report::view::{gpu_facts, leak_sentence, site_location};
use formats::sanitize::sanitize;

use super::input::{self, Selection};
use crate::Outcome;
use crate::io::output;
use crate::parse_units::LeakThreshold;

/// A threshold that observes the changes of a file.
pub(crate) struct LeakGate {
    threshold: LeakThreshold,
    suspects: FileLedger,
}

impl LeakGate {
    pub(crate) fn new(threshold: LeakThreshold, scope: MemoryScope) -> Self {
        Self { threshold, suspects: FileLedger::new(scope) }
    }

    pub(crate) fn observe(&mut self, change: &AllocationChange) {
        self.suspects.observe(change);
    }

    /// Logs leaks beyond the threshold.
    pub(crate) fn evaluate(self, info: &FileInfo) -> Outcome {
        let state = info.end_state(self.suspects);
        evaluate(&state.snapshot, &gpu_facts(&state.gpus), self.threshold)
    }
}

/// Logs the leaks of a snapshot beyond the threshold.
pub(crate) fn evaluate(
    snapshot: &Snapshot,
    gpus: &[GpuFacts<'_>],
    threshold: LeakThreshold,
) -> Outcome {
    let view = View::of(snapshot, gpus);
    for leak in &view.leaks {
        output::report_failure(&sanitize(&leak_sentence(leak)));
    }
    let mut has_failed = !view.leaks.is_empty();
    if let LeakThreshold::NotFreed(limit) = threshold {
        for process in snapshot.not_freed.iter().filter(|process| process.bytes > limit) {
            output::report_failure(&sanitize(&not_freed_sentence(process)));
            has_failed = true;
        }
    }
    if has_failed { Outcome::Findings } else { Outcome::Success }
}

fn not_freed_sentence(process: &NotFreed) -> String {
    let program = process.identity.program_or(&process.name);
    let place = process.sites.first().map_or_else(String::new, |site| {
        format!(", allocated at {}", site_location(site.site, &site.frames))
    });
    let more = match process.sites.len() {
        0 | 1 => String::new(),
        n => format!(" and {} more sites", n - 1),
    };
    format!(
        "leak: process {} ({program}) exited with {} in {} not freed{place}{more}",
        process.key.pid,
        process.bytes,
        format_count(process.allocations),
    )
}

/// Reads a file again to check its threshold.
pub(crate) fn evaluate_file(
    threshold: Option<LeakThreshold>,
    path: &Path,
    selection: Selection<'_>,
    scope: MemoryScope,
) -> Result<Outcome> {
    let Some(threshold) = threshold else { return Ok(Outcome::Success) };
    let mut gate = LeakGate::new(threshold, scope);
    let input = input::read(path, selection, &mut |change| gate.observe(change))?;
    Ok(gate.evaluate(&input.info))
}
