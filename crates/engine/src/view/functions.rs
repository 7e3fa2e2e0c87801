//! Live memory by function: of the stacks that contain it, and of those that it is responsible for.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::model::Frame;
use crate::snapshot::SiteView;

/// A function and the memory that was allocated in it or below it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FunctionRow<'a> {
    /// One of its frames.
    pub frame: &'a Frame,
    /// Whether it is of a library.
    pub is_library: bool,
    /// Live memory of all stacks that contain it.
    pub total: u64,
    /// Live memory of the stacks that it is responsible for.
    pub own: u64,
    /// Live allocations of all stacks that contain it.
    pub allocations: u64,
}

/// Returns the functions on the call stacks of sites, most memory first. `unfolded`: also those of
/// libraries.
pub fn functions<'a>(
    sites: impl Iterator<Item = &'a SiteView>,
    unfolded: bool,
) -> Vec<FunctionRow<'a>> {
    let mut rows: HashMap<_, FunctionRow<'_>> = HashMap::new();
    for site in sites.filter(|site| site.live_bytes.0 > 0) {
        let headline = site.frames.headline();
        // A recursive function counts once.
        let mut seen = Vec::new();
        for (index, (frame, is_library)) in site.frames.iter().zip(&headline.folded).enumerate() {
            let key = (&*frame.function, frame.file.as_deref(), frame.module.as_deref());
            if frame.function.is_empty() || (*is_library && !unfolded) {
                continue;
            }
            let row = rows.entry(key).or_insert(FunctionRow {
                frame,
                is_library: *is_library,
                total: 0,
                own: 0,
                allocations: 0,
            });
            if headline.frame == Some(index) {
                row.own = row.own.saturating_add(site.live_bytes.0);
            }
            if !seen.contains(&key) {
                row.total = row.total.saturating_add(site.live_bytes.0);
                row.allocations = row.allocations.saturating_add(site.live_allocations);
                seen.push(key);
            }
        }
    }
    let mut rows: Vec<_> = rows.into_values().collect();
    rows.sort_by(|one, other| {
        let size = |row: &FunctionRow<'_>| Reverse((row.total, row.own));
        size(one).cmp(&size(other)).then_with(|| one.frame.function.cmp(&other.frame.function))
    });
    rows
}
