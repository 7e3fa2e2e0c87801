//! Leak suspects, other verdicts and anomalies.

use engine::analysis::suspects::{FileAnomaly, FileSiteVerdict, SuspectReport};
use engine::model::memory_kind::MemoryKind;
use engine::model::units::Bytes;
use engine::verdict::{self, AnomalyKind, Evidence, SiteVerdict, Verdict};

use super::super::document::{Cell, Document, Line, Section, Table};
use super::super::{AnalyzedFile, frames, location, omitted_note};
use super::leaks::device_number;
use crate::report::live::text::{format_age, format_duration};
use crate::report::verdict as verdict_text;
use crate::report::verdict::{kind as kind_of, verdict_label};

/// Default number of other sites in the report.
const DEFAULT_OTHER_SITES: usize = 10;

pub(in crate::report::analysis) fn document(
    report: &SuspectReport,
    file: &AnalyzedFile<'_>,
) -> Document {
    let suspects = &report.suspects;
    let other_leaks = file.info.verdicts.iter().filter(|one| one.verdict == Verdict::Leak);
    let leaks = suspects.len() + other_leaks.count();
    let shown = file.shown(suspects.len());
    let mut sections: Vec<_> = suspects.iter().take(shown).map(|one| suspect(one, file)).collect();
    if let Some(last) = sections.last_mut() {
        last.after.extend(omitted_note(suspects.len(), shown));
    }
    sections.extend(tensors_and_objects(file));
    sections.push(others(report, file));
    sections.push(anomalies(report, file));
    let caveat = "a suspect is not proof: a cache that is still filling looks the same".to_owned();
    Document {
        headline: headline(report, leaks),
        alarm: leaks > 0,
        lines: (leaks > 0).then_some(Line::Dim(caveat)).into_iter().collect(),
        sections,
        notes: Vec::new(),
    }
}

fn headline(report: &SuspectReport, leaks: usize) -> String {
    match leaks {
        0 if !report.has_enough_data() => {
            "Not enough data: too short, or too few allocations".to_owned()
        }
        0 => "No leak suspects".to_owned(),
        1 => "1 leak suspect: it keeps growing, and old allocations are still live".into(),
        n => format!("{n} leak suspects: they keep growing, and old allocations are still live"),
    }
}

/// Returns the title of a suspect.
fn title(one: &FileSiteVerdict) -> String {
    format!("leak ({}): growing {}/h", one.confidence.name(), Bytes(one.evidence.growth_per_hour))
}

fn suspect(one: &FileSiteVerdict, file: &AnalyzedFile<'_>) -> Section {
    let evidence = &one.evidence;
    let Evidence { created, freed, growing_steps, steps, .. } = *evidence;
    let row = vec![
        Cell::Bytes(one.live.bytes),
        Cell::Count(one.live.allocations),
        Cell::Text(format!("{growing_steps} of {steps}")),
        Cell::Share(freed as f64 / created.max(1) as f64),
        Cell::Span(evidence.mean_age),
        evidence.mean_life.map_or(Cell::Empty, Cell::Span),
        Cell::Text(one.key.kind.to_string()),
        location(one.key.device, one.key.kind),
        Cell::Text(one.key.pid.to_string()),
        frames::cell(&file.info.stacks, one.key.site),
    ];
    let columns = vec![
        "live", "count", "grew in", "freed", "age", "lifetime", "kind", "device", "pid", "site",
    ];
    let mut after = vec![Line::Plain(evidence_line(one))];
    after.push(Line::Dim(format!("fix: {}", advice(one, file))));
    Section {
        title: title(one),
        table: Table { columns, rows: vec![row] },
        after,
        ..Section::default()
    }
}

/// Returns the evidence for a suspect.
fn evidence_line(one: &FileSiteVerdict) -> String {
    let evidence = &one.evidence;
    let Evidence { created, freed, live_count, observed, .. } = *evidence;
    let observed = format_age(observed);
    match evidence.median_life {
        Some(lifetime) => format!(
            "in {observed}, {freed} of {created} freed (median lifetime at most {}); {} live and older than \
             99 % of them",
            format_duration(lifetime),
            Bytes(evidence.overdue),
        ),
        None => format!("in {observed}, 0 of {created} freed; {live_count} live"),
    }
}

fn advice(one: &FileSiteVerdict, file: &AnalyzedFile<'_>) -> String {
    let frames: Vec<_> =
        one.key.site.map(|site| file.info.stacks.frames(site).collect()).unwrap_or_default();
    verdict_text::advice(resource(one.key.kind), &one.evidence, &frames)
}

/// Returns the resource that a verdict on this kind of memory is about.
pub(in crate::report::analysis) const fn resource(kind: MemoryKind) -> verdict::Resource {
    match kind {
        MemoryKind::Torch => verdict::Resource::Tensors,
        kind => verdict::Resource::Memory(kind),
    }
}

/// Returns verdicts on objects and tensors, which are not part of the file's changes.
fn tensors_and_objects(file: &AnalyzedFile<'_>) -> Option<Section> {
    let verdicts = &file.info.verdicts;
    let shown = file.top.unwrap_or(DEFAULT_OTHER_SITES).min(verdicts.len());
    let row = |one: &SiteVerdict| {
        let frames: Vec<_> = one.frames.iter().collect();
        vec![
            Cell::Text(verdict_label(one.verdict).to_owned()),
            Cell::Text(kind_of(one.resource).to_owned()),
            Cell::Text(verdict_text::live(one.resource, &one.evidence)),
            Cell::Text(verdict_text::quantity(one.resource, one.evidence.growth_per_hour)),
            Cell::Count(one.evidence.created),
            Cell::Count(one.evidence.freed),
            Cell::Text(one.pid.map_or_else(String::new, |pid| pid.to_string())),
            Cell::Text(frames::label(&frames)),
        ]
    };
    (!verdicts.is_empty()).then(|| Section {
        title: "Tensors and objects".to_owned(),
        table: Table {
            columns: vec![
                "verdict",
                "kind",
                "live",
                "growth/h",
                "allocated",
                "freed",
                "pid",
                "site",
            ],
            rows: verdicts.iter().take(shown).map(row).collect(),
        },
        after: omitted_note(verdicts.len(), shown).into_iter().collect(),
        ..Section::default()
    })
}

