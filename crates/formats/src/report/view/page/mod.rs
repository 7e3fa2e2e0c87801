//! The view as the live page shows it: text cells in the columns, order and words of text reports.
//! The page only places them, so it needs no logic of its own.

mod leaks;
mod sites;

pub use crate::report::tables::ColumnSpec as PageColumn;
pub use leaks::{LEAK_COLUMNS, LeakDetails, LeakItem};
pub use sites::{SITE_COLUMNS, SiteDetails, SiteItem, site_location};

use engine::model::{CallStack, Frame};
use engine::view::{GpuRow, ProcessRow, View};
use serde::Serialize;

use super::text::{cells, full_at, growth, usage, used_parts, verdict_line};
use super::units::duration_words;
use super::{fold_phrase, notes, text};
use crate::WallClock;
use crate::report::analysis::frames;
use crate::report::redact::redact_paths;
use crate::sanitize::sanitize;

/// An entry of a list that is updated by key.
pub trait Keyed {
    /// Key, unique within its list.
    fn key(&self) -> &str;
}

/// Returns the name of a GPU, sanitized.
pub fn gpu_name(row: &GpuRow<'_>) -> String {
    text::gpu_name(row)
}

/// Returns the columns of processes.
pub fn process_columns() -> Vec<PageColumn> {
    text::SHOWN.iter().map(|column| column.spec()).collect()
}

/// The verdict on the host, and what applies to all values.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Summary {
    /// Time of day of the snapshot.
    pub time: String,
    /// Time since the trace began, in words.
    pub observed: String,
    /// Verdict in one line.
    pub verdict: String,
    /// Whether something leaks or fills a GPU.
    pub alarm: bool,
    /// Notes on the accuracy of the values.
    pub notes: Vec<NoteItem>,
}

/// A note on the accuracy of the values.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct NoteItem {
    /// Text.
    pub text: String,
    /// Whether it makes values inexact.
    pub inexact: bool,
}

impl Summary {
    /// Summarizes a view.
    pub fn of(view: &View<'_>, clock: &WallClock) -> Self {
        let (verdict, alarm) = match view.processes.is_empty() {
            true => ("no GPU memory activity yet".to_owned(), false),
            false => verdict_line(view, clock),
        };
        let note = |note| NoteItem {
            text: notes::text(note, Some(clock)),
            inexact: engine::view::Note::is_inexact(note),
        };
        Self {
            time: clock.time_of_day(view.at),
            observed: duration_words(view.observed),
            verdict,
            alarm,
            notes: view.notes.iter().map(note).collect(),
        }
    }
}

/// A GPU.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct GpuItem {
    key: String,
    /// Index; `None` for memory on unknown GPUs.
    gpu: Option<u16>,
    name: String,
    used: String,
    /// Used and traced memory, as shares of the total in thousandths, if that is known.
    share: Option<[u64; 2]>,
    parts: String,
    growth: String,
    full: String,
    processes: u64,
}

impl GpuItem {
    /// Returns a row of a view.
    pub fn of(row: &GpuRow<'_>, view: &View<'_>, clock: &WallClock) -> Self {
        let known = row.used.zip(row.total).filter(|(_, total)| total.0 > 0);
        Self {
            key: row.gpu.map_or_else(|| "?".to_owned(), |gpu| gpu.0.to_string()),
            gpu: row.gpu.map(|gpu| gpu.0),
            name: gpu_name(row),
            used: usage(row),
            share: known.map(|(used, total)| {
                [used, row.traced].map(|part| {
                    let share = u128::from(part.0) * 1000 / u128::from(total.0);
                    u64::try_from(share).unwrap_or(1000).min(1000)
                })
            }),
            parts: match known {
                Some(_) => used_parts(row, "").trim_start_matches(": ").to_owned(),
                None => String::new(),
            },
            growth: growth(row),
            full: full_at(row, view, clock).map(|at| format!("full in {at}")).unwrap_or_default(),
            processes: row.processes,
        }
    }
}

impl Keyed for GpuItem {
    fn key(&self) -> &str {
        &self.key
    }
}

/// A process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ProcessItem {
    key: String,
    pid: u32,
    /// GPUs that it uses.
    gpus: Vec<u16>,
    /// Name of its verdict.
    state: &'static str,
    cells: Vec<String>,
}

impl ProcessItem {
    /// Returns a row of a view.
    pub fn of(row: &ProcessRow<'_>, view: &View<'_>) -> Self {
        let process = row.process;
        // On a host with one GPU, memory on an unknown device is there.
        let only = view.gpus.iter().find_map(|gpu| gpu.gpu).filter(|_| view.gpus.len() == 1);
        let mut gpus: Vec<u16> =
            process.devices.iter().filter_map(|row| Some(row.gpu.or(only)?.0)).collect();
        gpus.sort_unstable();
        gpus.dedup();
        Self {
            key: format!("{}-{}", process.key.pid, process.key.start),
            pid: process.key.pid.0,
            gpus,
            state: row.state.name(),
            cells: cells(row, view),
        }
    }
}

impl Keyed for ProcessItem {
    fn key(&self) -> &str {
        &self.key
    }
}

/// A line of a call stack.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FrameItem {
    /// The frame, or how many frames of which libraries.
    text: String,
    /// The frames of libraries that this line stands for.
    folded: Vec<String>,
}

/// Returns a stack with its paths, or with the last component of each path only.
fn redacted(stack: &CallStack, paths: bool) -> CallStack {
    stack.map(|frame| redact_paths(frame, paths))
}

fn stack(stack: &CallStack) -> Vec<FrameItem> {
    let all: Vec<_> = stack.iter().zip(&stack.headline().folded).collect();
    let item = |part: &[(&Frame, &bool)]| {
        let lines = part.iter().map(|(frame, _)| sanitize(&frames::line(frame)).into_owned());
        let hidden = part.iter().filter(|(_, is_folded)| **is_folded).map(|(frame, _)| *frame);
        match fold_phrase(&hidden.collect::<Vec<_>>()) {
            Some(text) => FrameItem { text, folded: lines.collect() },
            None => FrameItem { text: lines.collect(), folded: Vec::new() },
        }
    };
    all.chunk_by(|(_, one), (_, other)| **one && **other).map(item).collect()
}
