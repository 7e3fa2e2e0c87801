//! Analyses of files → bytes. Each analysis becomes a [`Page`] (text), a [`Table`] (TSV)
//! and an object (JSON); the renderers know none of them.

mod diff;
mod fragmentation;
pub(in crate::export) mod frames;
pub mod json;
mod leakage;
mod model;
mod summary;
mod suspects;
mod text;
mod tsv;
mod usage;
mod watermark;

use std::io::{self, Write};

use engine::analysis::diff::Diff;
use engine::analysis::leakage::Leakage;
use engine::analysis::summary::Overview;
use engine::analysis::suspects::Findings;
use engine::analysis::usage::Courses;
use engine::analysis::watermark::Peak;
use engine::analysis::{Measure, is_host};
use engine::ids::{DeviceId, Pid};
use engine::kind::Kind;
use engine::units::Moment;

use super::text::Style;
use crate::WallClock;
use crate::import::gather::Facts;
use crate::import::{Imported, Source};

pub use fragmentation::{Advice, Fragmentation, Pool, WouldFit};
pub(in crate::export) use tsv::field;

pub use model::{Cell, Chart, Line, Page, Section, Table};

/// The file that an analysis is of.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Its name, as the user gave it.
    pub path: &'a str,
    /// Who made it, and how much is in it.
    pub imported: &'a Imported,
    /// What it tells besides changes.
    pub facts: &'a Facts,
    /// The most rows of a list; none for all.
    pub top: Option<usize>,
}

/// An analysis with its answer.
#[derive(Clone, Copy, Debug)]
pub enum Answer<'a> {
    /// What was never freed.
    Leakage(&'a Leakage),
    /// The peaks.
    Watermark(&'a [Peak]),
    /// Memory over time; and how much there is by another tool's account.
    Usage(&'a Courses, &'a [Overlay]),
    /// What leaks, what is thought of the rest, and what was unusual.
    Suspects(&'a Findings),
    /// The overview.
    Summary(&'a Overview),
    /// What caches and pools hold and cannot use.
    Fragmentation(&'a Fragmentation),
}

/// Memory over time by another tool's account, for a chart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Overlay {
    /// What it is, such as `nvidia-smi, GPU 0`.
    pub name: String,
    /// The device that it is of; none for any.
    pub device: Option<DeviceId>,
    /// Moments of the file's clock, and bytes.
    pub points: Vec<(Moment, u64)>,
}

/// The comparison of two files.
#[derive(Clone, Copy, Debug)]
pub struct Comparison<'a> {
    /// The older one.
    pub before: Subject<'a>,
    /// The newer one.
    pub after: Subject<'a>,
    /// What changed.
    pub diff: &'a Diff,
}

impl Answer<'_> {
    /// The analysis' name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Leakage(_) => "leaks",
            Self::Watermark(_) => "peak",
            Self::Usage(..) => "usage",
            Self::Suspects(_) => "suspects",
            Self::Summary(_) => "summary",
            Self::Fragmentation(_) => "fragmentation",
        }
    }

    fn page(&self, subject: &Subject<'_>) -> Page {
        let mut page = match self {
            Self::Leakage(answer) => leakage::page(answer, subject),
            Self::Watermark(answer) => watermark::page(answer, subject),
            Self::Usage(answer, overlays) => usage::page(answer, overlays, subject),
            Self::Suspects(answer) => suspects::page(answer, subject),
            Self::Summary(answer) => summary::page(answer, subject),
            Self::Fragmentation(answer) => fragmentation::page(answer),
        };
        page.notes.extend(subject.notes());
        page
    }
}

/// Writes an answer as text.
pub fn write_text(
    out: &mut dyn Write,
    subject: &Subject<'_>,
    answer: Answer<'_>,
    style: Style,
) -> io::Result<()> {
    text::write(out, &answer.page(subject), style)
}

/// Writes an answer as a table with tabs between.
pub fn write_tsv(out: &mut dyn Write, subject: &Subject<'_>, answer: Answer<'_>) -> io::Result<()> {
    match answer {
        Answer::Leakage(answer) => tsv::write(out, &leakage::table(answer, subject)),
        Answer::Watermark(answer) => watermark::rows(answer, subject, out),
        Answer::Usage(answer, overlays) => usage::rows(answer, overlays, subject, out),
        Answer::Suspects(answer) => tsv::write(out, &suspects::table(answer, subject)),
        Answer::Summary(answer) => tsv::write(out, &summary::table(answer, subject)),
        Answer::Fragmentation(answer) => tsv::write(out, &fragmentation::table(answer)),
    }
}

