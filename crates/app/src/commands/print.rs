//! A report of a trace, live or from a recording: the same bytes.

use std::io::Write;

use anyhow::Result;
use engine::snapshot::Snapshot;
use formats::export::text::Style;
use formats::export::{Names, json, text, work};

/// How reports look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// One object a line.
    Json,
}

/// What reports are about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Subject {
    /// Memory, and work where it is counted.
    Memory,
    /// The same by where in programs it came from.
    Sites,
    /// Launches and copies alone.
    Work,
}

/// Writes a report.
pub(crate) fn print(
    out: &mut dyn Write,
    subject: Subject,
    format: Format,
    snapshot: &Snapshot,
    names: &Names,
    style: Style,
) -> Result<()> {
    match (subject, format) {
        (Subject::Memory | Subject::Sites, Format::Json) => {
            writeln!(out, "{}", json::line(snapshot, names)?)?
        }
        (Subject::Memory, Format::Text) => text::report(out, snapshot, names, style)?,
        (Subject::Sites, Format::Text) => text::sites::report(out, snapshot, names, style)?,
        (Subject::Work, Format::Json) => writeln!(out, "{}", work::json::line(snapshot, names)?)?,
        (Subject::Work, Format::Text) => work::text::report(out, snapshot, names, style)?,
    }
    out.flush()?;
    Ok(())
}
