//! What a process holds by function, thread and library.

use engine::snapshot::{LibraryView, ProcessView, ThreadView};
use engine::view::FunctionRow;

use super::ColumnSpec;
use crate::report::view::units::{compact_count, compact_size};
use crate::report::view::{base, short_function};
use crate::sanitize::sanitize;

/// Columns of functions.
pub const FUNCTION_COLUMNS: [ColumnSpec; 5] = [
    ColumnSpec::flexible("FUNCTION", 12, 0),
    ColumnSpec::right("TOTAL", 0),
    ColumnSpec::right("OWN", 1),
    ColumnSpec::right("ALLOCS", 2),
    ColumnSpec::flexible("FILE", 8, 3),
];

/// Columns of threads.
pub const THREAD_COLUMNS: [ColumnSpec; 5] = [
    ColumnSpec::right("TID", 0),
    ColumnSpec::flexible("THREAD", 8, 0),
    ColumnSpec::right("LIVE", 0),
    ColumnSpec::right("ALLOCS", 1),
    ColumnSpec::flexible("BY KIND", 8, 2),
];

/// Columns of libraries.
pub const LIBRARY_COLUMNS: [ColumnSpec; 6] = [
    ColumnSpec::flexible("LIBRARY", 12, 0),
    ColumnSpec::right("LIVE", 0),
    ColumnSpec::right("ALLOCS", 2),
    ColumnSpec::right("PEAK AT MOST", 4),
    ColumnSpec::right("PINNED", 3),
    ColumnSpec::flexible("OBJECTS", 8, 5),
];

/// Returns the cells of a function.
pub fn function_cells(row: &FunctionRow<'_>) -> Vec<String> {
    let file = row.frame.file.as_deref().or(row.frame.module.as_deref()).unwrap_or_default();
    let own = if row.own == 0 { "·".to_owned() } else { compact_size(row.own) };
    vec![
        sanitize(&short_function(row.frame)).into_owned(),
        compact_size(row.total),
        own,
        compact_count(row.allocations),
        sanitize(base(file)).into_owned(),
    ]
}

/// Returns the threads of a process with live memory, most memory first.
pub fn threads(process: &ProcessView) -> Vec<&ThreadView> {
    let mut threads: Vec<_> = process.threads.iter().collect();
    threads.sort_by_key(|thread| {
        (std::cmp::Reverse((thread.live_bytes, thread.live_allocations)), thread.tid)
    });
    threads
}

/// Returns the cells of a thread.
pub fn thread_cells(thread: &ThreadView) -> Vec<String> {
    let kinds: Vec<String> = thread
        .kinds
        .iter()
        .map(|view| format!("{} {}", view.kind.name(), compact_size(view.live_bytes.0)))
        .collect();
    vec![
        thread.tid.to_string(),
        sanitize(&thread.name).into_owned(),
        compact_size(thread.live_bytes.0),
        compact_count(thread.live_allocations),
        kinds.join(", "),
    ]
}

/// Returns the cells of a library.
pub fn library_cells(library: &LibraryView) -> Vec<String> {
    let objects: Vec<String> = library
        .objects
        .iter()
        .filter(|(_, live)| *live > 0)
        .map(|(kind, live)| crate::report::verdict::objects(*kind, *live))
        .collect();
    let pinned = match library.host_bytes.0 {
        0 => "·".to_owned(),
        bytes => compact_size(bytes),
    };
    vec![
        sanitize(&library.library).into_owned(),
        compact_size(library.live_bytes.0),
        compact_count(library.live_allocations),
        compact_size(library.peak_max.0),
        pinned,
        objects.join(", "),
    ]
}
