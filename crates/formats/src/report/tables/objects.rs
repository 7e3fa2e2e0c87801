//! CUDA objects: streams, events, graphs, modules.

use engine::snapshot::ObjectView;
use engine::view::ProcessRow;

use super::ColumnSpec;
use crate::report::verdict::objects;
use crate::report::view::units::compact_count;
use crate::sanitize::sanitize;

/// Columns.
pub const COLUMNS: [ColumnSpec; 8] = [
    ColumnSpec::right("PID", 0),
    ColumnSpec::flexible("PROGRAM", 8, 0),
    ColumnSpec::left("OBJECTS", 0),
    ColumnSpec::right("LIVE", 0),
    ColumnSpec::right("CREATED", 1),
    ColumnSpec::right("DESTROYED", 1),
    ColumnSpec::right("RELEASED", 3),
    ColumnSpec::right("PEAK", 2),
];

/// Returns the cells of the objects of one kind of a process.
pub fn cells(row: &ProcessRow<'_>, view: &ObjectView) -> Vec<String> {
    vec![
        row.process.key.pid.to_string(),
        sanitize(row.program).into_owned(),
        objects(view.kind, 2).trim_start_matches("2 ").to_owned(),
        compact_count(view.live),
        compact_count(view.created),
        compact_count(view.destroyed),
        compact_count(view.released),
        compact_count(view.peak),
    ]
}
