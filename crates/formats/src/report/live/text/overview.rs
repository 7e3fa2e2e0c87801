//! The default report of a trace: about one line per process that matters.

use std::io::{self, Write};

use engine::model::Mark;
use engine::snapshot::{ProcessView, Snapshot};
use engine::verdict::Anomaly;
use engine::view::{ProcessRow, View};

use super::{TextStyle, allocators, api_misuse, failures, sharing};
use crate::export::ReportContext;
use crate::report::kernels;
use crate::report::tables::incidents::mark_text;
use crate::report::text_page::TextPage;
use crate::report::verdict::anomaly_summary;
use crate::report::view::text::write_block;
use crate::report::view::{
    gpu_facts, leak_details, site_location, write_last, write_out_of_memory,
};
use crate::sanitize::sanitize;

/// Maximum number of anomalies per report.
const MAX_ANOMALIES: usize = 10;

/// Maximum number of marks per report, the newest.
const MAX_MARKS: usize = 10;

/// Maximum number of processes with details besides their line.
const MAX_SECTIONS: usize = 8;

/// Options of the last report.
#[derive(Clone, Copy, Debug)]
pub struct LastOptions<'a> {
    /// Maximum number of rows per list.
    pub top: usize,
    /// Leak to show with its evidence and stack.
    pub leak: Option<usize>,
    /// How to see the evidence of a leak.
    pub more: &'a str,
}

/// Writes what happened since the last report: out-of-memory errors, anomalies and marks.
pub fn news(
    out: &mut dyn Write,
    snapshot: &Snapshot,
    context: &ReportContext,
    style: TextStyle,
) -> io::Result<()> {
    write_news(&mut TextPage::new(out, style), snapshot, context)
}

fn write_news(
    out: &mut TextPage<'_>,
    snapshot: &Snapshot,
    context: &ReportContext,
) -> io::Result<()> {
    write_out_of_memory(out, &snapshot.out_of_memory, &context.gpus, &context.clock)?;
    anomalies(out, &snapshot.anomalies, context)?;
    marks(out, &snapshot.marks, context)
}

/// Writes the newest marks, one line each.
fn marks(out: &mut TextPage<'_>, marks: &[Mark], context: &ReportContext) -> io::Result<()> {
    let hidden = marks.len().saturating_sub(MAX_MARKS);
    out.more(hidden as u64, "earlier marks")?;
    for mark in marks.iter().skip(hidden) {
        let of = mark.pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
        let at = context.clock.time_of_day(mark.at);
        let text = format!("MARK at {at}: {}{of}", mark_text(mark));
        out.wrapped(TextStyle::plain, &text, 2)?;
    }
    Ok(())
}

/// Writes the block of an interim report.
pub fn block(
    out: &mut dyn Write,
    snapshot: &Snapshot,
    context: &ReportContext,
    style: TextStyle,
) -> io::Result<()> {
    let out = &mut TextPage::new(out, style);
    let facts = gpu_facts(&context.gpus);
    let view = View::of(snapshot, &facts);
    write_block(out, &view, &context.clock)?;
    sections(out, &view, context)
}

/// Writes the last report. Returns whether the requested leak exists.
pub fn last(
    out: &mut dyn Write,
    snapshot: &Snapshot,
    context: &ReportContext,
    style: TextStyle,
    options: &LastOptions<'_>,
) -> io::Result<bool> {
    let out = &mut TextPage::new(out, style);
    let facts = gpu_facts(&context.gpus);
    let view = View::of(snapshot, &facts);
    let LastOptions { top, leak, more } = *options;
    write_last(out, &view, Some(&context.clock), top, more)?;
    write_news(out, snapshot, context)?;
    sections(out, &view, context)?;
    kernels::text::uncounted(out, snapshot)?;
    match leak {
        Some(number) => {
            writeln!(out)?;
            leak_details(out, &view, number)
        }
        None => Ok(true),
    }
}

/// Writes what else is known about processes: allocators, failed calls, API misuse, launches.
fn sections(out: &mut TextPage<'_>, view: &View<'_>, context: &ReportContext) -> io::Result<()> {
    let has_section = |process: &ProcessView| {
        out.style.last && process.allocators.iter().any(allocators::has_section)
            || !process.shared_memory.is_empty()
            || !process.failures.is_empty()
            || !process.api_misuse.is_empty()
            || process.activity.as_ref().is_some_and(|activity| activity.launches > 0)
    };
    let rows: Vec<_> = view.processes.iter().filter(|row| has_section(row.process)).collect();
    let shown = rows.len().min(out.style.rows.unwrap_or(MAX_SECTIONS).min(MAX_SECTIONS));
    for row in rows.iter().take(shown) {
        section(out, row, context)?;
    }
    let what = "more processes with failed calls or launches (see --json)";
    out.more((rows.len() - shown) as u64, what)
}

fn section(
    out: &mut TextPage<'_>,
    row: &ProcessRow<'_>,
    context: &ReportContext,
) -> io::Result<()> {
    let process = row.process;
    writeln!(out, "{} {}", out.style.bold(&process.key.pid.to_string()), sanitize(row.program))?;
    let is_last = out.style.last;
    for allocator in process.allocators.iter().filter(|_| is_last) {
        allocators::section(out, allocator, context)?;
    }
    sharing::section(out, process)?;
    failures(out, process, context)?;
    api_misuse(out, &process.api_misuse)?;
    match process.activity.as_ref().filter(|activity| activity.launches > 0) {
        Some(activity) => kernels::text::section(out, activity),
        None => Ok(()),
    }
}

/// Writes anomalies, one line each.
pub(super) fn anomalies(
    out: &mut TextPage<'_>,
    anomalies: &[Anomaly],
    context: &ReportContext,
) -> io::Result<()> {
    for anomaly in anomalies.iter().take(MAX_ANOMALIES) {
        let location = site_location(anomaly.site, &anomaly.frames);
        let process = match anomaly.tid.filter(|tid| tid.0 != anomaly.pid.0) {
            Some(tid) => format!(
                "{} (pid {}, thread {}:{tid})",
                anomaly.process, anomaly.pid, anomaly.thread
            ),
            None => format!("{} (pid {})", anomaly.process, anomaly.pid),
        };
        let text = format!(
            "ANOMALY at {}: {process}, {location}: {}",
            context.clock.time_of_day(anomaly.at),
            anomaly_summary(anomaly)
        );
        out.wrapped(TextStyle::warning, &sanitize(&text), 2)?;
    }
    out.more(anomalies.len().saturating_sub(MAX_ANOMALIES) as u64, "more anomalies")
}
