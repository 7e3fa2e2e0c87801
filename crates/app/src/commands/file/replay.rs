//! `vramscope replay`: prints the final report of a trace again, from its recording. The bytes are
//! the same for the same options.

use std::io::Write;
use std::path::Path;

use anyhow::{Result, bail};
use engine::ledger::Ledger;
use engine::model::{FunctionId, Timestamp};
use engine::snapshot::{EndedHistory, SnapshotOptions};
use formats::WallClock;
use formats::export::{CaptureSource, GpuLabel, ReportContext};
use formats::import::{ImportError, SourceFormat, Warning};
use formats::recording::{FunctionTable, RecordingReader, RecordingRow};
use formats::report::live::text::TextStyle;
use formats::report::live::text::overview::LastOptions;
use formats::sanitize::sanitize;

use crate::Outcome;
use crate::cli::{LiveFormat, ReplayArgs};
use crate::files::input::Selection;
use crate::files::{input, leak_gate};
use crate::io::output;
use crate::io::output_file::shown;
use crate::live::print::{LiveView, check_stack_depth, print};

/// Runs the verb.
pub(crate) fn run(options: &ReplayArgs) -> Result<Outcome> {
    let format = options.format.get();
    check_stack_depth(options.stack_depth, format)?;
    let view = match options.kernels {
        true => LiveView::Activity,
        false => LiveView::of(options.by, options.allocations, format)?,
    };
    let path = &options.file;
    input::require_recording(path)?;
    let mut out = options.output.open(&[path])?;
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
    let outcome = leak_gate::evaluate_file(
        limit,
        path,
        Selection::default(),
        SourceFormat::Recording.scope(),
    )?;
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
    let mut state = RecordedState::default();
    state.ledger.add_wrappers(wrappers.iter().map(String::as_str));
    let mut at = Timestamp(0);
    while let Some(row) = reader.next_row()? {
        match &row {
            RecordingRow::Event(event) => at = at.max(event.time),
            RecordingRow::Tick(time) => {
                at = at.max(*time);
                reported(&mut state.ledger, *time);
            }
            RecordingRow::End(time) => at = *time,
            _ => {}
        }
        state.apply(row);
    }
    let clock = state.clock.take().ok_or_else(|| no_clock(path))?;
    let context = state.context(clock, reader.functions());
    let RecordedState { ledger, has_activity, .. } = state;
    Ok(ReplayedTrace { ledger, at, context, has_activity, warnings: reader.warnings() })
}

/// The rows of a recording so far.
#[derive(Default)]
pub(crate) struct RecordedState {
    pub(crate) ledger: Ledger,
    pub(crate) clock: Option<WallClock>,
    /// Host of the trace.
    pub(crate) host: String,
    gpus: Vec<GpuLabel>,
    source: Option<CaptureSource>,
    has_activity: bool,
}

impl RecordedState {
    pub(crate) fn apply(&mut self, row: RecordingRow) {
        match row {
            RecordingRow::Clock(clock) => self.clock = Some(output::clock(clock)),
            RecordingRow::Gpu(gpu) => self.gpus.push(gpu),
            RecordingRow::Event(event) => self.ledger.apply(&event),
            RecordingRow::About { key, value } => match &*key {
                "kernels" if &*value == "yes" => {
                    self.ledger = std::mem::take(&mut self.ledger).with_activity();
                    self.has_activity = true;
                }
                "source" => self.source = CaptureSource::from_name(&value),
                "hostname" => self.host = value.to_string(),
                _ => {}
            },
            RecordingRow::Tick(_) | RecordingRow::End(_) | RecordingRow::Unknown => {}
        }
    }

    /// Returns the names and the clock of reports.
    pub(crate) fn context(&self, clock: WallClock, functions: &FunctionTable) -> ReportContext {
        ReportContext {
            recorded: functions.clone(),
            gpus: self.gpus.clone(),
            source: Some(self.source.unwrap_or(CaptureSource::Probes)),
            ..ReportContext::new(clock)
        }
    }
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
pub(crate) fn known_function(name: &str) -> Option<FunctionId> {
    capture::hooks::function_id(name)
}
