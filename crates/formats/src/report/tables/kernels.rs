//! Kernel launches and copies.

use engine::model::Nanos;
use engine::snapshot::{CopyView, KernelView};
use engine::view::ProcessRow;

use super::ColumnSpec;
use crate::report::kernels::{kernel_name, rate};
use crate::report::view::units::{compact_count, compact_size};
use crate::sanitize::sanitize;

/// Columns.
pub const COLUMNS: [ColumnSpec; 7] = [
    ColumnSpec::right("PID", 0),
    ColumnSpec::flexible("PROGRAM", 8, 2),
    ColumnSpec::flexible("KERNEL OR COPY", 16, 0),
    ColumnSpec::right("COUNT", 0),
    ColumnSpec::right("PER SECOND", 1),
    ColumnSpec::right("FAILED", 3),
    ColumnSpec::right("BYTES", 4),
];

/// Returns the cells of a kernel of a process.
pub fn kernel_cells(row: &ProcessRow<'_>, kernel: &KernelView, window: Nanos) -> Vec<String> {
    vec![
        row.process.key.pid.to_string(),
        sanitize(row.program).into_owned(),
        sanitize(&kernel_name(kernel).short).into_owned(),
        compact_count(kernel.launches),
        format!("{:.1}", rate(kernel.recent, window)),
        compact_count(kernel.failed),
        String::new(),
    ]
}

/// Returns the cells of copies in one direction.
pub fn copy_cells(row: &ProcessRow<'_>, copy: &CopyView, window: Nanos) -> Vec<String> {
    let mode = if copy.asynchronous { "async" } else { "sync" };
    let per_second = rate(copy.recent_bytes.0, window);
    vec![
        row.process.key.pid.to_string(),
        sanitize(row.program).into_owned(),
        format!("copy {} {mode}", copy.direction.name()),
        compact_count(copy.calls),
        format!("{}/s", compact_size(per_second as u64)),
        String::new(),
        compact_size(copy.bytes.0),
    ]
}
