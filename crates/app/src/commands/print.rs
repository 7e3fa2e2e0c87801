//! A report of a trace, live or from a recording: the same bytes.

use std::io::Write;

use anyhow::{Result, bail};
use engine::snapshot::Snapshot;
use formats::export::text::Style;
use formats::export::{Names, json, text, work};

use crate::cli;

/// How reports look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// One object a line.
    Json,
}

impl Format {
    /// What was asked for.
    pub(crate) fn of(options: &cli::FormatOptions) -> Self {
        if options.is_json() { Self::Json } else { Self::Text }
    }
}

/// JSON has every frame.
pub(crate) fn check_stack_depth(depth: Option<usize>, format: Format) -> Result<()> {
    if depth.is_some() && format != Format::Text {
        bail!("--stack-depth requires --format text; JSON has every frame");
    }
    Ok(())
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

impl Subject {
    /// Of memory, by what was asked for.
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
