//! CUDA objects as JSON.

use engine::snapshot::{ObjectView, SiteObjectView};

use crate::report::json_objects::{Word, json_objects};

json_objects! {
    /// Objects of one kind of a process.
    pub(crate) struct ObjectCountsJson(view: &ObjectView): Deserialize {
        kind: Word = view.kind.name().into(),
        live: u64 = view.live,
        created: u64 = view.created,
        destroyed: u64 = view.destroyed,
        released: u64 = view.released,
        peak: u64 = view.peak,
        unmatched_destroys: u64 = view.unknown_destroys,
        /// Objects beyond the limit of tracked ones.
        unattributed?: Option<u64> = (view.untracked > 0).then_some(view.untracked),
    }

    /// Objects of one kind of a site.
    pub(crate) struct SiteObjectsJson(view: &SiteObjectView): Deserialize {
        kind: Word = view.kind.name().into(),
        live: u64 = view.live,
        created: u64 = view.created,
        destroyed: u64 = view.destroyed,
    }
}
