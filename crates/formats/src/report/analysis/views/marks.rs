//! Memory between the marks of a file.

use engine::analysis::phases::PhaseUsage;
use engine::model::Phase;

use super::super::AnalyzedFile;
use super::super::document::{Cell, Document, Section, Table, table};

pub(crate) fn document(all: &[PhaseUsage], file: &AnalyzedFile<'_>) -> Document {
    let headline = match all.len() {
        0 => "No marks; `vramscope mark LABEL` sets one in a running trace".to_owned(),
        1 => "1 mark".to_owned(),
        n => format!("{n} marks"),
    };
    let shown = all.iter().take(file.shown(all.len())).map(|usage| (usage, &usage.phase));
    let table = table!(shown, |(usage, phase)| {
        "at": Cell::Time(file.time(phase.begin), file.nanos(phase.begin)),
        "for": phase.end.map_or(Cell::Empty, |end| Cell::Span(end - phase.begin)),
        "label": Cell::Text(phase.label.to_string()),
        "process": Cell::Text(process(phase, file)),
        "at start": Cell::Bytes(usage.begin_bytes),
        "peak": Cell::Bytes(usage.peak_bytes),
        "at the end": Cell::Bytes(usage.end_bytes),
    });
    let sections = vec![Section::list("", table, all.len())];
    Document {
        headline,
        sections: if all.is_empty() { Vec::new() } else { sections },
        ..Document::default()
    }
}

/// Returns every phase.
pub(crate) fn table(all: &[PhaseUsage], file: &AnalyzedFile<'_>) -> Table {
    table!(all.iter().map(|usage| (usage, &usage.phase)), |(usage, phase)| {
        "begin_ns": Cell::Time(String::new(), file.nanos(phase.begin)),
        "end_ns": phase.end.map_or(Cell::Empty, |end| Cell::Time(String::new(), file.nanos(end))),
        "label": Cell::Text(phase.label.to_string()),
        "type": Cell::Text(kind(phase).to_owned()),
        "pid": Cell::pid(phase.pid),
        "begin_bytes": Cell::Bytes(usage.begin_bytes),
        "peak_bytes": Cell::Bytes(usage.peak_bytes),
        "end_bytes": Cell::Bytes(usage.end_bytes),
    })
}

/// Returns the name of how a phase is bounded.
pub(crate) const fn kind(phase: &Phase) -> &'static str {
    if phase.is_point { "point" } else { "range" }
}

fn process(phase: &Phase, file: &AnalyzedFile<'_>) -> String {
    let Some(pid) = phase.pid else { return "all".to_owned() };
    match file.process(pid).filter(|name| !name.is_empty()) {
        Some(name) => format!("{name} (pid {pid})"),
        None => format!("pid {pid}"),
    }
}
