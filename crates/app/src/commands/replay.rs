//! `vramscope replay`: prints the final report of a trace again, from its recording. The bytes are
//! the same for the same options.

use std::io::Write;
use std::path::Path;

use anyhow::{Result, bail};
use engine::ledger::Ledger;
use engine::model::ids::FunctionId;
use engine::model::units::Timestamp;
use engine::snapshot::{EndedHistory, SnapshotOptions};
use formats::export::{CaptureSource, ReportContext};
use formats::import::{ImportError, SourceFormat, Warning};
use formats::recording::{RecordingReader, RecordingRow};
use formats::report::live::text::TextStyle;
use formats::report::live::text::overview::LastOptions;
use formats::sanitize::sanitize;

use crate::Outcome;
use crate::cli::ReplayArgs;
use crate::files::input::Selection;
use crate::files::{input, leak_gate};
use crate::io::output;
use crate::io::output_file::shown;
use crate::live::print::{LiveFormat, LiveView, check_stack_depth, print};

/// Runs the verb.
pub(crate) fn run(options: &ReplayArgs) -> Result<Outcome> {
    let format = LiveFormat::of(&options.format);
    check_stack_depth(options.stack_depth, format)?;
    let view = match options.kernels {
        true => LiveView::Activity,
        false => LiveView::of(options.by, options.allocations, format)?,
    };
    let path = &options.file;
    let source = input::detect(path)?;
    if source != SourceFormat::Recording {
        bail!("only recordings can be replayed; this is a {} file", source.name());
    }
    let mut out = output::results_from(&[path], options.output.as_deref(), options.force)?;
    let (top, sites) = match format {
        LiveFormat::Text => (10, 10),
        LiveFormat::Json => (1000, 100),
    };
    let snapshot_options = SnapshotOptions {
        top: options.top.unwrap_or(top),
        top_sites: options.top.unwrap_or(sites),
        ..SnapshotOptions::default()
    };
    out.style.stack_depth = options.stack_depth.unwrap_or(out.style.stack_depth);
    let style = out.style;
    let more = format!("vramscope report {} --leak 1", shown(path));
    let last = LastOptions {
        top: options.top.unwrap_or(DEFAULT_LAST_ROWS),
        leak: options.leak,
        more: &more,
    };
    let wrappers = &options.wrappers.wrapper;
    let print_options = PrintOptions { view, format, style, last, wrappers };
    let warnings = final_report(path, &print_options, &snapshot_options, &mut *out.writer)?;
    for warning in warnings {
        output::log(&sanitize(&warning.text));
    }
    let limit = options.limit.fail_on_leak;
    let outcome = leak_gate::evaluate_file(limit, path, Selection::default(), source.scope())?;
    out.finish()?;
    Ok(options.limit.outcome(outcome))
}

/// Rows per list without `--top`.
const DEFAULT_LAST_ROWS: usize = 20;

/// How a report is printed.
#[derive(Clone, Copy)]
pub(crate) struct PrintOptions<'a> {
    pub(crate) view: LiveView,
    pub(crate) format: LiveFormat,
    pub(crate) style: TextStyle,
    pub(crate) last: LastOptions<'a>,
    /// Functions that are never the headline of a call stack.
    pub(crate) wrappers: &'a [String],
}

/// A recording that was read to its end.
pub(crate) struct ReplayedTrace {
    /// The ledger after all events.
    pub(crate) ledger: Ledger,
    /// End of the trace.
    pub(crate) at: Timestamp,
    /// Names, and the clock for wall-clock times.
    pub(crate) context: ReportContext,
    /// Whether launches and copies were recorded.
    pub(crate) has_activity: bool,
    /// Warnings about the file.
    pub(crate) warnings: Vec<Warning>,
}

/// Reads a recording to its end, or up to the point where it is truncated. `reported` is called at
/// each report of the trace.
pub(crate) fn read(
    path: &Path,
    wrappers: &[String],
    mut reported: impl FnMut(&mut Ledger, Timestamp),
) -> Result<ReplayedTrace> {
    let mut reader = RecordingReader::open(path, known_function)?;
    let mut ledger = Ledger::new();
    ledger.add_wrappers(wrappers.iter().map(String::as_str));
    let (mut clock, mut gpus) = (None, Vec::new());
    let mut at = Timestamp(0);
    let mut has_activity = false;
    let mut source = CaptureSource::Probes;
    while let Some(row) = reader.next_row()? {
        match row {
            RecordingRow::Clock(value) => clock = Some(value),
            RecordingRow::Gpu(gpu) => gpus.push(gpu),
            RecordingRow::Event(event) => {
                at = at.max(event.time);
                ledger.apply(&event);
            }
            RecordingRow::Tick(time) => {
                at = at.max(time);
                reported(&mut ledger, time);
            }
            RecordingRow::End(time) => at = time,
            RecordingRow::About { key, value } if &*key == "kernels" && &*value == "yes" => {
                ledger = ledger.with_activity();
                has_activity = true;
            }
            RecordingRow::About { key, value } if &*key == "source" => {
                source = CaptureSource::parse(&value).unwrap_or(source);
            }
            RecordingRow::About { .. } | RecordingRow::Unknown => {}
        }
    }
    let clock = output::clock(clock.ok_or_else(|| no_clock(path))?);
    let recorded = reader.functions().clone();
    let source = Some(source);
    let context =
        ReportContext { clock, function: |_| "an unknown function", recorded, gpus, source };
    Ok(ReplayedTrace { ledger, at, context, has_activity, warnings: reader.warnings() })
}

/// Writes the final report of a recorded trace. Returns the warnings about the file, which go to
/// standard error.
pub(crate) fn final_report(
    path: &Path,
    options: &PrintOptions<'_>,
    snapshot_options: &SnapshotOptions,
    out: &mut dyn Write,
) -> Result<Vec<Warning>> {
    let PrintOptions { view, format, style, last: last_options, wrappers } = *options;
    // Earlier reports decide which exited processes the final one lists.
    let mut ended = EndedHistory::default();
    let recorded = read(path, wrappers, |ledger, at| {
        ended.push_snapshot(ledger.snapshot(at, snapshot_options));
    })?;
    let ReplayedTrace { mut ledger, at, context, has_activity, mut warnings } = recorded;
    if view == LiveView::Activity && !has_activity {
        let name = path.to_string_lossy();
        let name = sanitize(&name);
        bail!("{name}: launches and copies were not recorded; record again with --kernels");
    }
    let mut last = ledger.snapshot(at, &SnapshotOptions { ended_sites: true, ..*snapshot_options });
    ended.merge_into(&mut last);
    let style = TextStyle { last: true, ..style };
    print(out, view, format, &last, &context, style, &last_options)?;
    let unlisted = ended.dropped() + ledger.dropped_ended();
    if unlisted > 0 {
        let text = "exited processes are not listed in the final report".to_owned();
        warnings.push(Warning { text, count: unlisted, inexact: false });
    }
    Ok(warnings)
}

fn no_clock(path: &Path) -> ImportError {
    ImportError::Broken {
        path: path.into(),
        problem: "the file ends before its header".to_owned(),
        location: "its end".to_owned(),
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
