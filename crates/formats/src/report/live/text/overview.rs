//! The default report of a trace: about one line per process that matters.

use std::io::{self, Write};

use engine::model::{Mark, MarkKind};
use engine::snapshot::{ProcessView, Snapshot};
use engine::verdict::Anomaly;
use engine::view::{ProcessRow, View};

use super::{TextStyle, allocators, api_misuse, failures};
use crate::export::ReportContext;
use crate::report::kernels;
use crate::report::verdict::anomaly_summary;
use crate::report::view::text::write_block;
use crate::report::view::{
    gpu_facts, site_location, wrap, write_last, write_leak, write_out_of_memory,
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
    write_out_of_memory(out, &snapshot.out_of_memory, &context.gpus, &context.clock, style)?;
    anomalies(out, &snapshot.anomalies, context, style)?;
    marks(out, &snapshot.marks, context, style)
}

/// Writes the newest marks, one line each.
fn marks(
    out: &mut dyn Write,
    marks: &[Mark],
    context: &ReportContext,
    style: TextStyle,
) -> io::Result<()> {
    let hidden = marks.len().saturating_sub(MAX_MARKS);
    if hidden > 0 {
        writeln!(out, "{}", style.dim(&format!("… {hidden} earlier marks")))?;
    }
    for mark in marks.iter().skip(hidden) {
        let kind = if mark.kind == MarkKind::Point { "" } else { mark.kind.name() };
        let of = mark.pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
        let at = context.clock.time_of_day(mark.at);
        let text = format!("MARK at {at}: {kind} {}{of}", mark.label).replace(":  ", ": ");
        for line in wrap(&sanitize(&text), style.width, 2) {
            writeln!(out, "{line}")?;
        }
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
    let facts = gpu_facts(&context.gpus);
    let view = View::of(snapshot, &facts);
    write_block(out, &view, &context.clock, style)?;
    sections(out, &view, context, style)
}

/// Writes the last report. Returns whether the requested leak exists.
pub fn last(
    out: &mut dyn Write,
    snapshot: &Snapshot,
    context: &ReportContext,
    style: TextStyle,
    options: &LastOptions<'_>,
) -> io::Result<bool> {
    let facts = gpu_facts(&context.gpus);
    let view = View::of(snapshot, &facts);
    let LastOptions { top, leak, more } = *options;
    write_last(out, &view, Some(&context.clock), style, top, more)?;
    news(out, snapshot, context, style)?;
    sections(out, &view, context, style)?;
    kernels::text::uncounted(out, snapshot, style)?;
    match leak {
        Some(number) => {
            writeln!(out)?;
            write_leak(out, &view, number, style)
        }
        None => Ok(true),
    }
}

/// Writes what else is known about processes: allocators, failed calls, API misuse, launches.
fn sections(
    out: &mut dyn Write,
    view: &View<'_>,
    context: &ReportContext,
    style: TextStyle,
) -> io::Result<()> {
    let has_section = |process: &ProcessView| {
        style.last && process.allocators.iter().any(allocators::has_section)
            || !process.failures.is_empty()
            || !process.api_misuse.is_empty()
            || process.activity.as_ref().is_some_and(|activity| activity.launches > 0)
    };
    let rows: Vec<_> = view.processes.iter().filter(|row| has_section(row.process)).collect();
    let shown = rows.len().min(style.rows.unwrap_or(MAX_SECTIONS).min(MAX_SECTIONS));
    for row in rows.iter().take(shown) {
        section(out, row, context, style)?;
    }
    match rows.len() - shown {
        0 => Ok(()),
        more => {
            let text =
                format!("… {more} more processes with failed calls or launches (see --json)");
            writeln!(out, "{}", style.dim(&text))
        }
    }
}

fn section(
    out: &mut dyn Write,
    row: &ProcessRow<'_>,
    context: &ReportContext,
    style: TextStyle,
) -> io::Result<()> {
    let process = row.process;
    writeln!(out, "{} {}", style.bold(&process.key.pid.to_string()), sanitize(row.program))?;
    for allocator in process.allocators.iter().filter(|_| style.last) {
        allocators::section(out, allocator, style)?;
    }
    failures(out, process, context, style)?;
    api_misuse(out, &process.api_misuse, style)?;
    match process.activity.as_ref().filter(|activity| activity.launches > 0) {
        Some(activity) => kernels::text::section(out, activity, style),
        None => Ok(()),
    }
}

/// Writes anomalies, one line each.
pub(super) fn anomalies(
    out: &mut dyn Write,
    anomalies: &[Anomaly],
    context: &ReportContext,
    style: TextStyle,
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
        for line in wrap(&sanitize(&text), style.width, 2) {
            writeln!(out, "{}", style.paint("33", &line))?;
        }
    }
    match anomalies.len().saturating_sub(MAX_ANOMALIES) {
        0 => Ok(()),
        more => writeln!(out, "{}", style.dim(&format!("… {more} more anomalies"))),
    }
}
