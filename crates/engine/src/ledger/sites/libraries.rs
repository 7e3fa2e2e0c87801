//! Memory and objects of a process by the library that created them. Costs O(sites).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::headline::UNKNOWN_LIBRARY;
use crate::model::{Bytes, MemoryLayer, SiteRegistry};
use crate::snapshot::LibraryView;

use super::table::{SiteRef, SiteRow, SiteTable};

/// Limit of libraries per process; the smallest ones are merged.
const MAX_LIBRARIES: usize = 64;

/// Name of the merged rest.
const OTHER: &str = "other";

/// Returns the libraries that allocated memory or created objects, the largest holder first.
pub(crate) fn list(table: &SiteTable, registry: &SiteRegistry) -> Vec<LibraryView> {
    let mut rows: BTreeMap<Arc<str>, LibraryView> = BTreeMap::new();
    for row in table.rows() {
        let library = match row.source {
            SiteRef::Site(site) => registry.library(site),
            SiteRef::Unknown => UNKNOWN_LIBRARY.into(),
            SiteRef::Other => OTHER.into(),
        };
        let known = rows.entry(library.clone());
        add(known.or_insert_with(|| LibraryView { library, ..LibraryView::default() }), row);
    }
    let mut rows: Vec<_> = rows.into_values().collect();
    rows.sort_by(|a, b| order(a).cmp(&order(b)));
    let rest = rows.split_off(rows.len().min(MAX_LIBRARIES));
    let other = rest.into_iter().reduce(|sum, row| sum.merge(&row));
    rows.extend(other.map(|row| LibraryView { library: OTHER.into(), ..row }));
    rows
}

/// Sort key: live device memory, then memory allocated so far, then host memory and objects.
fn order(row: &LibraryView) -> impl Ord + '_ {
    let live = (Reverse(row.live_bytes), Reverse(row.bytes_total));
    (live, Reverse(row.host_bytes), Reverse(row.object_count()), &row.library)
}

fn add(view: &mut LibraryView, row: &SiteRow) {
    let bytes = row.track.live.bytes();
    match (row.resource.kind(), row.resource.object()) {
        (_, Some(kind)) => view.add_objects(kind, row.track.count),
        _ if row.resource.takes_device_memory() => {
            let of_row = LibraryView {
                live_bytes: bytes,
                live_allocations: row.track.count,
                peak_max: row.peak.bytes(),
                bytes_total: row.total.bytes(),
                allocations_total: row.track.allocations,
                ..LibraryView::default()
            };
            *view = std::mem::take(view).merge(&of_row);
        }
        (Some(kind), _) if kind.layer() == MemoryLayer::Host => {
            view.host_bytes = Bytes(view.host_bytes.0.saturating_add(bytes.0));
        }
        _ => {}
    }
}
