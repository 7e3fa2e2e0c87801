//! Summary of a file: peak and holders. The verdict is written before.

use engine::analysis::groups::Group;
use engine::analysis::peak::Peak;
use engine::analysis::summary::{DeviceSummary, ProcessSummary, SummaryReport};
use engine::analysis::{Amount, is_host};
use engine::model::{Bytes, MemoryKind};

use super::super::document::{Cell, Document, Line, Section, Table, table};
use super::super::{AnalyzedFile, device, frames, location};
use super::leaks::{capitalized, device_number, kinds};
use crate::report::live::text::format_count;

pub(crate) fn document(
    report: &SummaryReport,
    peaks: &[Peak],
    file: &AnalyzedFile<'_>,
) -> Document {
    let devices = || report.processes.iter().flat_map(|process| &process.devices);
    let allocations: u64 = devices().map(|device| device.allocations).sum();
    let headline = if allocations == 0 {
        file.nothing()
    } else {
        let held =
            held(report, file).unwrap_or_else(|| format!("all {} freed", file.memory_phrase()));
        format!("{}, peak {}, {held}", format_count(allocations), Bytes(report.peak_bytes))
    };
    let lines = vec![Line::Dim(origin(file))];
    let mut sections: Vec<_> = peaks
        .iter()
        .filter(|peak| peak.pid.is_none() && peak.bytes > 0)
        .map(|peak| super::peak::live_at(peak, file, PEAK_SITES))
        .collect();
    sections.push(processes(report, file));
    sections.push(holders(report, file));
    sections.retain(|section| !section.table.rows.is_empty());
    Document { headline, alarm: false, lines, sections, notes: Vec::new() }
}

/// Maximum number of sites that are listed for a peak.
const PEAK_SITES: usize = 5;

/// Returns the memory that is still held or was not freed, in words.
fn held(report: &SummaryReport, file: &AnalyzedFile<'_>) -> Option<String> {
    let devices = || report.processes.iter().flat_map(|process| &process.devices);
    let live = devices().map(|device| device.live).fold(Amount::default(), Amount::plus);
    let at_exit = Amount {
        bytes: report.never_freed.bytes.saturating_sub(live.bytes),
        allocations: report.never_freed.allocations.saturating_sub(live.allocations),
    };
    let parts = [(live, file.held_phrase()), (at_exit, "not freed at exit")];
    let parts = parts.into_iter().filter(|(amount, _)| amount.allocations > 0);
    let parts: Vec<_> =
        parts.map(|(amount, phrase)| format!("{} {phrase}", Bytes(amount.bytes))).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Returns the sites that hold most at the end of the file or of their process.
fn holders(report: &SummaryReport, file: &AnalyzedFile<'_>) -> Section {
    let groups = report.processes.iter().flat_map(|process| &process.sites);
    let groups: Vec<&Group> = groups.filter(|group| group.never_freed().allocations > 0).collect();
    let process = |pid| format!("{pid} {}", file.process(pid).unwrap_or("")).trim_end().to_owned();
    let table = table!(groups.iter(), |group| {
        "bytes": Cell::Bytes(group.never_freed().bytes),
        "count": Cell::Count(group.never_freed().allocations),
        "kind": Cell::Text(group.key.kind.to_string()),
        "device": location(group.key.device, group.key.kind),
        "process": Cell::Text(process(group.key.pid)),
        "site": frames::cell(&file.info.stacks, group.key.site),
    });
    let exited = groups.iter().filter(|group| group.exited.allocations > 0).count();
    let title = match exited {
        0 => capitalized(file.held_phrase()),
        all if all == groups.len() => "Not freed at exit".to_owned(),
        _ => format!("{} or not freed at exit", capitalized(file.held_phrase())),
    };
    Section::merged(title, table, file.top.unwrap_or(usize::MAX))
}

/// Returns the path, format and producer of the file.
fn origin(file: &AnalyzedFile<'_>) -> String {
    let producer = file.imported.producer.as_deref();
    let by = producer.map_or_else(String::new, |producer| format!(" by {producer}"));
    let source = file.imported.source.name();
    let date = file.clock().map_or_else(String::new, |clock| format!(" of {}", clock.start_date()));
    format!("{}: {source}{date}{by}, {} events", file.path, file.imported.events)
}

fn processes(report: &SummaryReport, file: &AnalyzedFile<'_>) -> Section {
    let table = table!(by_device(report), |(process, on)| {
        "pid": Cell::Text(process.pid.to_string()),
        "program": Cell::Text(file.process(process.pid).unwrap_or("").to_owned()),
        "device": summary_location(on),
        "allocated": Cell::Count(on.allocations),
        "freed": Cell::Count(on.frees),
        "released": Cell::Count(on.released),
        "peak": Cell::Bytes(on.peak_bytes),
        "held": Cell::Bytes(on.live.bytes),
        "not freed": Cell::Bytes(on.never_freed.bytes.saturating_sub(on.live.bytes)),
        "by kind": match &on.kinds[..] {
            // The same as `held`.
            [] | [(MemoryKind::Device, _)] => Cell::Empty,
            several => Cell::Text(kinds(several)),
        },
    });
    Section { title: "Processes".to_owned(), table, ..Section::default() }
}

fn by_device(report: &SummaryReport) -> impl Iterator<Item = (&ProcessSummary, &DeviceSummary)> {
    let processes = report.processes.iter();
    processes.flat_map(|process| process.devices.iter().map(move |on| (process, on)))
}

/// Returns the location of a row. A row without a device may contain only host memory.
fn summary_location(on: &DeviceSummary) -> Cell {
    let only_host = on.peak_bytes == 0 && on.kinds.iter().all(|(kind, _)| is_host(*kind));
    match on.kinds.first() {
        Some((kind, _)) if only_host => location(on.device, *kind),
        _ => device(on.device),
    }
}

/// Returns one row per process and device.
pub(crate) fn table(report: &SummaryReport, file: &AnalyzedFile<'_>) -> Table {
    table!(by_device(report), |(process, on)| {
        "pid": Cell::Text(process.pid.to_string()),
        "name": Cell::Text(file.process(process.pid).unwrap_or("").to_owned()),
        "device": device_number(on.device),
        "allocations_total": Cell::Count(on.allocations),
        "frees_total": Cell::Count(on.frees),
        "released_total": Cell::Count(on.released),
        "live_bytes": Cell::Bytes(on.live.bytes),
        "live_allocations": Cell::Count(on.live.allocations),
        "not_freed_bytes": Cell::Bytes(on.never_freed.bytes.saturating_sub(on.live.bytes)),
        "not_freed_allocations":
            Cell::Count(on.never_freed.allocations.saturating_sub(on.live.allocations)),
        "peak_bytes": Cell::Bytes(on.peak_bytes),
        "peak_time": file.plain_time(on.peak_at),
        "peak_time_ns": Cell::Time(String::new(), file.nanos(on.peak_at)),
    })
}
