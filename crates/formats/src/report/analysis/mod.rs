//! Reports on files. Each analysis becomes a [`Document`] (text), a [`Table`] (TSV) and an object
//! (JSON), which the renderers write.

mod document;
pub(crate) mod frames;
pub mod json;
mod text;
mod tsv;
mod views;

use std::io::{self, Write};

use engine::analysis::diff::Diff;
use engine::analysis::leaks::LeakReport;
use engine::analysis::peak::Peak;
use engine::analysis::phases::PhaseUsage;
use engine::analysis::summary::SummaryReport;
use engine::analysis::usage::UsageReport;
use engine::analysis::{MemoryScope, is_host};
use engine::model::{DeviceId, MemoryKind, Pid, Timestamp};
use engine::view::View;

use super::live::text::TextStyle;
use super::text_page::TextPage;
use super::view::{gpu_facts, write_last, write_out_of_memory};
use crate::WallClock;
use crate::import::collecting_sink::FileInfo;
use crate::import::recording::STATE_WARNINGS;
use crate::import::{FileState, ImportSummary, SourceFormat};

pub(crate) use tsv::field;
pub use views::fragmentation::{AdviceRow, FragmentationView, WouldFit};
pub(crate) use views::fragmentation::{pool_name, pool_pid};

pub use document::{AsciiChart, Cell, Document, Line, Section, Table};

/// The file that is analyzed.
#[derive(Clone, Copy, Debug)]
pub struct AnalyzedFile<'a> {
    /// Path, as the user gave it.
    pub path: &'a str,
    /// Format, producer and number of events.
    pub imported: &'a ImportSummary,
    /// Everything in the file besides changes.
    pub info: &'a FileInfo,
    /// Maximum number of rows of a list; all if none.
    pub top: Option<usize>,
    /// Whether times are in UTC; otherwise in local time.
    pub utc: bool,
}

/// An analysis with its result.
#[derive(Clone, Copy, Debug)]
pub enum AnalysisResult<'a> {
    /// Verdict, peak and holders.
    Summary(&'a SummaryReport, &'a [Peak], &'a FileState),
    /// Leaks, other verdicts, anomalies, and memory that is still held.
    Leaks(&'a LeakReport, &'a FileState),
    /// Peaks.
    Peak(&'a [Peak]),
    /// Memory over time, with series of other tools.
    Usage(&'a UsageReport, &'a [OverlaySeries]),
    /// Memory by call site.
    Sites(&'a SummaryReport),
    /// Memory by library.
    Libraries(&'a SummaryReport),
    /// Memory between marks.
    Marks(&'a [PhaseUsage]),
    /// Fragmentation of caches and pools.
    Fragmentation(&'a FragmentationView),
}

/// Memory over time as reported by another tool, for a chart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OverlaySeries {
    /// Label, such as `nvidia-smi, GPU 0`.
    pub name: String,
    /// Device of the series; any device if none.
    pub device: Option<DeviceId>,
    /// Timestamps of the file's clock, and bytes.
    pub points: Vec<(Timestamp, u64)>,
}

/// The comparison of two files.
#[derive(Clone, Copy, Debug)]
pub struct DiffView<'a> {
    /// The older file.
    pub before: AnalyzedFile<'a>,
    /// The newer file.
    pub after: AnalyzedFile<'a>,
    /// Differences.
    pub diff: &'a Diff,
}

impl AnalysisResult<'_> {
    /// Returns the name of the analysis.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Summary(..) => "summary",
            Self::Leaks(..) => "leaks",
            Self::Peak(_) => "peak",
            Self::Usage(..) => "usage",
            Self::Sites(_) => "sites",
            Self::Libraries(_) => "libraries",
            Self::Marks(_) => "marks",
            Self::Fragmentation(_) => "fragmentation",
        }
    }

    fn document(&self, file: &AnalyzedFile<'_>) -> Document {
        let mut document = match self {
            Self::Summary(result, peaks, _) => views::summary::document(result, peaks, file),
            Self::Leaks(result, state) => views::leaks::document(result, state, file),
            Self::Peak(result) => views::peak::document(result, file),
            Self::Usage(result, overlays) => views::usage::document(result, overlays, file),
            Self::Sites(result) => views::sites::document(result, file),
            Self::Libraries(result) => views::libraries::document(result, file),
            Self::Marks(phases) => views::marks::document(phases, file),
            Self::Fragmentation(result) => views::fragmentation::document(result),
        };
        document.notes.extend(file.notes(self.state().is_some()));
        document
    }

    /// Returns the state at the end of the file, if the result includes it.
    pub const fn state(&self) -> Option<&FileState> {
        match self {
            Self::Summary(_, _, state) | Self::Leaks(_, state) => Some(*state),
            Self::Peak(_)
            | Self::Usage(..)
            | Self::Sites(_)
            | Self::Libraries(_)
            | Self::Marks(_)
            | Self::Fragmentation(_) => None,
        }
    }
}

