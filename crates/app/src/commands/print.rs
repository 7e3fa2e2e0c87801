//! A report of a trace, live or from a recording: the same bytes.

use std::io::Write;

use anyhow::Result;
use engine::snapshot::Snapshot;
use formats::export::text::Style;
use formats::export::{Names, json, text};

/// How reports look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// One object a line.
    Json,
}

/// Writes a report.
pub(crate) fn print(
    out: &mut dyn Write,
    format: Format,
    snapshot: &Snapshot,
    names: &Names,
    style: Style,
) -> Result<()> {
    match format {
        Format::Json => writeln!(out, "{}", json::line(snapshot, names)?)?,
        Format::Text => text::report(out, snapshot, names, style)?,
    }
    out.flush()?;
    Ok(())
}
