//! Redaction of paths: paths may reveal user names, so directories are exported only if that is
//! configured.

use std::sync::Arc;

use engine::model::{Frame, SiteName};
use engine::snapshot::{ProcessView, Snapshot};

/// Returns a frame with its paths, or with the last component of each path only.
pub(crate) fn redact_paths(frame: &Frame, paths: bool) -> Frame {
    if paths {
        return frame.clone();
    }
    // Lists every field, so that a new one with a path is not forgotten.
    let Frame { function, file, line, module, language, unknown } = frame.clone();
    Frame { function, file: file.map(last), line, module: module.map(last), language, unknown }
}

/// Removes the directories of every path in a snapshot. Only frames contain paths: other text is
/// names that programs and hosts choose.
pub fn hide_directories(snapshot: &mut Snapshot) {
    // Lists every field, so that a new one with frames is not forgotten.
    let Snapshot {
        at: _,
        observed: _,
        is_live: _,
        live_bytes: _,
        live_allocations: _,
        uncertainty: _,
        processes,
        out_of_memory,
        ooms_by_gpu: _,
        sites,
        sites_total: _,
        allocations_total: _,
        without_stack: _,
        tensor_sites,
        tensor_sites_total: _,
        suspects,
        other_verdicts: judgements,
        anomalies,
        gpus: _,
        device_holders: _,
        marks: _,
        suspects_total: _,
        not_freed,
        // Names of the driver.
        unknown_calls: _,
    } = snapshot;
    let of_processes = processes.iter_mut().flat_map(|ProcessView { sites, .. }| sites);
    let sites = sites.iter_mut().chain(tensor_sites).chain(of_processes);
    let verdicts = suspects.iter_mut().chain(judgements);
    sites
        .map(|site| &mut site.frames)
        .chain(verdicts.map(|verdict| &mut verdict.frames))
        .chain(anomalies.iter_mut().map(|anomaly| &mut anomaly.frames))
        .chain(out_of_memory.iter_mut().map(|oom| &mut oom.frames))
        .chain(not_freed.iter_mut().flat_map(|one| &mut one.sites).map(|site| &mut site.frames))
        .for_each(|frames| *frames = frames.map(|frame| redact_paths(frame, false)));
}

/// Returns the last component of a path.
fn last(path: Arc<str>) -> Arc<str> {
    match path.rsplit('/').next() {
        Some(name) if !name.is_empty() && name.len() < path.len() => name.into(),
        _ => path,
    }
}

/// Returns the placeholder for a site without frames.
pub(crate) const fn placeholder(name: SiteName) -> &'static str {
    match name {
        SiteName::Pending(_) => "(call stack not read yet)",
        SiteName::Other => "(other sites)",
        SiteName::Resolved(_) | SiteName::Unknown => "(no call stack)",
    }
}
