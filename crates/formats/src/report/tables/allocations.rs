//! Live allocations of one site.

use engine::model::AddressType;
use engine::snapshot::{AllocationView, ThreadView};

use super::ColumnSpec;
use crate::report::live::text::format_age;
use crate::report::view::units::compact_size;
use crate::sanitize::sanitize;

/// Columns.
pub const COLUMNS: [ColumnSpec; 6] = [
    ColumnSpec::right("SIZE", 0),
    ColumnSpec::right("AGE", 0),
    ColumnSpec::left("ADDRESS", 1),
    ColumnSpec::left("KIND", 2),
    ColumnSpec::left("DEVICE", 3),
    ColumnSpec::flexible("THREAD", 8, 4),
];

/// Returns the cells of an allocation.
pub fn cells(allocation: &AllocationView, thread: &ThreadView) -> Vec<String> {
    let space = match allocation.key.space {
        AddressType::Pointer => "",
        AddressType::Handle => "handle ",
        AddressType::Array => "array ",
        AddressType::Pool => "pool ",
        AddressType::External => "external ",
    };
    vec![
        compact_size(allocation.bytes.0),
        format_age(allocation.age),
        format!("{space}{:#x}", allocation.key.value),
        allocation.kind.name().to_owned(),
        allocation.device.map_or_else(|| "gpu_?".to_owned(), |device| device.to_string()),
        format!("{} {}", thread.tid, sanitize(&thread.name)),
    ]
}
