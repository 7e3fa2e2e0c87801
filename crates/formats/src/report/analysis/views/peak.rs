//! Peaks, and the allocations that were live at them.

use std::io::{self, Write};

use engine::analysis::peak::{GroupAtPeak, Peak};
use engine::model::Bytes;

use super::super::document::{Cell, Document, Line, Section, Table, table};
use super::super::{AnalyzedFile, device, frames, tsv};
use super::leaks::device_number;
use crate::report::live::text::format_count;

pub(crate) fn document(peaks: &[Peak], file: &AnalyzedFile<'_>) -> Document {
    let devices = peaks.iter().filter(|peak| peak.pid.is_none());
    let Some(highest) = devices.max_by_key(|peak| peak.bytes).filter(|peak| peak.bytes > 0) else {
        return Document { headline: file.nothing(), ..Document::default() };
    };
    let live: u64 = highest.live.iter().map(|at| at.amount.allocations).sum();
    let headline = format!(
        "Peak {} on {} at {}, in {}",
        Bytes(highest.bytes),
        name(highest),
        file.time(highest.at),
        format_count(live)
    );
    let mut lines = Vec::new();
    let several_processes = peaks.iter().filter(|peak| peak.pid.is_some()).count() > 1;
    let mut sections: Vec<_> = Vec::new();
    if several_processes {
        sections.push(summary(peaks, file));
    } else if let Some(process) = highest.live.first() {
        lines.push(Line::Dim(format!("single process: {}", process.key.pid)));
    }
    sections.extend(
        peaks
            .iter()
            .filter(|peak| peak.pid.is_none() && peak.bytes > 0)
            .map(|peak| live_at(peak, file, usize::MAX)),
    );
    Document { headline, alarm: false, lines, sections, notes: Vec::new() }
}

fn name(peak: &Peak) -> String {
    device(peak.device).short()
}

fn summary(peaks: &[Peak], file: &AnalyzedFile<'_>) -> Section {
    let table = table!(peaks.iter(), |peak| {
        "device": device(peak.device),
        "pid": Cell::Text(peak.pid.map_or_else(|| "all".to_owned(), |pid| pid.to_string())),
        "name": Cell::Text(peak.pid.and_then(|pid| file.process(pid)).unwrap_or("").to_owned()),
        "peak": Cell::Bytes(peak.bytes),
        "at": Cell::Time(file.time(peak.at), file.nanos(peak.at)),
    });
    Section::list("Peak per device and process", table, peaks.len())
}

/// Returns the sites that were live at a peak, at most `most`.
pub(super) fn live_at(peak: &Peak, file: &AnalyzedFile<'_>, most: usize) -> Section {
    let oldest = |at: &GroupAtPeak| at.allocations.iter().map(|held| held.allocated_at).min();
    let table = table!(peak.live.iter(), |at| {
        "bytes": Cell::Bytes(at.amount.bytes),
        "share": Cell::Share(at.amount.bytes as f64 / peak.bytes.max(1) as f64),
        "count": Cell::Count(at.amount.allocations),
        "kind": Cell::Text(at.key.kind.to_string()),
        "pid": Cell::Text(at.key.pid.to_string()),
        "oldest": Cell::Span(peak.at - oldest(at).unwrap_or(peak.at)),
        "site": frames::cell(&file.info.stacks, at.key.site),
    });
    let (bytes, time) = (Bytes(peak.bytes), file.time(peak.at));
    let title = format!("Live at the peak of {} ({bytes} at {time})", name(peak));
    let most = file.top.map_or(most, |top| top.min(most));
    Section::merged(title, table, most)
}

/// Writes every allocation that was live at a peak.
pub(crate) fn rows(peaks: &[Peak], file: &AnalyzedFile<'_>, out: &mut dyn Write) -> io::Result<()> {
    let columns = [
        "device",
        "peak_pid",
        "peak_bytes",
        "peak_time",
        "peak_time_ns",
        "address",
        "bytes",
        "kind",
        "pid",
        "allocated_ns",
        "stack",
    ];
    tsv::head(out, &columns)?;
    for peak in peaks {
        for at in peak.live.iter().take(file.shown(peak.live.len())) {
            let stack = frames::cell(&file.info.stacks, at.key.site);
            for held in &at.allocations {
                let cells = [
                    device_number(peak.device),
                    Cell::pid(peak.pid),
                    Cell::Bytes(peak.bytes),
                    file.plain_time(peak.at),
                    Cell::Time(String::new(), file.nanos(peak.at)),
                    Cell::Address(held.key.value),
                    Cell::Bytes(held.bytes),
                    Cell::Text(at.key.kind.to_string()),
                    Cell::Text(at.key.pid.to_string()),
                    Cell::Time(String::new(), file.nanos(held.allocated_at)),
                    stack.clone(),
                ];
                tsv::row(out, &cells)?;
            }
        }
    }
    Ok(())
}
