//! Verdicts and anomalies as text.

use std::io::{self, Write};

use engine::snapshot::Snapshot;
use engine::verdict::{Anomaly, Judgement, Verdict};

use super::{advice, evidence, place, sentence, unusual, words};
use crate::export::Names;
use crate::export::text::{Style, sites};
use crate::plain::plain;

/// Maximum number of suspects in an interim report.
const ON_THE_WAY: usize = 3;

/// Maximum number of anomalies per report.
const ANOMALIES: usize = 10;

/// Writes a line for each suspect and anomaly, for an interim report.
pub(in crate::export) fn short(
    out: &mut dyn Write,
    snapshot: &Snapshot,
    names: &Names,
    style: Style,
) -> io::Result<()> {
    for suspect in snapshot.suspects.iter().take(ON_THE_WAY) {
        let text = format!("LEAK SUSPECT: {}: {}", location_of(suspect), summary_of(suspect));
        writeln!(out, "{}", style.alarm(&text))?;
    }
    more(out, snapshot.suspects_total, ON_THE_WAY as u64, "suspects", style)?;
    anomalies(out, &snapshot.anomalies, names, style)
}

/// Writes all verdicts, for the last report.
pub(in crate::export) fn whole(
    out: &mut dyn Write,
    snapshot: &Snapshot,
    names: &Names,
    style: Style,
) -> io::Result<()> {
    if snapshot.suspects_total == 0 && snapshot.judgements.is_empty() {
        return anomalies(out, &snapshot.anomalies, names, style);
    }
    writeln!(out)?;
    let undecided = snapshot
        .judgements
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
    if !snapshot.judgements.is_empty() {
        writeln!(out, "{}", style.bold("Other sites by live memory"))?;
    }
    for verdict in &snapshot.judgements {
        let word = words(verdict.verdict);
        let text = format!("{}: {}", location_of(verdict), summary_of(verdict));
        writeln!(out, "  {word:<16}{}", style.dim(&text))?;
    }
    anomalies(out, &snapshot.anomalies, names, style)
}

/// Returns the location and process of a site.
fn location_of(verdict: &Judgement) -> String {
    let location = place(verdict.site, &verdict.frames);
    let pid = verdict.pid.map_or_else(|| "exited".to_owned(), |pid| format!("pid {pid}"));
    plain(&format!("{location} in {} ({pid})", verdict.process)).into_owned()
}

fn summary_of(verdict: &Judgement) -> String {
    sentence(verdict.subject, verdict.verdict, &verdict.evidence)
}

fn suspect(
    out: &mut dyn Write,
    number: usize,
    suspect: &Judgement,
    style: Style,
) -> io::Result<()> {
    let confidence = suspect.sureness.name();
    let verdict = suspect.verdict.name();
    let title = format!("{}: {verdict} ({confidence})", location_of(suspect));
    writeln!(out, "{number}. {}", style.bold(&title))?;
    let device = suspect.device.map_or_else(String::new, |device| format!("{device}: "));
    let thread = suspect.thread.as_ref().map_or_else(String::new, |(tid, name)| {
        format!(", all from thread {} ({tid})", plain(name))
    });
    writeln!(out, "   {device}{}{thread}", summary_of(suspect))?;
    for (index, line) in evidence(suspect).iter().enumerate() {
        writeln!(out, "   {} {line}", if index == 0 { "evidence:" } else { "         " })?;
    }
    let frames: Vec<_> = suspect.frames.iter().collect();
    writeln!(out, "   fix: {}", advice(suspect.subject, &suspect.evidence, &frames))?;
    sites::frames(out, &suspect.frames, "     ", style)
}

/// Writes anomalies, one line each.
fn anomalies(
    out: &mut dyn Write,
    anomalies: &[Anomaly],
    names: &Names,
    style: Style,
) -> io::Result<()> {
    for anomaly in anomalies.iter().take(ANOMALIES) {
        let location = place(anomaly.site, &anomaly.frames);
        let process = match anomaly.tid {
            Some(tid) => format!(
                "{} (pid {}, thread {}:{tid})",
                anomaly.process, anomaly.pid, anomaly.thread
            ),
            None => format!("{} (pid {})", anomaly.process, anomaly.pid),
        };
        let text = format!(
            "ANOMALY at {}: {process}, {location}: {}",
            names.clock.short(anomaly.at),
            unusual(anomaly)
        );
        writeln!(out, "{}", style.paint("33", &plain(&text)))?;
    }
    more(out, anomalies.len() as u64, ANOMALIES as u64, "anomalies", style)
}

fn more(out: &mut dyn Write, all: u64, shown: u64, noun: &str, style: Style) -> io::Result<()> {
    match all.saturating_sub(shown) {
        0 => Ok(()),
        more => writeln!(out, "{}", style.dim(&format!("… {more} more {noun}"))),
    }
}