/// Writes a result as text; `filter`: the options that select a part of the file.
pub fn write_text(
    out: &mut dyn Write,
    file: &AnalyzedFile<'_>,
    result: AnalysisResult<'_>,
    filter: &str,
    style: TextStyle,
) -> io::Result<()> {
    let out = &mut TextPage::new(out, style);
    if let Some(state) = result.state() {
        let facts = gpu_facts(&state.gpus);
        let view = View::of(&state.snapshot, &facts);
        let (clock, top) = (file.clock(), file.top.unwrap_or(usize::MAX));
        let more = format!("vramscope report {}{filter} --leak 1", file.path);
        write_last(out, &view, clock.as_ref(), top, &more)?;
        writeln!(out)?;
        let errors = &state.snapshot.out_of_memory;
        if let Some(clock) = clock.filter(|_| !errors.is_empty()) {
            write_out_of_memory(out, errors, &state.gpus, &clock)?;
            writeln!(out)?;
        }
    }
    text::write(out, &result.document(file))
}

/// Writes the evidence and the stack of a leak of the file. Returns whether there is such a leak.
pub fn write_leak(
    out: &mut dyn Write,
    state: &FileState,
    number: usize,
    style: TextStyle,
) -> io::Result<bool> {
    let facts = gpu_facts(&state.gpus);
    super::view::write_leak(out, &View::of(&state.snapshot, &facts), number, style)
}

/// Writes a result as a tab-separated table.
pub fn write_tsv(
    out: &mut dyn Write,
    file: &AnalyzedFile<'_>,
    result: AnalysisResult<'_>,
) -> io::Result<()> {
    match result {
        AnalysisResult::Summary(result, ..) => {
            tsv::write(out, &views::summary::table(result, file))
        }
        AnalysisResult::Leaks(_, state) => tsv::write(out, &views::leaks::table(state, file)),
        AnalysisResult::Peak(result) => views::peak::rows(result, file, out),
        AnalysisResult::Usage(result, overlays) => views::usage::rows(result, overlays, file, out),
        AnalysisResult::Sites(result) => tsv::write(out, &views::sites::table(result, file)),
        AnalysisResult::Libraries(result) => {
            tsv::write(out, &views::libraries::table(result, file))
        }
        AnalysisResult::Marks(phases) => tsv::write(out, &views::marks::table(phases, file)),
        AnalysisResult::Fragmentation(result) => {
            tsv::write(out, &views::fragmentation::table(result))
        }
    }
}

/// Writes a comparison as text.
pub fn write_diff_text(
    out: &mut dyn Write,
    comparison: &DiffView<'_>,
    style: TextStyle,
) -> io::Result<()> {
    text::write(&mut TextPage::new(out, style), &views::diff::document(comparison))
}

/// Writes a comparison as a tab-separated table.
pub fn write_diff_tsv(out: &mut dyn Write, comparison: &DiffView<'_>) -> io::Result<()> {
    tsv::write(out, &views::diff::table(comparison))
}

