//! compute-sanitizer: leak reports as text (`--leak-check full`) of any version, or as XML. A leak
//! is an allocation without an end; its start time is unknown.

mod leak;
mod text;
mod xml;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use self::leak::Leaks;
use super::{Error, Imported, Sink, Source};

pub(super) use text::is_text;

/// Reads a report.
///
/// # Errors
///
/// The file cannot be read, or is XML that reports do not contain.
pub fn read(path: &Path, sink: &mut dyn Sink) -> Result<Imported, Error> {
    let io = |source| Error::Io { path: path.into(), source };
    let mut file = BufReader::with_capacity(1 << 16, File::open(path).map_err(io)?);
    let start = file.fill_buf().map_err(io)?;
    let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
    let is_xml = start.trim_ascii_start().starts_with(b"<");
    let mut leaks = Leaks::new(sink);
    if is_xml {
        xml::read(path, file, &mut leaks)?;
    } else {
        text::read(path, file, &mut leaks)?;
    }
    let events = leaks.finish();
    Ok(Imported { source: Source::Sanitizer, events, producer: Some("compute-sanitizer".into()) })
}
