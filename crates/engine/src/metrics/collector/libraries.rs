//! Series of libraries.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::metrics::catalog::{self, MAX_LIBRARIES};
use crate::snapshot::Snapshot;

use super::sample_builder::SampleBuilder;
use super::{OTHER, label};

/// Adds the live device memory of the largest libraries; all others are merged into `other`.
pub(super) fn add_samples(snapshot: &Snapshot, out: &mut SampleBuilder) {
    let mut sums: BTreeMap<Box<str>, u64> = BTreeMap::new();
    let running = snapshot.running();
    for view in running.flat_map(|process| &process.libraries) {
        let sum = sums.entry(label(&view.library)).or_default();
        *sum = sum.saturating_add(view.live_bytes.0);
    }
    let mut rest = sums.remove(OTHER).unwrap_or(0);
    let mut rows: Vec<_> = sums.into_iter().collect();
    rows.sort_by_key(|(library, bytes)| (Reverse(*bytes), library.clone()));
    for (_, bytes) in rows.split_off(rows.len().min(MAX_LIBRARIES)) {
        rest = rest.saturating_add(bytes);
    }
    for (library, bytes) in rows {
        out.push_integer(&catalog::LIBRARY, vec![library], bytes);
    }
    out.push_integer(&catalog::LIBRARY, vec![OTHER.into()], rest);
}