/// Writes a comparison as text.
pub fn write_diff_text(
    out: &mut dyn Write,
    comparison: &Comparison<'_>,
    style: Style,
) -> io::Result<()> {
    text::write(out, &diff::page(comparison), style)
}

/// Writes a comparison as a table with tabs between.
pub fn write_diff_tsv(out: &mut dyn Write, comparison: &Comparison<'_>) -> io::Result<()> {
    tsv::write(out, &diff::table(comparison))
}

impl Subject<'_> {
    /// The wall clock of the file, if it has one.
    fn clock(&self) -> Option<WallClock> {
        self.facts.clock.map(|(moment, nanos)| WallClock::recorded(moment, nanos, None, 0))
    }

    /// A moment for people: RFC 3339, or seconds since the beginning.
    pub(in crate::export) fn time(&self, at: Moment) -> String {
        match self.clock() {
            Some(clock) => clock.precise(at),
            None => format!("{:.3}s", self.nanos(at) as f64 / 1e9),
        }
    }

    /// Nanoseconds since the file's beginning; what came before is negative.
    pub(in crate::export) fn nanos(&self, at: Moment) -> i64 {
        let nanos = i128::from(at.0) - i128::from(self.facts.origin().0);
        i64::try_from(nanos).unwrap_or(if nanos < 0 { i64::MIN } else { i64::MAX })
    }

    /// A moment for programs: RFC 3339, or a number of seconds.
    fn plain_time(&self, at: Moment) -> Cell {
        Cell::Text(match self.clock() {
            Some(clock) => clock.precise(at),
            None => format!("{:.9}", self.nanos(at) as f64 / 1e9),
        })
    }

    /// What sums of the file are of.
    pub(in crate::export) fn memory(&self) -> &'static str {
        match self.imported.source.measure() {
            Measure::Device => "device memory",
            Measure::Torch => "PyTorch memory",
        }
    }

    /// What is to be said of memory that is live at the end. A snapshot is of a program that runs.
    pub(in crate::export) fn never_freed(&self) -> &'static str {
        match self.imported.source {
            Source::Torch => "live in the snapshot",
            Source::Recording | Source::Nsys | Source::Sanitizer => "never freed",
        }
    }

    /// The name of a process, where the file tells it.
    pub(in crate::export) fn process(&self, pid: Pid) -> Option<&str> {
        self.facts.processes.get(&pid).map(String::as_str)
    }

    /// Rows of a list that are shown.
    fn shown(&self, all: usize) -> usize {
        self.top.map_or(all, |top| top.min(all))
    }

    /// What a reader should know of the figures.
    fn notes(&self) -> Vec<Line> {
        let mut notes = Vec::new();
        if !self.facts.exact() {
            notes.push(Line::Alarm("NOT EXACT: see the notes below".to_owned()));
        }
        for warning in &self.facts.warnings {
            let times =
                if warning.count > 1 { format!(" ({})", warning.count) } else { String::new() };
            let text = format!("note: {}{times}", warning.text);
            notes.push(if warning.inexact { Line::Alarm(text) } else { Line::Plain(text) });
        }
        notes
    }
}

/// Where memory of a kind lies: `gpu_0`, `gpu_?` or `host`.
fn location(device_known: Option<DeviceId>, kind: Kind) -> Cell {
    if device_known.is_none() && is_host(kind) {
        return Cell::Text("host".to_owned());
    }
    device(device_known)
}

/// `gpu_0`, or `gpu_?`.
fn device(device: Option<DeviceId>) -> Cell {
    Cell::Text(device.map_or_else(|| "gpu_?".to_owned(), |device| device.to_string()))
}

/// `the biggest of …`: what a list leaves out.
fn left_out(all: usize, shown: usize) -> Option<Line> {
    let more = all.checked_sub(shown).filter(|more| *more > 0)?;
    Some(Line::Dim(format!("… {more} more (--top {all} shows all)")))
}
