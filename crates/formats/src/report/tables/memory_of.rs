//! What a process holds by function, thread and library.

use engine::snapshot::{LibraryView, ProcessView, ThreadView};
use engine::view::FunctionRow;

use super::columns;
use crate::report::view::units::{compact_count, compact_size};
use crate::report::view::{base, short_function};
use crate::sanitize::sanitize;

columns! {
    /// Returns the cells of a function.
    pub const FUNCTION_COLUMNS, pub fn function_cells(row: &FunctionRow<'_>)
    let {
        let file = row.frame.file.as_deref().or(row.frame.module.as_deref()).unwrap_or_default();
        let own = if row.own == 0 { "·".to_owned() } else { compact_size(row.own) };
    }
    {
        flexible("FUNCTION", 12, 0): sanitize(&short_function(row.frame)).into_owned(),
        right("TOTAL", 0): compact_size(row.total),
        right("OWN", 1): own,
        right("ALLOCS", 2): compact_count(row.allocations),
        flexible("FILE", 8, 3): sanitize(base(file)).into_owned(),
    }
}

/// Returns the threads of a process with live memory, most memory first.
pub fn threads(process: &ProcessView) -> Vec<&ThreadView> {
    let mut threads: Vec<_> = process.threads.iter().collect();
    threads.sort_by_key(|thread| {
        (std::cmp::Reverse((thread.live_bytes, thread.live_allocations)), thread.tid)
    });
    threads
}

columns! {
    /// Returns the cells of a thread.
    pub const THREAD_COLUMNS, pub fn thread_cells(thread: &ThreadView)
    let {
        let kinds: Vec<String> = thread
            .kinds
            .iter()
            .map(|view| format!("{} {}", view.kind.name(), compact_size(view.live_bytes.0)))
            .collect();
    }
    {
        right("TID", 0): thread.tid.to_string(),
        flexible("THREAD", 8, 0): sanitize(&thread.name).into_owned(),
        right("LIVE", 0): compact_size(thread.live_bytes.0),
        right("ALLOCS", 1): compact_count(thread.live_allocations),
        flexible("BY KIND", 8, 2): kinds.join(", "),
    }
}

columns! {
    /// Returns the cells of a library.
    pub const LIBRARY_COLUMNS, pub fn library_cells(library: &LibraryView)
    let {
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
    }
    {
        flexible("LIBRARY", 12, 0): sanitize(&library.library).into_owned(),
        right("LIVE", 0): compact_size(library.live_bytes.0),
        right("ALLOCS", 2): compact_count(library.live_allocations),
        right("PEAK AT MOST", 4): compact_size(library.peak_max.0),
        right("PINNED", 3): pinned,
        flexible("OBJECTS", 8, 5): objects.join(", "),
    }
}
