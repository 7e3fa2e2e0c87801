//! CUDA objects as JSON.

use engine::snapshot::{ObjectView, SiteObjectView};
use serde::Serialize;

/// Objects of one kind of a process.
#[derive(Serialize)]
pub(super) struct ObjectCountsJson {
    kind: &'static str,
    live: u64,
    created: u64,
    destroyed: u64,
    released: u64,
    peak: u64,
    unmatched_destroys: u64,
    /// Objects beyond the limit of tracked ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    unattributed: Option<u64>,
}

/// Objects of one kind of a site.
#[derive(Serialize)]
pub(super) struct SiteObjectsJson {
    kind: &'static str,
    live: u64,
    created: u64,
    destroyed: u64,
}

impl ObjectCountsJson {
    pub(super) fn new(view: &ObjectView) -> Self {
        Self {
            kind: view.kind.name(),
            live: view.live,
            created: view.created,
            destroyed: view.destroyed,
            released: view.released,
            peak: view.peak,
            unmatched_destroys: view.unknown_destroys,
            unattributed: (view.untracked > 0).then_some(view.untracked),
        }
    }
}

impl SiteObjectsJson {
    pub(super) fn new(view: &SiteObjectView) -> Self {
        let SiteObjectView { kind, live, created, destroyed } = *view;
        Self { kind: kind.name(), live, created, destroyed }
    }
}
