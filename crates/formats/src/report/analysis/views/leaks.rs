//! Leaks: memory that was never freed.

use engine::analysis::Amount;
use engine::analysis::leaks::{LeakGroup, LeakReport};
use engine::model::memory_kind::MemoryKind;
use engine::model::units::Bytes;

use super::super::document::{Cell, Document, Line, Section, Table};
use super::super::{AnalyzedFile, frames, location, omitted_note};
use crate::report::live::text::format_count;

pub(in crate::report::analysis) fn document(
    report: &LeakReport,
    file: &AnalyzedFile<'_>,
) -> Document {
    let leaked = report.avoidable();
    let sites = report.sites.iter().filter(|leak| !leak.key.kind.is_static()).count();
    let headline = match leaked.allocations {
        0 => format!("No leaks: all {} was freed", file.memory_phrase()),
        n => {
            let leaks = if n == 1 { "leak" } else { "leaks" };
            let (bytes, memory) = (Bytes(leaked.bytes), file.memory_phrase());
            format!("{n} {leaks}: {bytes} of {memory} {}", file.never_freed_phrase())
        }
    };
    let mut lines = Vec::new();
    if report.by_kind.len() > 1 {
        lines.push(Line::Plain(format!("by kind: {}", kinds(&report.by_kind))));
    }
    if !report.other_by_kind.is_empty() {
        let other = kinds(&report.other_by_kind);
        lines.push(Line::Dim(format!("also never freed (not counted): {other}")));
    }
    let (statics, others): (Vec<_>, Vec<_>) =
        report.sites.iter().partition(|leak| leak.key.kind.is_static());
    let mut sections = vec![section("", &others, file)];
    if !statics.is_empty() {
        let sum = Bytes(report.statics.bytes);
        let title = format!("Static variables: {sum} (freed with their module)");
        sections.push(section(&title, &statics, file));
    }
    for (name, leaks) in
        [("Managed memory", &report.managed), ("Pinned and registered host memory", &report.host)]
    {
        let sum = leaks.iter().fold(Amount::default(), |sum, leak| sum.plus(leak.amount));
        let title = format!("{name}: {} in {}", Bytes(sum.bytes), format_count(sum.allocations));
        sections.push(section(&title, &leaks.iter().collect::<Vec<_>>(), file));
    }
    sections.retain(|section| !section.table.rows.is_empty());
    Document { headline, alarm: sites > 0, lines, sections, notes: Vec::new() }
}

/// `device 12.00 MiB, async 1.00 MiB`.
pub(in crate::report::analysis) fn kinds(amounts: &[(MemoryKind, Amount)]) -> String {
    let parts: Vec<_> =
        amounts.iter().map(|(kind, amount)| format!("{kind} {}", Bytes(amount.bytes))).collect();
    parts.join(", ")
}

fn section(title: &str, leaks: &[&LeakGroup], file: &AnalyzedFile<'_>) -> Section {
    let shown = file.shown(leaks.len());
    let row = |leak: &&LeakGroup| {
        vec![
            Cell::Bytes(leak.amount.bytes),
            Cell::Count(leak.amount.allocations),
            Cell::Text(leak.key.kind.to_string()),
            location(leak.key.device, leak.key.kind),
            Cell::Text(leak.key.pid.to_string()),
            frames::cell(&file.info.stacks, leak.key.site),
        ]
    };
    Section {
        title: title.to_owned(),
        table: Table {
            columns: vec!["bytes", "count", "kind", "device", "pid", "site"],
            rows: leaks.iter().take(shown).map(row).collect(),
        },
        after: omitted_note(leaks.len(), shown).into_iter().collect(),
        ..Section::default()
    }
}

/// Returns every site, including those that do not count as leaked.
pub(in crate::report::analysis) fn table(report: &LeakReport, file: &AnalyzedFile<'_>) -> Table {
    let all: Vec<_> = report.sites.iter().chain(&report.managed).collect();
    let shown = file.shown(all.len());
    let row = |leak: &&LeakGroup| {
        vec![
            Cell::Bytes(leak.amount.bytes),
            Cell::Count(leak.amount.allocations),
            Cell::Count(leak.at_exit),
            Cell::Count(leak.allocations_total),
            Cell::Text(leak.key.kind.to_string()),
            device_number(leak.key.device),
            Cell::Text(leak.key.pid.to_string()),
            frames::cell(&file.info.stacks, leak.key.site),
        ]
    };
    Table {
        columns: vec![
            "bytes",
            "allocations",
            "live_at_exit",
            "allocations_total",
            "kind",
            "device",
            "pid",
            "stack",
        ],
        rows: all.iter().take(shown).map(row).collect(),
    }
}

/// Returns the device ordinal, for TSV.
pub(in crate::report::analysis) fn device_number(
    device: Option<engine::model::ids::DeviceId>,
) -> Cell {
    device.map_or(Cell::Empty, |device| Cell::Count(u64::from(device.0)))
}
