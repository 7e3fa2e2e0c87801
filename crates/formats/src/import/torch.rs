//! PyTorch's memory snapshots.

use std::path::Path;

use super::{Error, Imported, Sink};

/// Reads a snapshot.
///
/// # Errors
///
/// This build has no reader of snapshots.
pub fn read(path: &Path, _sink: &mut dyn Sink) -> Result<Imported, Error> {
    let why = "a PyTorch memory snapshot, which this build cannot read; use a newer one".into();
    Err(Error::NotRecognised { path: path.into(), why })
}
