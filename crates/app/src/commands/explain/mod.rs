//! `vramscope explain`: where the driver-reported memory of a process goes.

mod from_live;

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use engine::snapshot::SnapshotOptions;
use formats::report::explain::{self, ExplainHistory, ExplainReport};

use super::agent_query;
use super::file::replay;
use crate::Outcome;
use crate::cli::ExplainArgs;
use crate::files::input;
use crate::io::output;

/// Lists of the snapshots that explanations are derived from.
const SNAPSHOT_OPTIONS: SnapshotOptions =
    SnapshotOptions { top: 0, top_sites: 0, ..SnapshotOptions::DEFAULT };

/// Runs the verb.
pub(crate) fn run(options: &ExplainArgs) -> Result<Outcome> {
    match (&options.file, &options.agent) {
        (Some(file), _) => print(&from_recording(file)?, options),
        (None, Some(url)) => print(&from_agent(url, options)?, options),
        (None, None) => from_live::run(options),
    }
}

fn print(report: &ExplainReport, options: &ExplainArgs) -> Result<Outcome> {
    let text = |out: &mut dyn Write, style| Ok(explain::write(out, report, style, options.top)?);
    options.format.print(report, text).map(|()| Outcome::Success)
}

/// Explains the processes of a recording at their highest use.
fn from_recording(file: &Path) -> Result<ExplainReport> {
    input::require_recording(file)?;
    let mut history = ExplainHistory::default();
    let mut recorded = replay::read(file, &[], |ledger, at| {
        history.observe(&ledger.snapshot(at, &SNAPSHOT_OPTIONS));
    })?;
    history.observe(&recorded.ledger.snapshot(recorded.at, &SNAPSHOT_OPTIONS));
    let report = history.report(&recorded.context);
    if report.processes.is_empty() {
        output::log("the recording has no driver-reported usage (NVML or nvidia-smi)");
    }
    Ok(report)
}

fn from_agent(url: &str, options: &ExplainArgs) -> Result<ExplainReport> {
    let token = options.token_file.as_deref();
    let mut report: ExplainReport = agent_query::get(url, token, "/api/v1/explain")?;
    if !options.target.pid.is_empty() {
        report.processes.retain(|process| options.target.pid.contains(&process.pid));
    }
    Ok(report)
}
