//! What the live page shows of one snapshot, as a whole or as the difference to the one before.

use std::collections::HashMap;

use engine::model::{Phase, Timestamp};
use engine::view::View;
use formats::WallClock;
use formats::report::view::page::{
    GpuItem, Keyed, LEAK_COLUMNS, LeakItem, ProcessItem, Summary, process_columns,
};
use formats::sanitize::sanitize;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::history::{BANDS, Band, Grouping, History, Row};
use crate::PublishedSnapshot;
use crate::incidents::IncidentView;

/// Maximum number of processes, leaks and incidents in a message; `/api/v1/view/` has all.
const MAX_PROCESSES: usize = 100;
const MAX_LEAKS: usize = 50;
const MAX_INCIDENTS: usize = 50;

/// The state of the page.
pub(super) struct PageState {
    pub(super) sequence: u64,
    summary: Summary,
    gpus: Vec<GpuItem>,
    processes: Vec<ProcessItem>,
    leaks: Vec<LeakItem>,
    incidents: Vec<IncidentView>,
    totals: Totals,
    row: Row,
    phases: Vec<PhaseItem>,
}

/// The time between two marks, in milliseconds of the local time of the host.
#[derive(Clone, PartialEq, Serialize)]
struct PhaseItem {
    label: String,
    pid: Option<u32>,
    begin_ms: i64,
    /// None for points.
    end_ms: Option<i64>,
}

/// Lengths of the whole lists, and the agent's own usage.
#[derive(Clone, PartialEq, Serialize)]
struct Totals {
    processes: usize,
    leaks: usize,
    incidents: usize,
    sites: u64,
    cpu_percent: u64,
    memory_bytes: u64,
    degraded: Vec<&'static str>,
}

impl Keyed for IncidentView {
    fn key(&self) -> &str {
        &self.id
    }
}

impl PageState {
    /// Returns the state of a snapshot that was recorded in the history.
    pub(super) fn new(
        published: &PublishedSnapshot,
        view: &View<'_>,
        mut incidents: Vec<IncidentView>,
        history: &History,
    ) -> Option<Self> {
        let clock = &published.context.clock;
        let totals = Totals {
            processes: view.processes.len(),
            leaks: view.leaks.len(),
            incidents: incidents.len(),
            sites: published.snapshot.sites_total,
            cpu_percent: published.own.cpu_percent.round() as u64,
            // In whole MiB, so that it does not change with every page.
            memory_bytes: published.own.memory.0 >> 20 << 20,
            degraded: published.own.steps.iter().map(|step| step.name()).collect(),
        };
        incidents.truncate(MAX_INCIDENTS);
        let processes = view.processes.iter().take(MAX_PROCESSES);
        Some(Self {
            sequence: published.sequence,
            summary: Summary::of(view, clock),
            gpus: view.gpus.iter().map(|gpu| GpuItem::of(gpu, view, clock)).collect(),
            processes: processes.map(|row| ProcessItem::of(row, view)).collect(),
            leaks: LeakItem::all(view, MAX_LEAKS),
            incidents,
            totals,
            row: history.rows.back()?.clone(),
            phases: phases(history, clock),
        })
    }

    /// Returns the whole state, with the history.
    pub(super) fn whole(
        &self,
        history: &History,
        published: &PublishedSnapshot,
        facts: Value,
    ) -> Value {
        let clock = &published.context.clock;
        let first = history.rows.front().map_or(0, |row| row.at);
        let start_ms = local_ms(Timestamp(first), clock);
        json!({
            "sequence": self.sequence,
            "facts": facts,
            // Local time of the host, as in its text reports.
            "start_ms": start_ms,
            "columns": {"processes": process_columns(), "leaks": LEAK_COLUMNS},
            "history": whole_history(history, first),
            "phases": self.phases,
            "summary": self.summary,
            "totals": self.totals,
            "gpus": whole_list(&self.gpus),
            "processes": whole_list(&self.processes),
            "leaks": whole_list(&self.leaks),
            "incidents": whole_list(&self.incidents),
        })
    }

    /// Returns what changed since another state.
    pub(super) fn since(&self, old: &Self, history: &History) -> Value {
        let mut all = Map::new();
        all.insert("sequence".into(), self.sequence.into());
        // In milliseconds, as 64-bit nanoseconds do not fit a JavaScript number.
        all.insert("after_ms".into(), (self.row.at.saturating_sub(old.row.at) / 1_000_000).into());
        let row = row_since(&self.row, &old.row, history, old.sequence);
        all.insert("row".into(), row);
        let mut changed = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                all.insert(name.into(), value);
            }
        };
        changed("summary", (self.summary != old.summary).then(|| json!(self.summary)));
        changed("totals", (self.totals != old.totals).then(|| json!(self.totals)));
        changed("phases", (self.phases != old.phases).then(|| json!(self.phases)));
        changed("gpus", list_change(&old.gpus, &self.gpus));
        changed("processes", list_change(&old.processes, &self.processes));
        changed("leaks", list_change(&old.leaks, &self.leaks));
        changed("incidents", list_change(&old.incidents, &self.incidents));
        all.into()
    }
}

