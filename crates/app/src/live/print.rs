//! Prints a report of a trace. Live and replayed reports have the same bytes.

use std::io::Write;

use anyhow::{Result, bail};
use engine::snapshot::Snapshot;
use formats::export::ReportContext;
use formats::report::kernels;
use formats::report::live::text::TextStyle;
use formats::report::live::{json, text};

use crate::cli;

/// Output format of reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LiveFormat {
    /// Human-readable text.
    Text,
    /// One JSON object per line.
    Json,
}

impl LiveFormat {
    /// Returns the format that the options select.
    pub(crate) fn of(options: &cli::FormatOptions) -> Self {
        if options.is_json() { Self::Json } else { Self::Text }
    }
}

/// Rejects `--stack-depth` with JSON, which has every frame.
pub(crate) fn check_stack_depth(depth: Option<usize>, format: LiveFormat) -> Result<()> {
    if depth.is_some() && format != LiveFormat::Text {
        bail!("--stack-depth requires --format text; JSON has every frame");
    }
    Ok(())
}

/// Contents of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LiveView {
    /// Memory, and activity if it is counted.
    Memory,
    /// Memory by call site.
    Sites,
    /// Launches and copies only.
    Activity,
}

impl LiveView {
    /// Returns the memory view that `--by` selects.
    pub(crate) fn by(by: cli::GroupByArg, format: LiveFormat) -> Result<Self> {
        match (by, format) {
            (cli::GroupByArg::Process, _) => Ok(Self::Memory),
            (cli::GroupByArg::Site, LiveFormat::Text) => Ok(Self::Sites),
            (cli::GroupByArg::Site, LiveFormat::Json) => {
                bail!("--by site requires --format text; JSON has processes and sites")
            }
        }
    }
}

/// Writes a report.
pub(crate) fn print(
    out: &mut dyn Write,
    view: LiveView,
    format: LiveFormat,
    snapshot: &Snapshot,
    context: &ReportContext,
    style: TextStyle,
) -> Result<()> {
    match (view, format) {
        (LiveView::Memory | LiveView::Sites, LiveFormat::Json) => {
            writeln!(out, "{}", json::line(snapshot, context)?)?
        }
        (LiveView::Memory, LiveFormat::Text) => text::report(out, snapshot, context, style)?,
        (LiveView::Sites, LiveFormat::Text) => text::sites::report(out, snapshot, context, style)?,
        (LiveView::Activity, LiveFormat::Json) => {
            writeln!(out, "{}", kernels::json::line(snapshot, context)?)?
        }
        (LiveView::Activity, LiveFormat::Text) => {
            kernels::text::report(out, snapshot, context, style)?
        }
    }
    out.flush()?;
    Ok(())
}
