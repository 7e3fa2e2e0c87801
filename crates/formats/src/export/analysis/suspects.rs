//! What grows.

use engine::analysis::suspects::{Suspect, Verdict};
use engine::units::Bytes;

use super::leakage::device_number;
use super::model::{Cell, Line, Page, Section, Table};
use super::{Subject, device, frames, left_out};

pub(super) fn page(verdict: &Verdict, subject: &Subject<'_>) -> Page {
    let suspects = match verdict {
        Verdict::NotEnoughData => {
            let headline =
                "Not enough data: the file is too short, or too little happens in it, to \
                tell growth from a start"
                    .to_owned();
            return Page { headline, ..Page::default() };
        }
        Verdict::Judged(suspects) => suspects,
    };
    let headline = match suspects.len() {
        0 => "No suspects: no place grows over the whole file".to_owned(),
        1 => "1 suspect: its memory grows over the whole file and never stands still".to_owned(),
        n => format!("{n} suspects: their memory grows over the whole file and never stands still"),
    };
    let why = "a suspect is no proof: a cache that is not full yet looks the same".to_owned();
    let shown = subject.shown(suspects.len());
    let row = |suspect: &Suspect| {
        vec![
            Cell::Text(format!("{}/h", Bytes(suspect.bytes_per_hour()))),
            Cell::Bytes(suspect.live.bytes),
            Cell::Count(suspect.live.allocations),
            Cell::Text(format!("{} of {}", suspect.growing_steps, suspect.steps)),
            Cell::Share(suspect.freed as f64 / suspect.allocations.max(1) as f64),
            Cell::Span(suspect.mean_age),
            suspect.mean_life.map_or(Cell::Empty, Cell::Span),
            Cell::Text(suspect.place.kind.to_string()),
            device(suspect.place.device),
            Cell::Text(suspect.place.pid.to_string()),
            frames::cell(&subject.facts.stacks, suspect.place.site),
        ]
    };
    let section = Section {
        table: Table {
            columns: vec![
                "grows by", "live", "count", "grew in", "freed", "age", "freed at", "kind",
                "device", "pid", "site",
            ],
            rows: suspects.iter().take(shown).map(row).collect(),
        },
        after: left_out(suspects.len(), shown).into_iter().collect(),
        ..Section::default()
    };
    let found = !suspects.is_empty();
    Page {
        headline,
        alarm: found,
        lines: found.then_some(Line::Dim(why)).into_iter().collect(),
        sections: found.then_some(section).into_iter().collect(),
        notes: Vec::new(),
    }
}

/// Every suspect.
pub(super) fn table(verdict: &Verdict, subject: &Subject<'_>) -> Table {
    let suspects = match verdict {
        Verdict::NotEnoughData => &[][..],
        Verdict::Judged(suspects) => suspects,
    };
    let row = |suspect: &Suspect| {
        vec![
            Cell::Bytes(suspect.bytes_per_hour()),
            Cell::Bytes(suspect.live.bytes),
            Cell::Count(suspect.live.allocations),
            Cell::Bytes(suspect.first_bytes),
            Cell::Bytes(suspect.last_bytes),
            Cell::Count(suspect.growing_steps as u64),
            Cell::Count(suspect.steps as u64),
            Cell::Count(suspect.allocations),
            Cell::Count(suspect.freed),
            Cell::Span(suspect.mean_age),
            suspect.mean_life.map_or(Cell::Empty, Cell::Span),
            Cell::Text(suspect.place.kind.to_string()),
            device_number(suspect.place.device),
            Cell::Text(suspect.place.pid.to_string()),
            frames::cell(&subject.facts.stacks, suspect.place.site),
        ]
    };
    let columns = vec![
        "bytes_per_hour",
        "live_bytes",
        "live_allocations",
        "first_bytes",
        "last_bytes",
        "growing_steps",
        "steps",
        "allocations",
        "freed",
        "mean_age_ns",
        "mean_life_ns",
        "kind",
        "device",
        "pid",
        "stack",
    ];
    Table { columns, rows: suspects.iter().take(subject.shown(suspects.len())).map(row).collect() }
}
