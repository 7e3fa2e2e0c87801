//! Comparison of two files.

use engine::analysis::diff::{DiffRow, DiffSide, Trend};
use engine::model::Bytes;

use super::super::document::{Cell, Document, Line, Section, Table, table};
use super::super::{DiffView, frames};

pub(crate) fn document(comparison: &DiffView<'_>) -> Document {
    let diff = comparison.diff;
    let (before, after) = diff.never_freed;
    let sites_with = |trend: Trend| diff.rows.iter().filter(|row| row.trend == trend).count();
    let moved = Cell::difference(before.bytes, after.bytes);
    let headline = match after.bytes.cmp(&before.bytes) {
        std::cmp::Ordering::Equal => {
            format!("No change: {} held at the end of both files", Bytes(after.bytes))
        }
        _ => format!(
            "{} held at the end: {} before, {} after",
            moved.short(),
            Bytes(before.bytes),
            Bytes(after.bytes)
        ),
    };
    let sites = [Trend::New, Trend::Grew, Trend::Shrank, Trend::Gone, Trend::Same];
    let sites: Vec<_> =
        sites.iter().map(|trend| format!("{} {}", sites_with(*trend), trend.name())).collect();
    let peak = Cell::difference(diff.peak_bytes.0, diff.peak_bytes.1);
    let lines = vec![
        Line::Plain(format!(
            "peak: {} before, {} after ({})",
            Bytes(diff.peak_bytes.0),
            Bytes(diff.peak_bytes.1),
            peak.short()
        )),
        Line::Plain(format!("sites: {}", sites.join(", "))),
    ];
    let changed: Vec<_> = diff.rows.iter().filter(|row| row.trend != Trend::Same).collect();
    let shown = comparison.after.shown(changed.len());
    let shown = changed.iter().take(shown).map(|row| (row, sides(row)));
    let table = table!(shown, |(row, (before, after))| {
        "held": Cell::difference(before.never_freed.bytes, after.never_freed.bytes),
        "after": Cell::Bytes(after.never_freed.bytes),
        "peak": Cell::difference(before.peak_bytes, after.peak_bytes),
        "count": Cell::Count(after.never_freed.allocations),
        "kind": Cell::Text(row.kind.to_string()),
        "change": trend(row),
        "site": stack(row, comparison),
    });
    let section = Section::list("", table, changed.len());
    let mut notes = Vec::new();
    for file in [comparison.before, comparison.after] {
        let of_file = file.notes(false);
        if !of_file.is_empty() {
            notes.push(Line::Dim(format!("{}:", file.path)));
        }
        notes.extend(of_file);
    }
    let alarm = after.bytes > before.bytes;
    Document { headline, alarm, lines, sections: vec![section], notes }
}

fn sides(row: &DiffRow) -> (DiffSide, DiffSide) {
    (row.before.unwrap_or_default(), row.after.unwrap_or_default())
}

fn stack(row: &DiffRow, comparison: &DiffView<'_>) -> Cell {
    match (row.after, row.before) {
        (Some(after), _) => frames::cell(&comparison.after.info.stacks, after.site),
        (None, before) => {
            frames::cell(&comparison.before.info.stacks, before.and_then(|side| side.site))
        }
    }
}

fn trend(row: &DiffRow) -> Cell {
    let moved = if row.moved { ", moved" } else { "" };
    Cell::Text(format!("{}{moved}", row.trend.name()))
}

/// Returns every site of either file as a table.
pub(crate) fn table(comparison: &DiffView<'_>) -> Table {
    let rows = &comparison.diff.rows;
    let shown = rows.iter().take(comparison.after.shown(rows.len()));
    table!(shown.map(|row| (row, sides(row))), |(row, (before, after))| {
        "trend": Cell::Text(row.trend.name().to_owned()),
        "moved": Cell::Text(row.moved.to_string()),
        "kind": Cell::Text(row.kind.to_string()),
        "before_bytes": Cell::Bytes(before.never_freed.bytes),
        "after_bytes": Cell::Bytes(after.never_freed.bytes),
        "difference": Cell::difference(before.never_freed.bytes, after.never_freed.bytes),
        "before_peak_bytes": Cell::Bytes(before.peak_bytes),
        "after_peak_bytes": Cell::Bytes(after.peak_bytes),
        "before_allocations": Cell::Count(before.never_freed.allocations),
        "after_allocations": Cell::Count(after.never_freed.allocations),
        "stack": stack(row, comparison),
    })
}