impl AnalyzedFile<'_> {
    /// Returns the wall clock of the file, if it has one: in the time zone of the recorded host, or
    /// else of this one.
    pub(crate) fn clock(&self) -> Option<WallClock> {
        let (at, nanos) = self.info.clock?;
        Some(match &self.info.time_zone {
            _ if self.utc => WallClock::recorded(at, nanos, None, 0),
            Some((zone, offset)) => WallClock::recorded(at, nanos, zone.as_deref(), *offset),
            None => WallClock::recorded(at, nanos, None, 0).in_local_time(),
        })
    }

    /// Formats a time for readers: the time of day, with the date if that is not the one of the
    /// start; or seconds since the start.
    pub(crate) fn time(&self, at: Timestamp) -> String {
        match self.clock() {
            Some(clock) => clock.millisecond(at),
            None => format!("{:.3}s", self.nanos(at) as f64 / 1e9),
        }
    }

    /// Returns the nanoseconds since the start of the file; negative for earlier times.
    pub(crate) fn nanos(&self, at: Timestamp) -> i64 {
        self.info.nanos(at)
    }

    /// Formats a time for TSV: RFC 3339, or a number of seconds.
    fn plain_time(&self, at: Timestamp) -> Cell {
        Cell::Text(match self.clock() {
            Some(clock) => clock.precise(at),
            None => format!("{:.9}", self.nanos(at) as f64 / 1e9),
        })
    }

    /// Returns the memory that totals of the file are about.
    pub(crate) fn memory_phrase(&self) -> &'static str {
        match self.imported.source.scope() {
            MemoryScope::Device => "device memory",
            MemoryScope::Torch => "PyTorch memory",
        }
    }

    /// Returns the phrase for a file without allocations: there may be older memory.
    fn nothing(&self) -> String {
        format!("No {} was allocated in the recorded time", self.memory_phrase())
    }

    /// Returns the phrase for memory that is live at the end of the file: programs may go on after
    /// a recording or a snapshot.
    pub(crate) fn held_phrase(&self) -> &'static str {
        match self.imported.source {
            SourceFormat::Torch => "live in the snapshot",
            SourceFormat::Recording | SourceFormat::Nsys | SourceFormat::Sanitizer => {
                "still held at the end"
            }
        }
    }

    /// Returns the name of a process, if the file has it.
    pub(crate) fn process(&self, pid: Pid) -> Option<&str> {
        self.info.processes.get(&pid).map(String::as_str)
    }

    /// Returns the number of rows that are shown.
    fn shown(&self, all: usize) -> usize {
        self.top.map_or(all, |top| top.min(all))
    }

    /// Returns notes on the accuracy of the values; `has_state`: the notes of the recorded state are
    /// printed before.
    fn notes(&self, has_state: bool) -> Vec<Line> {
        let mut notes = Vec::new();
        let is_noted = |text: &str| has_state && STATE_WARNINGS.contains(&text);
        for warning in self.info.warnings.iter().filter(|warning| !is_noted(&warning.text)) {
            let times =
                if warning.count > 1 { format!(" ({})", warning.count) } else { String::new() };
            let text = format!("{}{times}", warning.text);
            notes.push(match warning.inexact {
                true => Line::Alarm(format!("NOT EXACT: {text}")),
                false => Line::Plain(format!("note: {text}")),
            });
        }
        notes
    }
}

/// Returns the location of memory of a kind: `gpu_0`, `gpu_?` or `host`.
fn location(device_known: Option<DeviceId>, kind: MemoryKind) -> Cell {
    if device_known.is_none() && is_host(kind) {
        return Cell::Text("host".to_owned());
    }
    device(device_known)
}

/// Returns `gpu_0`, or `gpu_?` if the device is unknown.
fn device(device: Option<DeviceId>) -> Cell {
    Cell::Text(device.map_or_else(|| "gpu_?".to_owned(), |device| device.to_string()))
}

/// Returns the line for rows that a list omits.
fn omitted_note(all: usize, shown: usize) -> Option<Line> {
    let more = all.checked_sub(shown).filter(|more| *more > 0)?;
    Some(Line::Dim(format!("… {more} more (--top {all} shows all)")))
}
