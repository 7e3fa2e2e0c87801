//! `vramscope replay`: prints the final report of a trace again, from its recording. The bytes are
//! the same for the same options.

use std::io::Write;
use std::path::Path;

use anyhow::{Result, bail};
use engine::ids::FunctionId;
use engine::ledger::Ledger;
use engine::snapshot::View;
use engine::units::Moment;
use formats::export::Names;
use formats::export::text::Style;
use formats::import::gather::Only;
use formats::import::{Error, Source, Warning};
use formats::plain::plain;
use formats::recording::{Reader, Row};

use super::ended::Ended;
use super::print::{Format, Subject, check_stack_depth, print};
use super::{input, limit};
use crate::cli::Replay;
use crate::{Outcome, output};

/// Runs the verb.
pub(crate) fn run(options: &Replay) -> Result<Outcome> {
    let format = Format::of(&options.format);
    check_stack_depth(options.stack_depth, format)?;
    let subject = if options.kernels { Subject::Work } else { Subject::by(options.by, format)? };
    let path = &options.file;
    let source = input::recognise(path)?;
    if source != Source::Recording {
        bail!("only recordings can be replayed; this is a {} file", source.name());
    }
    let mut out = output::results_from(&[path], options.output.as_deref(), options.force)?;
    let (top, sites) = match format {
        Format::Text => (10, 10),
        Format::Json => (1000, 100),
    };
    let view = View {
        top: options.top.unwrap_or(top),
        top_sites: options.top.unwrap_or(sites),
        ..View::default()
    };
    out.style.stack_depth = options.stack_depth.unwrap_or(out.style.stack_depth);
    let style = out.style;
    let warnings = final_report(path, subject, format, &view, style, &mut *out.writer)?;
    for warning in warnings {
        output::complain(&plain(&warning.text));
    }
    let limit = options.limit.fail_on_leak;
    let outcome = limit::evaluate_file(limit, path, Only::default(), source.measure())?;
    out.finish()?;
    Ok(options.limit.outcome(outcome))
}

/// A recording that was read to its end.
pub(crate) struct Recorded {
    /// The ledger after all events.
    pub(crate) ledger: Ledger,
    /// End of the trace.
    pub(crate) at: Moment,
    /// Names, and the clock for wall-clock times.
    pub(crate) names: Names,
    /// Whether launches and copies were recorded.
    pub(crate) has_work: bool,
    /// Warnings about the file.
    pub(crate) warnings: Vec<Warning>,
}

/// Reads a recording to its end, or up to the point where it is truncated. `reported` is called at
/// each report of the trace.
pub(crate) fn read(path: &Path, mut reported: impl FnMut(&mut Ledger, Moment)) -> Result<Recorded> {
    let mut reader = Reader::open(path, known_function)?;
    let mut ledger = Ledger::new();
    let (mut clock, mut gpus) = (None, Vec::new());
    let mut at = Moment(0);
    let mut has_work = false;
    while let Some(row) = reader.next_row()? {
        match row {
            Row::Clock(value) => clock = Some(value),
            Row::Gpu(gpu) => gpus.push(gpu),
            Row::Event(event) => {
                at = at.max(event.at);
                ledger.apply(&event);
            }
            Row::Tick(time) => {
                at = at.max(time);
                reported(&mut ledger, time);
            }
            Row::End(time) => at = time,
            Row::About { key, value } if &*key == "kernels" && &*value == "yes" => {
                ledger = ledger.following_work();
                has_work = true;
            }
            Row::About { .. } | Row::Unknown => {}
        }
    }
    let clock = clock.ok_or_else(|| no_clock(path))?;
    let recorded = reader.functions().clone();
    let names = Names { clock, function: |_| "an unknown function", recorded, gpus };
    Ok(Recorded { ledger, at, names, has_work, warnings: reader.warnings() })
}

/// Writes the final report of a recorded trace. Returns the warnings about the file, which go to
/// standard error.
pub(crate) fn final_report(
    path: &Path,
    subject: Subject,
    format: Format,
    view: &View,
    style: Style,
    out: &mut dyn Write,
) -> Result<Vec<Warning>> {
    // Earlier reports decide which exited processes the final one lists.
    let mut ended = Ended::default();
    let recorded = read(path, |ledger, at| ended.remember(ledger.snapshot(at, view)))?;
    let Recorded { mut ledger, at, names, has_work, mut warnings } = recorded;
    if subject == Subject::Work && !has_work {
        let name = path.to_string_lossy();
        let name = plain(&name);
        bail!("{name}: launches and copies were not recorded; record again with --kernels");
    }
    let mut last = ledger.snapshot(at, &View { ended_sites: true, ..*view });
    ended.recall_into(&mut last);
    let style = Style { last: true, ..style };
    print(out, subject, format, &last, &names, style)?;
    let unlisted = ended.dropped() + ledger.unlisted_ends();
    if unlisted > 0 {
        let text = "exited processes are not listed in the final report".to_owned();
        warnings.push(Warning { text, count: unlisted, inexact: false });
    }
    Ok(warnings)
}

fn no_clock(path: &Path) -> Error {
    Error::Broken {
        path: path.into(),
        what: "the file ends before its header".to_owned(),
        place: "its end".to_owned(),
        advice: "record again".to_owned(),
    }
}

/// Returns the row of a driver function in the hook table of this build.
#[cfg(feature = "capture")]
pub(crate) fn known_function(name: &str) -> Option<FunctionId> {
    capture::hooks::function_id(name)
}

/// This build has no hook table: functions keep the ids of the recording.
#[cfg(not(feature = "capture"))]
pub(crate) fn known_function(_: &str) -> Option<FunctionId> {
    None
}
