//! Places in programs for those who collect what many programs do: paths tell of users, so folders are
//! told only where that was asked for.

use std::sync::Arc;

use engine::stack::{Frame, SiteName};

/// A frame as it is told.
pub(super) fn shown(frame: &Frame, paths: bool) -> Frame {
    let frame = frame.clone();
    if paths {
        return frame;
    }
    Frame { file: frame.file.map(last), module: frame.module.map(last), ..frame }
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
