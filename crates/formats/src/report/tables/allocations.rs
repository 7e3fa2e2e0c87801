//! Live allocations of one site.

use engine::model::AddressType;
use engine::snapshot::{AllocationView, ThreadView};

use super::columns;
use crate::report::live::text::format_age;
use crate::report::view::units::compact_size;
use crate::sanitize::sanitize;

columns! {
    /// Returns the cells of an allocation.
    pub const COLUMNS, pub fn cells(allocation: &AllocationView, thread: &ThreadView)
    let {
        let space = match allocation.key.space {
            AddressType::Pointer => "",
            AddressType::Handle => "handle ",
            AddressType::Array => "array ",
            AddressType::Pool => "pool ",
            AddressType::External => "external ",
        };
    }
    {
        right("SIZE", 0): compact_size(allocation.bytes.0),
        right("AGE", 0): format_age(allocation.age),
        left("ADDRESS", 1): format!("{space}{:#x}", allocation.key.value),
        left("KIND", 2): allocation.kind.name().to_owned(),
        left("DEVICE", 3): allocation.device.map_or_else(|| "gpu_?".to_owned(), |device| device.to_string()),
        flexible("THREAD", 8, 4): format!("{} {}", thread.tid, sanitize(&thread.name)),
    }
}
