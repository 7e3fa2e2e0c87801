//! Memory by library, user, job or process tree, as text.

use std::io::{self, Write};

use engine::model::ObjectKind;
use engine::snapshot::Snapshot;
use engine::view::{GroupRow, Grouping, View};

use super::TextStyle;
use crate::export::ReportContext;
use crate::report::tables::{ColumnSpec, columns};
use crate::report::text_page::TextPage;
use crate::report::verdict;
use crate::report::view::table;
use crate::report::view::{compact_size, gpu_facts};
use crate::sanitize::sanitize;

const LIBRARY_COLUMNS: [ColumnSpec; 7] = [
    ColumnSpec::flexible("LIBRARY", 12, 0),
    ColumnSpec::right("LIVE", 0),
    ColumnSpec::right("ALLOCS", 0),
    ColumnSpec::right("PEAK", 0),
    ColumnSpec::right("HOST", 0),
    ColumnSpec::right("PROCS", 0),
    ColumnSpec::flexible("OBJECTS", 8, 0),
];

/// Writes one report, grouped; at most `top` rows.
pub fn report(
    out: &mut dyn Write,
    snapshot: &Snapshot,
    context: &ReportContext,
    style: TextStyle,
    (by, top): (Grouping, usize),
) -> io::Result<()> {
    let out = &mut TextPage::new(out, style);
    super::header(out, snapshot, context)?;
    let facts = gpu_facts(&context.gpus);
    let view = View::of(snapshot, &facts);
    let rows = view.groups(by);
    if rows.is_empty() {
        writeln!(out, "No GPU memory activity yet.")?;
    } else {
        let shown = rows.iter().take(top);
        match by {
            Grouping::Library => {
                let cells: Vec<_> = shown.map(library_cells).collect();
                table::write(out, TextStyle::plain, &LIBRARY_COLUMNS, &cells)?;
            }
            Grouping::User | Grouping::Job | Grouping::Tree => {
                let cells: Vec<_> = shown.map(process_cells).collect();
                table::write(out, TextStyle::plain, &PROCESS_COLUMNS, &cells)?;
            }
        }
        out.more(rows.len().saturating_sub(top) as u64, "more")?;
        if by == Grouping::Library {
            out.dim("PEAK: at most; the peaks of sites may be at different times")?;
        }
    }
    super::footer(out, snapshot, context)
}

columns! {
    const PROCESS_COLUMNS, fn process_cells(row: &GroupRow<'_>)
    let {
        let traced = &row.traced;
    }
    {
        right("USED", 0): compact_size(row.used.0),
        right("TRACED", 0): compact_size(traced.live_bytes.0),
        right("ALLOCS", 0): traced.live_allocations.to_string(),
        right("HOST", 0): compact_size(traced.host_bytes.0),
        right("PROCS", 0): row.pids.len().to_string(),
        flexible("GROUP", 12, 0): sanitize(row.name.as_deref().unwrap_or_default()).into_owned(),
    }
}

fn library_cells(row: &GroupRow<'_>) -> Vec<String> {
    let processes = row.pids.len().to_string();
    let Some(name) = &row.name else {
        let [none, host, objects] = [const { String::new() }; 3];
        let used = compact_size(row.used.0);
        return vec!["(not traced)".to_owned(), used, none.clone(), none, host, processes, objects];
    };
    let traced = &row.traced;
    let size = |bytes: u64| if bytes == 0 { "·".to_owned() } else { compact_size(bytes) };
    vec![
        sanitize(name).into_owned(),
        size(traced.live_bytes.0),
        traced.live_allocations.to_string(),
        size(traced.peak_max.0),
        size(traced.host_bytes.0),
        processes,
        objects(&traced.objects),
    ]
}

/// Returns `3 streams, 1 module`.
fn objects(objects: &[(ObjectKind, u64)]) -> String {
    let all = objects.iter().map(|(kind, count)| verdict::objects(*kind, *count));
    all.collect::<Vec<_>>().join(", ")
}
