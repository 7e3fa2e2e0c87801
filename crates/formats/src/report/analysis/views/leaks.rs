//! Leaks: other verdicts and anomalies, and memory that is still held or was not freed, by site. The
//! leaks themselves are written before.

use engine::analysis::Amount;
use engine::analysis::leaks::{LeakGroup, LeakReport};
use engine::model::{Bytes, MemoryKind, Nanos};
use engine::snapshot::Snapshot;
use engine::verdict::{Anomaly, AnomalyKind, Evidence, SiteVerdict};

use super::super::document::{Cell, Document, Line, Section, Table, table};
use super::super::{AnalyzedFile, frames, location};
use crate::import::FileState;
use crate::report::live::text::{format_age, format_count};
use crate::report::verdict::{kind, live, verdict_label};

pub(crate) fn document(
    report: &LeakReport,
    state: &FileState,
    file: &AnalyzedFile<'_>,
) -> Document {
    let headline = match held(report, file) {
        Some(held) => format!("{}: {held}", capitalized(file.memory_phrase())),
        None => format!("All {} was freed", file.memory_phrase()),
    };
    let mut lines = Vec::new();
    if report.by_kind.len() > 1 {
        lines.push(Line::Plain(format!("by kind: {}", kinds(&report.by_kind))));
    }
    if !report.other_by_kind.is_empty() {
        let other = kinds(&report.other_by_kind);
        lines.push(Line::Dim(format!("also held (not counted): {other}")));
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
    sections.push(other_verdicts(&state.snapshot, file));
    sections.push(anomalies(&state.snapshot.anomalies, file));
    sections.retain(|section| !section.table.rows.is_empty());
    Document { headline, alarm: false, lines, sections, notes: Vec::new() }
}

/// Returns `8.76 GiB in 1570 allocations still held at the end, 22.00 MiB in 3 allocations not freed
/// at exit`; `None` if everything was freed.
fn held(report: &LeakReport, file: &AnalyzedFile<'_>) -> Option<String> {
    let live = Amount {
        bytes: report.leaked.bytes.saturating_sub(report.at_exit.bytes),
        allocations: report.leaked.allocations.saturating_sub(report.at_exit.allocations),
    };
    let parts = [(live, file.held_phrase()), (report.at_exit, "not freed at exit")];
    let parts: Vec<_> = parts
        .into_iter()
        .filter(|(amount, _)| amount.allocations > 0)
        .map(|(amount, phrase)| {
            format!("{} in {} {phrase}", Bytes(amount.bytes), format_count(amount.allocations))
        })
        .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

pub(super) fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_ascii_uppercase());
    first.into_iter().chain(chars).collect()
}

/// Returns the verdicts on other sites than those of the functions that leak: those have the memory
/// that the leak is made of, or what it frees.
fn other_verdicts(snapshot: &Snapshot, file: &AnalyzedFile<'_>) -> Section {
    let place = |one: &SiteVerdict| {
        let frame = frames::headline(&one.frames);
        (one.pid, frame.map(|frame| (frame.file, frame.module, frame.function)))
    };
    let leaks: Vec<_> = snapshot.suspects.iter().map(place).collect();
    let verdicts: Vec<_> =
        snapshot.other_verdicts.iter().filter(|one| !leaks.contains(&place(one))).collect();
    let shown = file.shown(verdicts.len());
    let table = table!(verdicts.iter().take(shown), |one| {
        "verdict": Cell::Text(verdict_label(one.verdict).to_owned()),
        "kind": Cell::Text(kind(one.resource).to_owned()),
        "live": Cell::Text(live(one.resource, &one.evidence)),
        "allocated": Cell::Count(one.evidence.created),
        "freed": Cell::Count(one.evidence.freed),
        "pid": Cell::pid(one.pid),
        "site": frames::cell_of(&one.frames),
    });
    Section::list("Verdicts on other sites", table, verdicts.len())
}

