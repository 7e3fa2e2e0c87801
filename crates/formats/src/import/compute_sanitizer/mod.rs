//! compute-sanitizer: leak reports as text (`--leak-check full`) of any version, or as XML. A leak
//! is an allocation without an end; its start time is unknown.

mod leak;
mod text;
mod xml;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use self::leak::LeakCollector;
use super::{ImportError, ImportSink, ImportSummary, SourceFormat};

pub(super) use text::is_text;

/// Reads a report.
///
/// # Errors
///
/// The file cannot be read, or is XML that reports do not contain.
pub fn read(path: &Path, sink: &mut dyn ImportSink) -> Result<ImportSummary, ImportError> {
    let io = |source| ImportError::Io { path: path.into(), source };
    let mut file = BufReader::with_capacity(1 << 16, File::open(path).map_err(io)?);
    let start = file.fill_buf().map_err(io)?;
    let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
    let is_xml = start.trim_ascii_start().starts_with(b"<");
    let mut leaks = LeakCollector::new(sink);
    if is_xml {
        xml::read(path, file, &mut leaks)?;
    } else {
        text::read(path, file, &mut leaks)?;
    }
    let events = leaks.finish();
    Ok(ImportSummary {
        source: SourceFormat::Sanitizer,
        events,
        producer: Some("compute-sanitizer".into()),
    })
}
