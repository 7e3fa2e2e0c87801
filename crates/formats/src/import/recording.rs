//! Recordings of this program.

use std::path::Path;

use engine::ids::FunctionId;

use super::{Error, Imported, Sink};

/// Reads a recording; `function` knows the driver functions by name.
///
/// # Errors
///
/// This build has no reader of recordings.
pub fn read(
    path: &Path,
    _sink: &mut dyn Sink,
    _function: &dyn Fn(&str) -> Option<FunctionId>,
) -> Result<Imported, Error> {
    let why = "a recording, which this build cannot read; use a newer one".into();
    Err(Error::NotRecognised { path: path.into(), why })
}