fn anomalies(anomalies: &[Anomaly], file: &AnalyzedFile<'_>) -> Section {
    let shown = file.shown(anomalies.len());
    let shown = anomalies.iter().take(shown).map(|anomaly| {
        let (what, bytes, baseline) = match anomaly.details {
            AnomalyKind::Size { bytes, baseline, of_site, live, .. } => {
                let scope = if of_site { "at this site" } else { "in this process" };
                let state = if live { "live" } else { "freed" };
                (format!("size, {scope}; {state}"), bytes, baseline)
            }
            AnomalyKind::Growth { bytes, within, baseline } => {
                (format!("growth in {}", format_age(within)), bytes, baseline)
            }
        };
        (anomaly, what, bytes, baseline)
    });
    let table = table!(shown, |(anomaly, what, bytes, baseline)| {
        "time": Cell::Time(file.time(anomaly.at), file.nanos(anomaly.at)),
        "bytes": Cell::Bytes(bytes.0),
        "baseline": Cell::Bytes(baseline.0),
        "type": Cell::Text(what),
        "kind": Cell::Text(anomaly.kind.to_string()),
        "pid": Cell::Text(anomaly.pid.to_string()),
        "site": frames::cell_of(&anomaly.frames),
    });
    Section::list("Anomalies", table, anomalies.len())
}

/// `device 12.00 MiB, async 1.00 MiB`.
pub(crate) fn kinds(amounts: &[(MemoryKind, Amount)]) -> String {
    let parts: Vec<_> =
        amounts.iter().map(|(kind, amount)| format!("{kind} {}", Bytes(amount.bytes))).collect();
    parts.join(", ")
}

fn section(title: &str, leaks: &[&LeakGroup], file: &AnalyzedFile<'_>) -> Section {
    let table = table!(leaks.iter(), |leak| {
        "bytes": Cell::Bytes(leak.amount.bytes),
        "count": Cell::Count(leak.amount.allocations),
        "kind": Cell::Text(leak.key.kind.to_string()),
        "device": location(leak.key.device, leak.key.kind),
        "pid": Cell::Text(leak.key.pid.to_string()),
        "site": frames::cell(&file.info.stacks, leak.key.site),
    });
    Section::merged(title, table, file.top.unwrap_or(usize::MAX))
}

/// Returns every site with its verdict, suspects first.
pub(crate) fn table(state: &FileState, file: &AnalyzedFile<'_>) -> Table {
    let span = |span: Option<Nanos>| span.map_or(Cell::Empty, Cell::Span);
    let all = || state.snapshot.suspects.iter().chain(&state.snapshot.other_verdicts);
    let shown = all().take(file.shown(all().count()));
    table!(shown.map(|one| (one, &one.evidence)), |(one, evidence)| {
        "verdict": Cell::Text(one.verdict.name().to_owned()),
        "confidence": Cell::Text(one.confidence.name().to_owned()),
        "growth_per_hour": Cell::Count(evidence.growth_per_hour),
        "live": Cell::Count(evidence.live),
        "live_count": Cell::Count(evidence.live_count),
        "first": Cell::Count(first_low(evidence)),
        "last": Cell::Count(evidence.window_min.last().copied().unwrap_or(0)),
        "growing_steps": Cell::Count(u64::from(evidence.growing_steps)),
        "steps": Cell::Count(u64::from(evidence.steps)),
        "created": Cell::Count(evidence.created),
        "freed": Cell::Count(evidence.freed),
        "overdue": Cell::Count(evidence.overdue),
        "mean_age_ns": Cell::Span(evidence.mean_age),
        "mean_lifetime_ns": span(evidence.mean_life),
        "median_age_ns": span(evidence.median_age),
        "median_lifetime_ns": span(evidence.median_life),
        "max_lifetime_ns": span(evidence.longest_life),
        "kind": Cell::Text(kind(one.resource).to_owned()),
        "device": device_number(one.device),
        "pid": Cell::pid(one.pid),
        "stack": frames::cell_of(&one.frames),
    })
}

/// Returns the minimum in the first window after the one in which the site's first allocation was
/// made.
fn first_low(evidence: &Evidence) -> u64 {
    evidence.window_min.get(1).or(evidence.window_min.first()).copied().unwrap_or(0)
}

/// Returns the device ordinal, for TSV.
pub(crate) fn device_number(device: Option<engine::model::ids::DeviceId>) -> Cell {
    device.map_or(Cell::Empty, |device| Cell::Count(u64::from(device.0)))
}
