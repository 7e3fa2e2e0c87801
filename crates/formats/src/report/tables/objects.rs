//! CUDA objects: streams, events, graphs, modules.

use engine::snapshot::ObjectView;
use engine::view::ProcessRow;

use super::columns;
use crate::report::verdict::objects;
use crate::report::view::units::compact_count;
use crate::sanitize::sanitize;

columns! {
    /// Returns the cells of the objects of one kind of a process.
    pub const COLUMNS, pub fn cells(row: &ProcessRow<'_>, view: &ObjectView)
    {
        right("PID", 0): row.process.key.pid.to_string(),
        flexible("PROGRAM", 8, 0): sanitize(row.program).into_owned(),
        left("OBJECTS", 0): objects(view.kind, 2).trim_start_matches("2 ").to_owned(),
        right("LIVE", 0): compact_count(view.live),
        right("CREATED", 1): compact_count(view.created),
        right("DESTROYED", 1): compact_count(view.destroyed),
        right("RELEASED", 3): compact_count(view.released),
        right("PEAK", 2): compact_count(view.peak),
    }
}
