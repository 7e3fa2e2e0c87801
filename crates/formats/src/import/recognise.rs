//! Which reader a file is for: by its first bytes, never by its name.

use std::path::Path;

use engine::ids::FunctionId;

use super::{Error, Imported, Sink, Source, nsys};

/// x
pub fn recognise(_path: &Path) -> Result<Source, Error> { Ok(Source::Nsys) }
/// x
pub fn open(path: &Path, sink: &mut dyn Sink, _f: &dyn Fn(&str) -> Option<FunctionId>) -> Result<Imported, Error> {
    nsys::read(path, sink)
}
