//! Out-of-memory errors, anomalies, and incidents that an agent has written.

use engine::model::{Mark, MarkKind};
use engine::snapshot::Snapshot;

use super::ColumnSpec;
use crate::WallClock;
use crate::export::ReportContext;
use crate::report::verdict::{anomaly_summary, location};
use crate::report::view::out_of_memory_request;
use crate::sanitize::sanitize;

/// Columns.
pub const COLUMNS: [ColumnSpec; 5] = [
    ColumnSpec::left("TIME", 0),
    ColumnSpec::left("TYPE", 2),
    ColumnSpec::right("PID", 1),
    ColumnSpec::flexible("PROGRAM", 8, 3),
    ColumnSpec::flexible("WHAT HAPPENED", 16, 0),
];

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Incident {
    /// Time of day, or with the date.
    pub time: String,
    /// `out of memory`, `retry`, `anomaly`, `mark`, or the trigger of an agent's incident.
    pub kind: String,
    /// Process, if known.
    pub pid: Option<u32>,
    /// Program or process.
    pub program: String,
    /// One sentence.
    pub summary: String,
    /// More lines.
    pub details: Vec<String>,
}

impl Incident {
    /// Returns when, what, and in which process: `19:43:00 out of memory: oom.py (pid 8510)`.
    pub fn title(&self) -> String {
        let pid = self.pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
        let text = format!("{} {}: {}{pid}", self.time, self.kind, self.program);
        text.trim_end_matches(": ").to_owned()
    }

    /// Returns the cells.
    pub fn cells(&self) -> Vec<String> {
        vec![
            self.time.clone(),
            self.kind.clone(),
            self.pid.map_or_else(String::new, |pid| pid.to_string()),
            self.program.clone(),
            self.summary.clone(),
        ]
    }
}

/// Returns the label of a mark, with `begin` or `end` of a range.
pub fn mark_text(mark: &Mark) -> String {
    let kind = if mark.kind == MarkKind::Point { "" } else { mark.kind.name() };
    sanitize(format!("{kind} {}", mark.label).trim_start()).into_owned()
}

/// Returns a mark as something that happened.
pub fn of_mark(mark: &Mark, snapshot: &Snapshot, clock: &WallClock) -> Incident {
    let mut processes = snapshot.processes.iter();
    let process = processes.find(|process| Some(process.key.pid) == mark.pid);
    let program = process.map_or("", |process| process.identity.program_or(&process.name));
    Incident {
        time: clock.time_of_day(mark.at),
        kind: "mark".to_owned(),
        pid: mark.pid.map(|pid| pid.0),
        program: sanitize(program).into_owned(),
        summary: mark_text(mark),
        details: Vec::new(),
    }
}

/// Returns what happened since the last snapshot, in order.
pub fn of_snapshot(snapshot: &Snapshot, context: &ReportContext) -> Vec<Incident> {
    let clock = &context.clock;
    let text = |text: &str| sanitize(text).into_owned();
    let ooms =
        snapshot.out_of_memory.iter().map(|oom| {
            let mut details = vec![text(&location(oom.site_name, &oom.frames))];
            details.extend(oom.holders.iter().map(|(pid, name, bytes)| {
                format!("{bytes} held by {} (pid {pid})", sanitize(name))
            }));
            let incident = Incident {
                time: clock.time_of_day(oom.at),
                kind: if oom.recovered.is_some() { "retry" } else { "out of memory" }.to_owned(),
                pid: Some(oom.pid.0),
                program: text(&oom.name),
                summary: text(&out_of_memory_request(oom, &context.gpus)),
                details,
            };
            (oom.at, incident)
        });
    let anomalies = snapshot.anomalies.iter().map(|anomaly| {
        let incident = Incident {
            time: clock.time_of_day(anomaly.at),
            kind: "anomaly".to_owned(),
            pid: Some(anomaly.pid.0),
            program: text(&anomaly.process),
            summary: text(&anomaly_summary(anomaly)),
            details: vec![text(&location(anomaly.site, &anomaly.frames))],
        };
        (anomaly.at, incident)
    });
    let mut all: Vec<_> = ooms.chain(anomalies).collect();
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, incident)| incident).collect()
}