fn others(report: &SuspectReport, file: &AnalyzedFile<'_>) -> Section {
    let shown = file.top.unwrap_or(DEFAULT_OTHER_SITES).min(report.others.len());
    let row = |one: &FileSiteVerdict| {
        vec![
            Cell::Text(verdict_label(one.verdict).to_owned()),
            Cell::Bytes(one.live.bytes),
            Cell::Count(one.live.allocations),
            Cell::Count(one.evidence.created),
            Cell::Count(one.evidence.freed),
            Cell::Text(one.key.kind.to_string()),
            location(one.key.device, one.key.kind),
            Cell::Text(one.key.pid.to_string()),
            frames::cell(&file.info.stacks, one.key.site),
        ]
    };
    Section {
        title: "Other sites".to_owned(),
        table: Table {
            columns: vec![
                "verdict",
                "live",
                "count",
                "allocated",
                "freed",
                "kind",
                "device",
                "pid",
                "site",
            ],
            rows: report.others.iter().take(shown).map(row).collect(),
        },
        after: omitted_note(report.others.len(), shown).into_iter().collect(),
        ..Section::default()
    }
}

fn anomalies(report: &SuspectReport, file: &AnalyzedFile<'_>) -> Section {
    let shown = file.shown(report.anomalies.len());
    let row = |anomaly: &FileAnomaly| {
        let (kind, bytes, baseline) = match anomaly.details {
            AnomalyKind::Size { bytes, baseline, of, of_site, live, .. } => {
                let scope = if of_site { "at this site" } else { "in this process" };
                let state = if live { "live" } else { "no longer live" };
                (format!("size, baseline of {of} {scope}; {state}"), bytes, baseline)
            }
            AnomalyKind::Growth { bytes, within, baseline } => {
                (format!("growth in {}", format_age(within)), bytes, baseline)
            }
        };
        vec![
            Cell::Time(file.time(anomaly.at), file.nanos(anomaly.at)),
            Cell::Bytes(bytes.0),
            Cell::Bytes(baseline.0),
            Cell::Text(kind),
            Cell::Text(anomaly.key.kind.to_string()),
            Cell::Text(anomaly.key.pid.to_string()),
            frames::cell(&file.info.stacks, anomaly.key.site),
        ]
    };
    Section {
        title: "Anomalies".to_owned(),
        table: Table {
            columns: vec!["time", "bytes", "baseline", "type", "kind", "pid", "site"],
            rows: report.anomalies.iter().take(shown).map(row).collect(),
        },
        after: omitted_note(report.anomalies.len(), shown).into_iter().collect(),
        ..Section::default()
    }
}

/// Returns every site, suspects first.
pub(in crate::report::analysis) fn table(report: &SuspectReport, file: &AnalyzedFile<'_>) -> Table {
    let row = |one: &FileSiteVerdict| {
        let evidence = &one.evidence;
        let span = |span: Option<engine::model::units::Nanos>| span.map_or(Cell::Empty, Cell::Span);
        vec![
            Cell::Bytes(evidence.growth_per_hour),
            Cell::Bytes(one.live.bytes),
            Cell::Count(one.live.allocations),
            Cell::Bytes(first_low(evidence)),
            Cell::Bytes(evidence.window_min.last().copied().unwrap_or(0)),
            Cell::Count(u64::from(evidence.growing_steps)),
            Cell::Count(u64::from(evidence.steps)),
            Cell::Count(evidence.created),
            Cell::Count(evidence.freed),
            Cell::Span(evidence.mean_age),
            span(evidence.mean_life),
            Cell::Text(one.key.kind.to_string()),
            device_number(one.key.device),
            Cell::Text(one.key.pid.to_string()),
            frames::cell(&file.info.stacks, one.key.site),
            Cell::Text(one.verdict.name().to_owned()),
            Cell::Text(one.confidence.name().to_owned()),
            Cell::Bytes(evidence.overdue),
            span(evidence.median_age),
            span(evidence.median_life),
            span(evidence.longest_life),
        ]
    };
    let columns = vec![
        "growth_bytes_per_hour",
        "live_bytes",
        "live_allocations",
        "first_bytes",
        "last_bytes",
        "growing_steps",
        "steps",
        "allocations_total",
        "frees_total",
        "mean_age_ns",
        "mean_lifetime_ns",
        "kind",
        "device",
        "pid",
        "stack",
        "verdict",
        "confidence",
        "overdue_bytes",
        "median_age_ns",
        "median_lifetime_ns",
        "max_lifetime_ns",
    ];
    let all = || report.suspects.iter().chain(&report.others);
    Table { columns, rows: all().take(file.shown(all().count())).map(row).collect() }
}

/// Returns the minimum in the first window after the one in which the site's first allocation was
/// made.
pub(in crate::report::analysis) fn first_low(evidence: &Evidence) -> u64 {
    evidence.window_min.get(1).or(evidence.window_min.first()).copied().unwrap_or(0)
}
