//! Prints a report of a trace. Live and replayed reports have the same bytes.

use std::io::Write;

use anyhow::{Result, bail};
use engine::snapshot::Snapshot;
use engine::view::Grouping;
use formats::export::ReportContext;
use formats::report::kernels;
use formats::report::live::text::overview::LastOptions;
use formats::report::live::text::{TextStyle, overview};
use formats::report::live::{json, text};

use crate::cli::{self, LiveFormat};

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
    /// GPUs, processes that matter, and leaks.
    Overview,
    /// Every allocation, by process and thread, and activity if it is counted.
    Allocations,
    /// Memory by call site.
    Sites,
    /// Memory by group.
    Groups(Grouping),
    /// Launches and copies only.
    Activity,
    /// Where driver-reported memory goes; only in the last report.
    Explain,
}

impl LiveView {
    /// Returns the view that the options select.
    pub(crate) fn of(by: cli::GroupByArg, allocations: bool, format: LiveFormat) -> Result<Self> {
        match (by, format) {
            (cli::GroupByArg::Process, _) if allocations => Ok(Self::Allocations),
            (cli::GroupByArg::Process, _) => Ok(Self::Overview),
            (cli::GroupByArg::Site, LiveFormat::Text) => Ok(Self::Sites),
            (cli::GroupByArg::Library, _) => Ok(Self::Groups(Grouping::Library)),
            (cli::GroupByArg::User, _) => Ok(Self::Groups(Grouping::User)),
            (cli::GroupByArg::Job, _) => Ok(Self::Groups(Grouping::Job)),
            (cli::GroupByArg::Tree, _) => Ok(Self::Groups(Grouping::Tree)),
            (cli::GroupByArg::Site, LiveFormat::Json) => {
                bail!("--by site requires --format text; JSON has processes and sites")
            }
        }
    }
}

/// Returns the message for a leak number that does not exist.
pub(crate) fn no_such_leak(number: usize, leaks: usize) -> String {
    match leaks {
        0 => format!("there is no leak {number}: none was found"),
        1 => format!("there is no leak {number}; the only one is leak 1"),
        _ => format!("there is no leak {number}; they are numbered from 1 to {leaks}"),
    }
}

/// Writes a report; `last`: options of the last one.
pub(crate) fn print(
    out: &mut dyn Write,
    view: LiveView,
    format: LiveFormat,
    snapshot: &Snapshot,
    context: &ReportContext,
    style: TextStyle,
    last: &LastOptions<'_>,
) -> Result<()> {
    match (view, format) {
        (LiveView::Activity, LiveFormat::Json) => {
            writeln!(out, "{}", kernels::json::line(snapshot, context)?)?;
        }
        // Printed by the live report, which keeps what processes held before they exited.
        (LiveView::Explain, _) => {}
        (_, LiveFormat::Json) => writeln!(out, "{}", json::line(snapshot, context)?)?,
        (LiveView::Overview, LiveFormat::Text) if style.last => {
            if !overview::last(out, snapshot, context, style, last)? {
                bail!("there is no leak {}; all are listed above", last.leak.unwrap_or(0));
            }
        }
        (LiveView::Overview, LiveFormat::Text) => {
            overview::news(out, snapshot, context, style)?;
            if !snapshot.out_of_memory.is_empty() || !snapshot.anomalies.is_empty() {
                writeln!(out)?;
            }
            overview::block(out, snapshot, context, style)?;
            writeln!(out)?;
        }
        (LiveView::Allocations, LiveFormat::Text) => text::report(out, snapshot, context, style)?,
        (LiveView::Sites, LiveFormat::Text) => text::sites::report(out, snapshot, context, style)?,
        (LiveView::Groups(by), LiveFormat::Text) => {
            text::groups::report(out, snapshot, context, style, (by, last.top))?;
        }
        (LiveView::Activity, LiveFormat::Text) => {
            kernels::text::report(out, snapshot, context, style)?;
        }
    }
    out.flush()?;
    Ok(())
}
