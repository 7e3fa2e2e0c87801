//! Memory of a file by the library that allocated it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine::analysis::Amount;
use engine::analysis::groups::Group;
use engine::analysis::summary::SummaryReport;
use engine::headline::UNKNOWN_LIBRARY;
use engine::model::Pid;

use super::super::AnalyzedFile;
use super::super::document::{Cell, Document, Line, Section, Table};

/// Memory of one library, of the kinds that the totals of the file count.
#[derive(Clone, Debug, Default)]
pub(crate) struct LibraryRow {
    pub(crate) library: Arc<str>,
    /// Memory never freed.
    pub(crate) held: Amount,
    pub(crate) allocated: Amount,
    pub(crate) freed: u64,
    /// Upper bound: the peaks of its sites may have been at different times.
    pub(crate) peak_max: u64,
    pub(crate) pids: BTreeSet<Pid>,
}

/// Returns the libraries of a file, those that hold most first.
pub(crate) fn rows(report: &SummaryReport, file: &AnalyzedFile<'_>) -> Vec<LibraryRow> {
    let scope = file.imported.source.scope();
    let mut rows: BTreeMap<Arc<str>, LibraryRow> = BTreeMap::new();
    let all = report.processes.iter().flat_map(|process| &process.sites);
    for group in all.filter(|group| scope.counts(group.key.kind)) {
        let library = library(group, file);
        let known = rows.entry(library.clone());
        let row = known.or_insert_with(|| LibraryRow { library, ..LibraryRow::default() });
        row.held = row.held.plus(group.never_freed());
        row.allocated = row.allocated.plus(group.allocated);
        row.freed = row.freed.saturating_add(group.freed);
        row.peak_max = row.peak_max.saturating_add(group.peak_bytes);
        row.pids.insert(group.key.pid);
    }
    let mut rows: Vec<_> = rows.into_values().collect();
    rows.sort_by_key(|row| (Reverse(row.held.bytes), Reverse(row.peak_max), row.library.clone()));
    rows
}

fn library(group: &Group, file: &AnalyzedFile<'_>) -> Arc<str> {
    let site = group.key.site;
    site.map_or_else(|| UNKNOWN_LIBRARY.into(), |site| file.info.stacks.library(site))
}

pub(crate) fn document(report: &SummaryReport, file: &AnalyzedFile<'_>) -> Document {
    let all = rows(report, file);
    let shown = file.shown(all.len());
    let headline = match all.len() {
        0 => file.nothing(),
        1 => "1 library allocated memory".to_owned(),
        n => format!("{n} libraries allocated memory"),
    };
    let held = format!("HELD: {}; PEAK is an upper bound", file.held_phrase());
    let columns = vec!["held", "count", "peak", "allocated", "freed", "processes", "library"];
    let table = Table { columns, rows: all.iter().take(shown).map(cells).collect() };
    Document {
        headline,
        alarm: false,
        lines: (!all.is_empty()).then_some(Line::Dim(held)).into_iter().collect(),
        sections: vec![Section::list("", table, all.len())],
        notes: Vec::new(),
    }
}

/// Returns every library.
pub(crate) fn table(report: &SummaryReport, file: &AnalyzedFile<'_>) -> Table {
    let columns = vec![
        "bytes",
        "allocations",
        "peak_bytes_max",
        "allocations_total",
        "frees_total",
        "processes",
        "library",
    ];
    Table { columns, rows: rows(report, file).iter().map(cells).collect() }
}

fn cells(row: &LibraryRow) -> Vec<Cell> {
    vec![
        Cell::Bytes(row.held.bytes),
        Cell::Count(row.held.allocations),
        Cell::Bytes(row.peak_max),
        Cell::Count(row.allocated.allocations),
        Cell::Count(row.freed),
        Cell::Count(row.pids.len() as u64),
        Cell::Text(row.library.to_string()),
    ]
}
