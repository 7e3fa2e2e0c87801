//! Caching allocators: what PyTorch holds and uses, by process and device.

use engine::model::{TorchDeviceView, TorchView};
use engine::view::ProcessRow;

use super::{ColumnSpec, percent};
use crate::report::view::units::{compact_count, compact_size};
use crate::sanitize::sanitize;

/// Columns.
pub const COLUMNS: [ColumnSpec; 10] = [
    ColumnSpec::right("PID", 0),
    ColumnSpec::flexible("PROGRAM", 8, 0),
    ColumnSpec::left("DEVICE", 5),
    ColumnSpec::right("HELD", 0),
    ColumnSpec::right("TENSORS", 0),
    ColumnSpec::right("UNUSED", 2),
    ColumnSpec::right("", 4),
    ColumnSpec::right("PEAK", 3),
    ColumnSpec::right("BLOCKS", 3),
    ColumnSpec::flexible("UNUSED MEMORY", 10, 6),
];

/// Returns the cells of the cache of a process on one device.
pub fn cells(row: &ProcessRow<'_>, cache: &TorchDeviceView) -> Vec<String> {
    let layout = match cache.fragmentation {
        Ok(layout) => format!(
            "{} releasable, {} fragmented, largest gap {}",
            compact_size(layout.releasable.0),
            compact_size(layout.fragmented.0),
            compact_size(layout.largest_gap.0)
        ),
        Err(reason) => format!("layout unknown: {}", reason.reason()),
    };
    vec![
        row.process.key.pid.to_string(),
        sanitize(row.program).into_owned(),
        cache.device.to_string(),
        compact_size(cache.reserved.0),
        compact_size(cache.allocated.0),
        compact_size(cache.cached().0),
        percent(cache.cached().0, cache.reserved.0),
        compact_size(cache.peak.0),
        compact_count(cache.blocks),
        layout,
    ]
}

/// Returns the cells of a process whose tensors are not known.
pub fn unavailable_cells(row: &ProcessRow<'_>, torch: &TorchView) -> Vec<String> {
    let reason = torch.reason.map_or("no tensor seen yet", |reason| reason.reason());
    let mut cells = vec![row.process.key.pid.to_string(), sanitize(row.program).into_owned()];
    cells.resize(COLUMNS.len() - 1, String::new());
    cells.push(reason.to_owned());
    cells
}
