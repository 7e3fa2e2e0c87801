//! Summary of a file.

use engine::analysis::groups::Group;
use engine::analysis::is_host;
use engine::analysis::summary::{DeviceSummary, ProcessSummary, SummaryReport};
use engine::model::units::Bytes;

use super::super::document::{Cell, Document, Line, Section, Table};
use super::super::{AnalyzedFile, device, frames, location};
use super::leaks::{device_number, kinds};
use crate::report::live::text::format_count;

pub(in crate::report::analysis) fn document(
    report: &SummaryReport,
    file: &AnalyzedFile<'_>,
) -> Document {
    let devices = || report.processes.iter().flat_map(|process| &process.devices);
    let allocations: u64 = devices().map(|device| device.allocations).sum();
    let never_freed = report.never_freed;
    let headline = if allocations == 0 {
        "Nothing was allocated".to_owned()
    } else {
        let freed = match never_freed.allocations {
            0 => format!("all {} freed", file.memory_phrase()),
            _ => format!(
                "{} {} ({})",
                Bytes(never_freed.bytes),
                file.never_freed_phrase(),
                format_count(never_freed.allocations)
            ),
        };
        format!("{}, peak {}, {freed}", format_count(allocations), Bytes(report.peak_bytes))
    };
    let mut lines = vec![Line::Dim(origin(file))];
    if report.peak_bytes > 0 {
        lines.push(Line::Dim(format!("the peak was at {}", file.time(report.peak_at))));
    }
    let mut sections = vec![processes(report, file)];
    for process in report.processes.iter().filter(|process| !process.sites.is_empty()) {
        sections.push(sites(process, file));
    }
    sections.retain(|section| !section.table.rows.is_empty());
    Document { headline, alarm: false, lines, sections, notes: Vec::new() }
}

/// Returns the path, format and producer of the file.
fn origin(file: &AnalyzedFile<'_>) -> String {
    let producer = file.imported.producer.as_deref();
    let by = producer.map_or_else(String::new, |producer| format!(" by {producer}"));
    let source = file.imported.source.name();
    format!("{}: {source}{by}, {} events", file.path, file.imported.events)
}

fn processes(report: &SummaryReport, file: &AnalyzedFile<'_>) -> Section {
    let mut rows = Vec::new();
    for process in &report.processes {
        for on in &process.devices {
            rows.push(vec![
                Cell::Text(process.pid.to_string()),
                Cell::Text(file.process(process.pid).unwrap_or("").to_owned()),
                summary_location(on),
                Cell::Count(on.allocations),
                Cell::Count(on.frees),
                Cell::Count(on.released),
                Cell::Bytes(on.peak_bytes),
                Cell::Bytes(on.never_freed.bytes),
                Cell::Text(kinds(&on.kinds)),
            ]);
        }
    }
    let columns = vec![
        "pid",
        "name",
        "device",
        "allocated",
        "freed",
        "released",
        "peak",
        "never freed",
        "by kind",
    ];
    Section { title: "Processes".to_owned(), table: Table { columns, rows }, ..Section::default() }
}

/// Returns the location of a row. A row without a device may contain only host memory.
fn summary_location(on: &DeviceSummary) -> Cell {
    let only_host = on.peak_bytes == 0 && on.kinds.iter().all(|(kind, _)| is_host(*kind));
    match on.kinds.first() {
        Some((kind, _)) if only_host => location(on.device, *kind),
        _ => device(on.device),
    }
}

fn sites(process: &ProcessSummary, file: &AnalyzedFile<'_>) -> Section {
    let row = |group: &Group| {
        vec![
            Cell::Bytes(group.never_freed().bytes),
            Cell::Count(group.never_freed().allocations),
            Cell::Bytes(group.peak_bytes),
            Cell::Count(group.allocated.allocations),
            Cell::Text(group.key.kind.to_string()),
            device(group.key.device),
            frames::cell(&file.info.stacks, group.key.site),
        ]
    };
    let pid = process.pid;
    let title = match file.process(pid).filter(|name| !name.is_empty()) {
        Some(name) => format!("Sites: {name} (pid {pid})"),
        None => format!("Sites: pid {pid}"),
    };
    let more =
        (process.more_sites > 0).then(|| Line::Dim(format!("… {} more sites", process.more_sites)));
    Section {
        title,
        table: Table {
            columns: vec!["never freed", "count", "peak", "allocated", "kind", "device", "site"],
            rows: process.sites.iter().map(row).collect(),
        },
        after: more.into_iter().collect(),
        ..Section::default()
    }
}

/// Returns one row per process and device.
pub(in crate::report::analysis) fn table(report: &SummaryReport, file: &AnalyzedFile<'_>) -> Table {
    let mut rows = Vec::new();
    for process in &report.processes {
        for on in &process.devices {
            rows.push(row(process, on, file));
        }
    }
    let columns = vec![
        "pid",
        "name",
        "device",
        "allocations_total",
        "frees_total",
        "released_total",
        "live_bytes",
        "live_allocations",
        "never_freed_bytes",
        "never_freed_allocations",
        "peak_bytes",
        "peak_time",
        "peak_time_ns",
    ];
    Table { columns, rows }
}

fn row(process: &ProcessSummary, on: &DeviceSummary, file: &AnalyzedFile<'_>) -> Vec<Cell> {
    vec![
        Cell::Text(process.pid.to_string()),
        Cell::Text(file.process(process.pid).unwrap_or("").to_owned()),
        device_number(on.device),
        Cell::Count(on.allocations),
        Cell::Count(on.frees),
        Cell::Count(on.released),
        Cell::Bytes(on.live.bytes),
        Cell::Count(on.live.allocations),
        Cell::Bytes(on.never_freed.bytes),
        Cell::Count(on.never_freed.allocations),
        Cell::Bytes(on.peak_bytes),
        file.plain_time(on.peak_at),
        Cell::Time(String::new(), file.nanos(on.peak_at)),
    ]
}
