//! Memory of each process by call site.

use engine::analysis::summary::{ProcessSummary, SummaryReport};

use super::super::document::{Cell, Document, Line, Section, Table, table};
use super::super::{AnalyzedFile, device, frames};
use super::leaks::device_number;

pub(crate) fn document(report: &SummaryReport, file: &AnalyzedFile<'_>) -> Document {
    let sites = |process: &ProcessSummary| process.sites.len() + process.more_sites;
    let count: usize = report.processes.iter().map(sites).sum();
    let headline = match (count, report.processes.len()) {
        (0, _) => file.nothing(),
        (1, _) => "1 site in 1 process".to_owned(),
        (n, 1) => format!("{n} sites in 1 process"),
        (n, processes) => format!("{n} sites in {processes} processes"),
    };
    let held = format!("HELD: {}", file.held_phrase());
    let with_sites = report.processes.iter().filter(|process| !process.sites.is_empty());
    Document {
        headline,
        alarm: false,
        lines: (count > 0).then_some(Line::Dim(held)).into_iter().collect(),
        sections: with_sites.map(|process| section(process, file)).collect(),
        notes: Vec::new(),
    }
}

fn section(process: &ProcessSummary, file: &AnalyzedFile<'_>) -> Section {
    let table = table!(process.sites.iter(), |group| {
        "held": Cell::Bytes(group.never_freed().bytes),
        "count": Cell::Count(group.never_freed().allocations),
        "peak": Cell::Bytes(group.peak_bytes),
        "allocated": Cell::Count(group.allocated.allocations),
        "freed": Cell::Count(group.freed),
        "kind": Cell::Text(group.key.kind.to_string()),
        "device": device(group.key.device),
        "site": frames::cell(&file.info.stacks, group.key.site),
    });
    let pid = process.pid;
    let title = match file.process(pid).filter(|name| !name.is_empty()) {
        Some(name) => format!("{name} (pid {pid})"),
        None => format!("pid {pid}"),
    };
    let more =
        (process.more_sites > 0).then(|| Line::Dim(format!("… {} more sites", process.more_sites)));
    Section { title, table, after: more.into_iter().collect(), ..Section::default() }
}

/// Returns every site.
pub(crate) fn table(report: &SummaryReport, file: &AnalyzedFile<'_>) -> Table {
    table!(report.processes.iter().flat_map(|process| &process.sites), |group| {
        "bytes": Cell::Bytes(group.never_freed().bytes),
        "allocations": Cell::Count(group.never_freed().allocations),
        "live_at_exit": Cell::Count(group.exited.allocations),
        "peak_bytes": Cell::Bytes(group.peak_bytes),
        "allocations_total": Cell::Count(group.allocated.allocations),
        "frees_total": Cell::Count(group.freed),
        "kind": Cell::Text(group.key.kind.to_string()),
        "device": device_number(group.key.device),
        "pid": Cell::Text(group.key.pid.to_string()),
        "stack": frames::cell(&file.info.stacks, group.key.site),
    })
}
