//! Allocators inside processes: what they hold and use, by process, device and pool.

use crate::report::live::text::{sampling, unavailable};
use engine::model::{AllocatorPoolView, AllocatorView};
use engine::view::ProcessRow;

use super::{ColumnSpec, percent};
use crate::report::view::units::{compact_count, compact_size};
use crate::sanitize::sanitize;

/// Columns.
pub const COLUMNS: [ColumnSpec; 11] = [
    ColumnSpec::right("PID", 0),
    ColumnSpec::flexible("PROGRAM", 8, 0),
    ColumnSpec::left("ALLOCATOR", 0),
    ColumnSpec::left("DEVICE", 5),
    ColumnSpec::right("HELD", 0),
    ColumnSpec::right("USED", 0),
    ColumnSpec::right("UNUSED", 2),
    ColumnSpec::right("", 4),
    ColumnSpec::right("PEAK", 3),
    ColumnSpec::right("BLOCKS", 3),
    ColumnSpec::flexible("UNUSED MEMORY", 10, 6),
];

/// Returns the cells of a pool of a process.
pub fn cells(row: &ProcessRow<'_>, view: &AllocatorView, cache: &AllocatorPoolView) -> Vec<String> {
    let layout = match cache.fragmentation {
        Ok(layout) => format!(
            "{} releasable, {} fragmented, largest gap {}",
            compact_size(layout.releasable.0),
            compact_size(layout.fragmented.0),
            compact_size(layout.largest_gap.0)
        ),
        Err(reason) => format!("layout unknown: {}", reason.reason()),
    };
    let sampled = view.sampling.map(|one| format!("; {}", sampling(view.allocator, one)));
    vec![
        row.process.key.pid.to_string(),
        sanitize(row.program).into_owned(),
        view.allocator.title().to_owned(),
        cache.device.map_or_else(|| "unknown".to_owned(), |device| device.to_string()),
        compact_size(cache.reserved.0),
        compact_size(cache.allocated.0),
        compact_size(cache.cached().0),
        percent(cache.cached().0, cache.reserved.0),
        compact_size(cache.peak.0),
        compact_count(cache.blocks),
        layout + &sampled.unwrap_or_default(),
    ]
}

/// Returns the cells of an allocator whose blocks are not known.
pub fn unavailable_cells(row: &ProcessRow<'_>, view: &AllocatorView) -> Vec<String> {
    let program = sanitize(row.program).into_owned();
    let title = view.allocator.title().to_owned();
    let mut cells = vec![row.process.key.pid.to_string(), program, title];
    cells.resize(COLUMNS.len() - 1, String::new());
    cells.push(match view.reason {
        Some(reason) => unavailable(view, reason),
        None => format!("no {} seen yet", view.allocator.noun()),
    });
    cells
}
