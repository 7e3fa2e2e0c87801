//! Memory between the marks of a file.

use engine::analysis::phases::PhaseUsage;
use engine::model::Phase;

use super::super::AnalyzedFile;
use super::super::document::{Cell, Document, Section, Table};

pub(crate) fn document(all: &[PhaseUsage], file: &AnalyzedFile<'_>) -> Document {
    let headline = match all.len() {
        0 => "No marks; `vramscope mark LABEL` sets one in a running trace".to_owned(),
        1 => "1 mark".to_owned(),
        n => format!("{n} marks"),
    };
    let columns = ["at", "for", "label", "process", "at start", "peak", "at the end"];
    let row = |usage: &PhaseUsage| {
        let Phase { label, begin, end, .. } = &usage.phase;
        vec![
            Cell::Time(file.time(*begin), file.nanos(*begin)),
            end.map_or(Cell::Empty, |end| Cell::Span(end - *begin)),
            Cell::Text(label.to_string()),
            Cell::Text(process(&usage.phase, file)),
            Cell::Bytes(usage.begin_bytes),
            Cell::Bytes(usage.peak_bytes),
            Cell::Bytes(usage.end_bytes),
        ]
    };
    let shown = file.shown(all.len());
    let rows = all.iter().take(shown).map(row);
    let sections = vec![Section::list("", &columns, rows, all.len())];
    Document {
        headline,
        sections: if all.is_empty() { Vec::new() } else { sections },
        ..Document::default()
    }
}

/// Returns every phase.
pub(crate) fn table(all: &[PhaseUsage], file: &AnalyzedFile<'_>) -> Table {
    let columns = vec![
        "begin_ns",
        "end_ns",
        "label",
        "type",
        "pid",
        "begin_bytes",
        "peak_bytes",
        "end_bytes",
    ];
    let row = |usage: &PhaseUsage| {
        let Phase { label, pid, begin, end, .. } = &usage.phase;
        vec![
            Cell::Time(String::new(), file.nanos(*begin)),
            end.map_or(Cell::Empty, |end| Cell::Time(String::new(), file.nanos(end))),
            Cell::Text(label.to_string()),
            Cell::Text(kind(&usage.phase).to_owned()),
            Cell::pid(*pid),
            Cell::Bytes(usage.begin_bytes),
            Cell::Bytes(usage.peak_bytes),
            Cell::Bytes(usage.end_bytes),
        ]
    };
    Table { columns, rows: all.iter().map(row).collect() }
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
