//! `vramscope advise`: suggests how to free GPU memory. It changes nothing.

mod from_live;

use std::path::Path;

use anyhow::{Context, Result, bail};
use engine::model::Pid;
use engine::snapshot::{ProcessView, Snapshot, SnapshotOptions};
use formats::export::ReportContext;
use formats::import;
use formats::report::advice::{self, AdviceReport, AdviceRequest};
use formats::report::incident::{self, INCIDENT_FILE};
use formats::sanitize::sanitize;

use super::agent_query;
use super::file::replay;
use crate::Outcome;
use crate::cli::AdviseArgs;
use crate::files::input;
use crate::io::output_file::shown;
use crate::live::program_socket::ProgramSocket;

/// Lists of the snapshot that advice is derived from.
const SNAPSHOT_OPTIONS: SnapshotOptions =
    SnapshotOptions { top: 1, top_sites: 200, ..SnapshotOptions::DEFAULT };

/// Runs the verb.
pub(crate) fn run(options: &AdviseArgs) -> Result<Outcome> {
    let mut advice = match (&options.file, &options.agent) {
        (Some(file), _) if file.is_dir() => from_incident_dir(file)?,
        (Some(file), _) => from_recording(file, options)?,
        (None, Some(url)) => {
            agent_query::get(url, options.token_file.as_deref(), "/api/v1/advice")?
        }
        (None, None) => from_host(options)?,
    };
    narrow(&mut advice, options)?;
    for gpu in &mut advice.gpus {
        options.need.iter().for_each(|need| gpu.evaluate_need(*need));
    }
    options.format.print(&advice, |out, style| Ok(advice::write(out, &advice, style)?))?;
    let met = advice.gpus.iter().any(|gpu| gpu.need.is_some_and(|need| need.without_data_loss));
    Ok(if options.need.is_none() || met { Outcome::Success } else { Outcome::Findings })
}

/// Keeps only the GPU and the processes that the options select.
fn narrow(advice: &mut AdviceReport, options: &AdviseArgs) -> Result<()> {
    if let Some(requested) = options.gpu {
        let known: Vec<String> =
            advice.gpus.iter().filter_map(|gpu| gpu.gpu).map(|gpu| gpu.to_string()).collect();
        advice.gpus.retain(|gpu| gpu.gpu == Some(requested));
        if advice.gpus.is_empty() {
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            bail!("unknown GPU {requested}; available: {known}");
        }
    }
    if !options.pid.is_empty() {
        for gpu in &mut advice.gpus {
            gpu.steps.retain(|step| options.pid.contains(&step.pid));
        }
    }
    Ok(())
}

/// Returns the advice stored in an incident directory, from the time of the error.
fn from_incident_dir(dir: &Path) -> Result<AdviceReport> {
    let file = dir.join(INCIDENT_FILE);
    let invalid =
        || format!("{} is not an incident directory ({INCIDENT_FILE} is missing)", shown(dir));
    import::check_file(&file).with_context(invalid)?;
    let object = incident::read(&file).with_context(invalid)?;
    if object.version > incident::VERSION {
        bail!(
            "{} was written by a newer vramscope (incident version {}, supported: {}); use that one",
            shown(dir),
            object.version,
            incident::VERSION
        );
    }
    let note = format!("state at {} ({})", sanitize(&object.time), sanitize(&object.title));
    Ok(AdviceReport { time: object.time, gpus: object.advice, notes: vec![note] })
}

/// Returns advice for the end of a recording.
fn from_recording(file: &Path, options: &AdviseArgs) -> Result<AdviceReport> {
    input::require_recording(file)?;
    let mut recorded = replay::read(file, &[], |_, _| {})?;
    let snapshot = recorded.ledger.snapshot(recorded.at, &SNAPSHOT_OPTIONS);
    let mut advice = from_snapshot(&snapshot, &recorded.context, options, false);
    advice.notes.push("state at the end of the recording".into());
    Ok(advice)
}

/// Derives advice from a snapshot of this host or of a recording.
fn from_snapshot(
    snapshot: &Snapshot,
    context: &ReportContext,
    options: &AdviseArgs,
    local: bool,
) -> AdviceReport {
    let only: Vec<Pid> = options.pid.iter().copied().map(Pid).collect();
    let idle = |process: &ProcessView| {
        let work = process.activity.as_ref()?;
        (work.launches == 0).then_some(work.window)
    };
    let own = local.then(|| Pid(std::process::id()));
    let request =
        AdviceRequest { gpu: None, only: &only, requester: None, cause: None, idle: &idle, own };
    advice::advice_report(&request, snapshot, context)
}

fn from_host(options: &AdviseArgs) -> Result<AdviceReport> {
    let (snapshot, context) = from_live::observe(options, &SNAPSHOT_OPTIONS)?;
    let mut advice = from_snapshot(&snapshot, &context, options, true);
    for pid in snapshot.processes.iter().map(|process| process.key.pid) {
        if ProgramSocket::find(pid).is_ok_and(|program| program.can_reclaim()) {
            let note =
                format!("process {pid} frees memory on request: `vramscope reclaim -p {pid}`");
            advice.notes.push(note);
        }
    }
    Ok(advice)
}
