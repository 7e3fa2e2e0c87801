//! Verdicts and anomalies for people.

use std::io::{self, Write};

use engine::snapshot::Snapshot;
use engine::verdict::{Anomaly, Judgement, Verdict};

use super::{advice, evidence, place, sentence, unusual, words};
use crate::export::Names;
use crate::export::text::{Style, sites};
use crate::plain::plain;

/// Suspects that are told in a report on the way.
const ON_THE_WAY: usize = 3;

/// Anomalies that are told at once.
const ANOMALIES: usize = 10;

/// A line for each suspect and anomaly, for a report on the way.
pub(in crate::export) fn short(
    out: &mut dyn Write,
    snapshot: &Snapshot,
    names: &Names,
    style: Style,
) -> io::Result<()> {
    for judged in snapshot.suspects.iter().take(ON_THE_WAY) {
        let text = format!("LEAK SUSPECT: {}: {}", at(judged), said(judged));
        writeln!(out, "{}", style.alarm(&text))?;
    }
    more(out, snapshot.suspects_total, ON_THE_WAY as u64, "suspects", style)?;
    anomalies(out, &snapshot.anomalies, names, style)
}

/// The whole of what is thought, for the last report.
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
    let open = snapshot
        .judgements
        .iter()
        .filter(|judged| matches!(judged.verdict, Verdict::NotEnoughData | Verdict::RampUp));
    let headline = match (snapshot.suspects_total, open.count()) {
        (0, 0) => style.bold("NO LEAK SUSPECTS"),
        (0, n) => {
            style.bold(&format!("NO LEAK SUSPECTS (too early to judge {n} of the sites below)"))
        }
        (1, _) => style.alarm("1 LEAK SUSPECT"),
        (n, _) => style.alarm(&format!("{n} LEAK SUSPECTS")),
    };
    writeln!(out, "{headline}")?;
    for (index, judged) in snapshot.suspects.iter().enumerate() {
        suspect(out, index + 1, judged, style)?;
    }
    let listed = snapshot.suspects.len() as u64;
    more(out, snapshot.suspects_total, listed, "suspects", style)?;
    if !snapshot.judgements.is_empty() {
        writeln!(out, "{}", style.bold("Other sites by live memory"))?;
    }
    for judged in &snapshot.judgements {
        let word = words(judged.verdict);
        writeln!(out, "  {word:<16}{}", style.dim(&format!("{}: {}", at(judged), said(judged))))?;
    }
    anomalies(out, &snapshot.anomalies, names, style)
}

/// Where, and of which process.
fn at(judged: &Judgement) -> String {
    let place = place(judged.site, &judged.frames);
    let pid = judged.pid.map_or_else(|| "exited".to_owned(), |pid| format!("pid {pid}"));
    plain(&format!("{place} in {} ({pid})", judged.process)).into_owned()
}

fn said(judged: &Judgement) -> String {
    sentence(judged.subject, judged.verdict, &judged.evidence)
}

fn suspect(out: &mut dyn Write, number: usize, judged: &Judgement, style: Style) -> io::Result<()> {
    let sure = judged.sureness.name();
    let verdict = judged.verdict.name();
    writeln!(out, "{number}. {}", style.bold(&format!("{}: {verdict} ({sure})", at(judged))))?;
    let device = judged.device.map_or_else(String::new, |device| format!("{device}: "));
    let thread = judged.thread.as_ref().map_or_else(String::new, |(tid, name)| {
        format!(", all from thread {} ({tid})", plain(name))
    });
    writeln!(out, "   {device}{}{thread}", said(judged))?;
    for (index, line) in evidence(judged).iter().enumerate() {
        writeln!(out, "   {} {line}", if index == 0 { "evidence:" } else { "         " })?;
    }
    let frames: Vec<_> = judged.frames.iter().collect();
    writeln!(out, "   fix: {}", advice(judged.subject, &judged.evidence, &frames))?;
    sites::frames(out, &judged.frames, "     ", style)
}

/// What was unusual, a line each.
fn anomalies(
    out: &mut dyn Write,
    anomalies: &[Anomaly],
    names: &Names,
    style: Style,
) -> io::Result<()> {
    for anomaly in anomalies.iter().take(ANOMALIES) {
        let place = place(anomaly.site, &anomaly.frames);
        let who = match anomaly.tid {
            Some(tid) => format!(
                "{} (pid {}, thread {}:{tid})",
                anomaly.process, anomaly.pid, anomaly.thread
            ),
            None => format!("{} (pid {})", anomaly.process, anomaly.pid),
        };
        let text = format!(
            "ANOMALY at {}: {who}, {place}: {}",
            names.clock.short(anomaly.at),
            unusual(anomaly)
        );
        writeln!(out, "{}", style.paint("33", &plain(&text)))?;
    }
    more(out, anomalies.len() as u64, ANOMALIES as u64, "anomalies", style)
}

fn more(out: &mut dyn Write, all: u64, shown: u64, what: &str, style: Style) -> io::Result<()> {
    match all.saturating_sub(shown) {
        0 => Ok(()),
        more => writeln!(out, "{}", style.dim(&format!("… {more} more {what}"))),
    }
}
