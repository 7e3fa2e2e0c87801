//! Verdicts and anomalies as text.

use std::io::{self, Write};

use engine::snapshot::Snapshot;
use engine::verdict::{Anomaly, SiteVerdict, Verdict};

use super::{advice, anomaly_summary, evidence, location, summary, verdict_label};
use crate::export::ReportContext;
use crate::report::live::text::{TextStyle, sites};
use crate::sanitize::sanitize;

/// Maximum number of suspects in an interim report.
const MAX_INTERIM_SUSPECTS: usize = 3;

/// Maximum number of anomalies per report.
const MAX_ANOMALIES: usize = 10;

/// Writes a line for each suspect and anomaly, for an interim report.
pub(crate) fn write_brief(
    out: &mut dyn Write,
    snapshot: &Snapshot,
    context: &ReportContext,
    style: TextStyle,
) -> io::Result<()> {
    for suspect in snapshot.suspects.iter().take(MAX_INTERIM_SUSPECTS) {
        let text = format!("LEAK SUSPECT: {}: {}", location_of(suspect), summary_of(suspect));
        writeln!(out, "{}", style.alarm(&text))?;
    }
    more(out, snapshot.suspects_total, MAX_INTERIM_SUSPECTS as u64, "suspects", style)?;
    anomalies(out, &snapshot.anomalies, context, style)
}

/// Writes all verdicts, for the last report.
pub(crate) fn write_full(
    out: &mut dyn Write,
    snapshot: &Snapshot,
    context: &ReportContext,
    style: TextStyle,
) -> io::Result<()> {
    if snapshot.suspects_total == 0 && snapshot.other_verdicts.is_empty() {
        return anomalies(out, &snapshot.anomalies, context, style);
    }
    writeln!(out)?;
    let undecided = snapshot
        .other_verdicts
        .iter()
        .filter(|verdict| matches!(verdict.verdict, Verdict::NotEnoughData | Verdict::RampUp));
    let headline = match (snapshot.suspects_total, undecided.count()) {
        (0, 0) => style.bold("NO LEAK SUSPECTS"),
        (0, n) => {
            style.bold(&format!("NO LEAK SUSPECTS (too early to judge {n} of the sites below)"))
        }
        (1, _) => style.alarm("1 LEAK SUSPECT"),
        (n, _) => style.alarm(&format!("{n} LEAK SUSPECTS")),
    };
    writeln!(out, "{headline}")?;
    for (index, verdict) in snapshot.suspects.iter().enumerate() {
        suspect(out, index + 1, verdict, style)?;
    }
    let listed = snapshot.suspects.len() as u64;
    more(out, snapshot.suspects_total, listed, "suspects", style)?;
    if !snapshot.other_verdicts.is_empty() {
        writeln!(out, "{}", style.bold("Other sites by live memory"))?;
    }
    for verdict in &snapshot.other_verdicts {
        let word = verdict_label(verdict.verdict);
        let text = format!("{}: {}", location_of(verdict), summary_of(verdict));
        writeln!(out, "  {word:<16}{}", style.dim(&text))?;
    }
    anomalies(out, &snapshot.anomalies, context, style)
}

/// Returns the location and process of a site.
fn location_of(verdict: &SiteVerdict) -> String {
    let location = location(verdict.site, &verdict.frames);
    let pid = verdict.pid.map_or_else(|| "exited".to_owned(), |pid| format!("pid {pid}"));
    sanitize(&format!("{location} in {} ({pid})", verdict.process)).into_owned()
}

fn summary_of(verdict: &SiteVerdict) -> String {
    summary(verdict.resource, verdict.verdict, &verdict.evidence)
}

fn suspect(
    out: &mut dyn Write,
    number: usize,
    suspect: &SiteVerdict,
    style: TextStyle,
) -> io::Result<()> {
    let confidence = suspect.confidence.name();
    let verdict = suspect.verdict.name();
    let title = format!("{}: {verdict} ({confidence})", location_of(suspect));
    writeln!(out, "{number}. {}", style.bold(&title))?;
    let device = suspect.device.map_or_else(String::new, |device| format!("{device}: "));
    let thread = suspect.thread.as_ref().map_or_else(String::new, |(tid, name)| {
        format!(", all from thread {} ({tid})", sanitize(name))
    });
    writeln!(out, "   {device}{}{thread}", summary_of(suspect))?;
    for (index, line) in evidence(suspect).iter().enumerate() {
        writeln!(out, "   {} {line}", if index == 0 { "evidence:" } else { "         " })?;
    }
    let frames: Vec<_> = suspect.frames.iter().collect();
    writeln!(out, "   fix: {}", advice(suspect.resource, &suspect.evidence, &frames))?;
    sites::frames(out, &suspect.frames, "     ", style)
}

/// Writes anomalies, one line each.
fn anomalies(
    out: &mut dyn Write,
    anomalies: &[Anomaly],
    context: &ReportContext,
    style: TextStyle,
) -> io::Result<()> {
    for anomaly in anomalies.iter().take(MAX_ANOMALIES) {
        let location = location(anomaly.site, &anomaly.frames);
        let process = match anomaly.tid {
            Some(tid) => format!(
                "{} (pid {}, thread {}:{tid})",
                anomaly.process, anomaly.pid, anomaly.thread
            ),
            None => format!("{} (pid {})", anomaly.process, anomaly.pid),
        };
        let text = format!(
            "ANOMALY at {}: {process}, {location}: {}",
            context.clock.short(anomaly.at),
            anomaly_summary(anomaly)
        );
        writeln!(out, "{}", style.paint("33", &sanitize(&text)))?;
    }
    more(out, anomalies.len() as u64, MAX_ANOMALIES as u64, "anomalies", style)
}

fn more(out: &mut dyn Write, all: u64, shown: u64, noun: &str, style: TextStyle) -> io::Result<()> {
    match all.saturating_sub(shown) {
        0 => Ok(()),
        more => writeln!(out, "{}", style.dim(&format!("… {more} more {noun}"))),
    }
}
