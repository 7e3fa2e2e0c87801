//! Memory in use by call stack, as a pprof profile.

use formats::export::profile::{AllocationBaseline, live_pprof};

use crate::serve::PublishedSnapshot;

/// Returns a gzipped profile of memory in use and of everything allocated since tracing started.
/// With `paths`, it contains full paths of files and libraries.
pub(crate) fn pprof(published: &PublishedSnapshot, paths: bool) -> Vec<u8> {
    encode(published, None, paths)
}

/// The same with allocations since the last profile, for stores that sum profiles.
pub(super) fn since(
    published: &PublishedSnapshot,
    last: &AllocationBaseline,
    paths: bool,
) -> Vec<u8> {
    encode(published, Some(last), paths)
}

fn encode(
    published: &PublishedSnapshot,
    since: Option<&AllocationBaseline>,
    paths: bool,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Writing to memory cannot fail.
    let _ = live_pprof(&mut bytes, &published.snapshot, &published.context, since, paths);
    bytes
}
