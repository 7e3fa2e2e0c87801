//! Places in programs for those who collect what many programs do: paths tell of users, so folders are
//! told only where that was asked for.

use std::sync::Arc;

use engine::snapshot::{ProcessView, Snapshot};
use engine::stack::{Frame, SiteName};

/// A frame as it is told.
pub(super) fn shown(frame: &Frame, paths: bool) -> Frame {
    if paths {
        return frame.clone();
    }
    // Every field is named, so that a new one that holds a path is not forgotten.
    let Frame { function, file, line, module, language, unknown } = frame.clone();
    Frame { function, file: file.map(last), line, module: module.map(last), language, unknown }
}

/// Removes the directories of every path in a snapshot. Frames are the only paths in it: other text is
/// names that programs and hosts choose.
pub fn hide_directories(snapshot: &mut Snapshot) {
    // Every field is named, so that a new one with frames is not forgotten.
    let Snapshot {
        at: _,
        live_bytes: _,
        live_allocations: _,
        certainty: _,
        processes,
        out_of_memory,
        ran_out: _,
        sites,
        sites_total: _,
        allocations_total: _,
        without_stack: _,
        tensor_sites,
        tensor_sites_total: _,
        suspects,
        judgements,
        anomalies,
        gpus: _,
        suspects_total: _,
    } = snapshot;
    let of_processes = processes.iter_mut().flat_map(|ProcessView { sites, .. }| sites);
    let sites = sites.iter_mut().chain(tensor_sites).chain(of_processes);
    let judgements = suspects.iter_mut().chain(judgements);
    sites
        .map(|site| &mut site.frames)
        .chain(judgements.map(|judged| &mut judged.frames))
        .chain(anomalies.iter_mut().map(|anomaly| &mut anomaly.frames))
        .chain(out_of_memory.iter_mut().map(|oom| &mut oom.frames))
        .for_each(|frames| *frames = frames.iter().map(|frame| shown(frame, false)).collect());
}

/// The last part of a path.
fn last(path: Arc<str>) -> Arc<str> {
    match path.rsplit('/').next() {
        Some(name) if !name.is_empty() && name.len() < path.len() => name.into(),
        _ => path,
    }
}

/// What stands for the frames of a site that has none.
pub(super) const fn without(name: SiteName) -> &'static str {
    match name {
        SiteName::Pending(_) => "(call stack not read yet)",
        SiteName::Other => "(other sites)",
        SiteName::Told(_) | SiteName::Unknown => "(no call stack)",
    }
}
