//! Prints a report of a trace. Live and replayed reports have the same bytes.

use std::io::Write;

use anyhow::{Result, bail};
use engine::snapshot::Snapshot;
use formats::export::text::Style;
use formats::export::{Names, json, text, work};

use crate::cli;

/// Output format of reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// Human-readable text.
    Text,
    /// One JSON object per line.
    Json,
}

impl Format {
    /// Returns the format that the options select.
    pub(crate) fn of(options: &cli::FormatOptions) -> Self {
        if options.is_json() { Self::Json } else { Self::Text }
    }
}

/// Rejects `--stack-depth` with JSON, which has every frame.
pub(crate) fn check_stack_depth(depth: Option<usize>, format: Format) -> Result<()> {
    if depth.is_some() && format != Format::Text {
        bail!("--stack-depth requires --format text; JSON has every frame");
    }
    Ok(())
}

/// Contents of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Subject {
    /// Memory, and activity if it is counted.
    Memory,
    /// Memory by call site.
    Sites,
    /// Launches and copies only.
    Work,
}

impl Subject {
    /// Returns the memory view that `--by` selects.
    pub(crate) fn by(by: cli::By, format: Format) -> Result<Self> {
        match (by, format) {
            (cli::By::Process, _) => Ok(Self::Memory),
            (cli::By::Site, Format::Text) => Ok(Self::Sites),
            (cli::By::Site, Format::Json) => {
                bail!("--by site requires --format text; JSON has processes and sites")
            }
        }
    }
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