/// Returns a time in milliseconds of the local time of the host.
fn local_ms(at: Timestamp, clock: &WallClock) -> i64 {
    clock.nanos(at) / 1_000_000 + i64::from(clock.offset()) * 1000
}

/// Returns the time between the marks of the last hour.
fn phases(history: &History, clock: &WallClock) -> Vec<PhaseItem> {
    let marks: Vec<_> = history.marks.iter().cloned().collect();
    let item = |phase: Phase| PhaseItem {
        label: sanitize(&phase.label).into_owned(),
        pid: phase.pid.map(|pid| pid.0),
        begin_ms: local_ms(phase.begin, clock),
        end_ms: phase.end.filter(|_| !phase.is_point).map(|end| local_ms(end, clock)),
    };
    Phase::of(&marks).into_iter().map(item).collect()
}

fn whole_list<T: Keyed + Serialize>(all: &[T]) -> Value {
    json!({"order": all.iter().map(Keyed::key).collect::<Vec<_>>(), "entries": all})
}

/// Returns the order of a list, if it changed, and the entries that changed.
fn list_change<T: Keyed + PartialEq + Serialize>(old: &[T], new: &[T]) -> Option<Value> {
    let is_same_order =
        old.len() == new.len() && old.iter().zip(new).all(|(old, new)| old.key() == new.key());
    let before: HashMap<&str, &T> = old.iter().map(|entry| (entry.key(), entry)).collect();
    let is_new = |entry: &&T| before.get(entry.key()).is_none_or(|old| *old != *entry);
    let entries: Vec<&T> = new.iter().filter(is_new).collect();
    if is_same_order && entries.is_empty() {
        return None;
    }
    let mut all = Map::new();
    if !is_same_order {
        all.insert("order".into(), new.iter().map(Keyed::key).collect());
    }
    all.insert("entries".into(), json!(entries));
    Some(all.into())
}

fn band(band: &Band) -> Value {
    json!({"name": band.name, "target": band.key.target()})
}

/// Returns all rows: columns of differences, which are short where memory does not change.
fn whole_history(history: &History, first: u64) -> Value {
    let steps = |values: &mut dyn Iterator<Item = u64>| -> Value {
        let mut before = 0_i128;
        let step = |value: u64| {
            let step = i128::from(value) - before;
            before = i128::from(value);
            i64::try_from(step).unwrap_or_default()
        };
        values.map(step).collect()
    };
    let rows = || history.rows.iter();
    let series = Grouping::ALL.map(|grouping| {
        let at = grouping as usize;
        let bands = history.bands.get(at).into_iter().flatten().enumerate();
        let bands = bands.map(|(index, one)| {
            let mut all = band(one);
            all["values"] = steps(&mut rows().map(|row| row.values[at][index]));
            all
        });
        let bands: Vec<Value> = bands.collect();
        (grouping.name().to_owned(), json!({"bands": bands, "others": history.others[at]}))
    });
    json!({
        "times_ms": steps(&mut rows().map(|row| row.at.saturating_sub(first) / 1_000_000)),
        "totals": steps(&mut rows().map(|row| row.total)),
        "used": rows().map(|row| row.used).collect::<Vec<_>>(),
        "series": Map::from_iter(series),
    })
}

/// Returns the values that differ from another row, and the bands that are new since a snapshot.
fn row_since(new: &Row, old: &Row, history: &History, sequence: u64) -> Value {
    let mut series = Map::new();
    for grouping in Grouping::ALL {
        let at = grouping as usize;
        let mut one = Map::new();
        let bands = history.bands.get(at).into_iter().flatten().enumerate();
        let bands: Vec<Value> = bands
            .filter(|(_, one)| one.since > sequence)
            .map(|(index, one)| json!([index, band(one)]))
            .collect();
        if !bands.is_empty() {
            one.insert("bands".into(), bands.into());
        }
        let values: Vec<[u64; 2]> = (0..BANDS)
            .filter(|index| new.values[at][*index] != old.values[at][*index])
            .map(|index| [index as u64, new.values[at][index]])
            .collect();
        if !values.is_empty() {
            one.insert("values".into(), json!(values));
        }
        one.insert("others".into(), history.others[at].into());
        series.insert(grouping.name().to_owned(), one.into());
    }
    json!({"total": new.total, "used": new.used, "series": series})
}
