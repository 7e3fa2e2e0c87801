//! Memory in use by call stack, as `pprof` reads it.

use formats::export::profile::{Allocated, live_pprof};

use crate::serve::Published;

/// A profile of what is in use now, and of all that was allocated since tracing began: gzipped, as those
/// who collect profiles want it. With `paths`, folders of files and libraries are told.
pub(crate) fn pprof(published: &Published, paths: bool) -> Vec<u8> {
    make(published, None, paths)
}

/// The same with what was allocated since the last one, for stores that add profiles up.
pub(super) fn since(published: &Published, last: &Allocated, paths: bool) -> Vec<u8> {
    make(published, Some(last), paths)
}

fn make(published: &Published, since: Option<&Allocated>, paths: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Writing to memory cannot fail.
    let _ = live_pprof(&mut bytes, &published.snapshot, &published.names, since, paths);
    bytes
}
