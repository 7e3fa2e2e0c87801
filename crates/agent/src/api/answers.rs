//! Answers of the API. Field names are a contract: fields are added, never renamed.

use std::time::{SystemTime, UNIX_EPOCH};

use engine::metrics::{Metric, MetricSet, Sample, SampleValue, catalog};
use engine::model::{Mark, Pid};
use engine::snapshot::{ProcessView, SiteProcess, SiteView};
use engine::view::{Leak, ProcessRow, View};
use formats::report::advice::{AdviceReport, GpuAdvice};
use formats::report::live::json::{ProcessJson, ReportJson, SiteJson};
use formats::report::verdict::json::SiteVerdictJson;
use formats::report::view::page::{
    LEAK_COLUMNS, LeakDetails, PageColumn, ProcessItem, SITE_COLUMNS, SiteDetails, SiteItem,
    process_columns,
};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::cache::Visible;
use super::files::{self, FileEntry};
use super::live::LivePage;
use super::query::ListQuery;
use crate::alerts::AlertView;
use crate::incidents::IncidentView;
use crate::{AgentState, PublishedSnapshot};

/// Version of the API.
pub(super) const VERSION: &str = "v1";

/// Sites per process; the list over all processes is complete.
const SITES_PER_PROCESS: usize = 10;

/// An answer with the fields that all have: version, time, and whether the values are exact.
#[derive(Serialize)]
pub(super) struct Answer<T> {
    api: &'static str,
    time: String,
    exact: bool,
    #[serde(flatten)]
    fields: T,
}

impl<T> Answer<T> {
    pub(super) fn new(published: &PublishedSnapshot, fields: T) -> Self {
        let time = published.context.clock.precise(published.snapshot.at);
        Self { api: VERSION, time, exact: published.snapshot.uncertainty.exact(), fields }
    }
}

/// `snapshot`: what `trace --format json` prints.
#[derive(Serialize)]
pub(super) struct Snapshot {
    api: &'static str,
    #[serde(flatten)]
    report: ReportJson,
}

impl Snapshot {
    /// `marks`: those of the last hour. Clients do not read every snapshot.
    pub(super) fn new(published: &Visible, marks: Vec<Mark>) -> Self {
        let mut snapshot = engine::snapshot::Snapshot { marks, ..published.snapshot.clone() };
        for process in &mut snapshot.processes {
            process.sites.truncate(SITES_PER_PROCESS);
        }
        Self { api: VERSION, report: ReportJson::new(&snapshot, &published.context) }
    }
}

/// A list under its name, cut to the limit of the query, and how many entries there are.
pub(super) struct List<T> {
    name: &'static str,
    entries: Vec<T>,
    total: usize,
}

impl<T> List<T> {
    /// `entry`: how the API shows one of them.
    fn new<S>(
        name: &'static str,
        all: impl Iterator<Item = S>,
        query: ListQuery,
        entry: impl Fn(S) -> T,
    ) -> Self {
        let all: Vec<S> = all.collect();
        let total = all.len();
        Self { name, entries: all.into_iter().take(query.limit).map(entry).collect(), total }
    }
}

impl<T: Serialize> Serialize for List<T> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let mut map = out.serialize_map(Some(2))?;
        map.serialize_entry(self.name, &self.entries)?;
        map.serialize_entry("total", &self.total)?;
        map.end()
    }
}

/// `processes`.
pub(super) fn processes(published: &Visible, query: ListQuery) -> List<ProcessJson> {
    published.with_view(|view| {
        let all = published.snapshot.processes.iter().filter(|one| query.has_pid(one.key.pid));
        let all = all.filter_map(|one| row_of(view, one));
        List::new("processes", all, query, |row| process_json(row, published))
    })
}

/// `advice`; every answer has a time already.
#[derive(Serialize)]
pub(super) struct Advice {
    gpus: Vec<GpuAdvice>,
    notes: Vec<String>,
}

impl Advice {
    pub(super) fn of(report: AdviceReport) -> Self {
        let AdviceReport { time: _, gpus, notes } = report;
        Self { gpus, notes }
    }
}

/// `processes/PID`.
#[derive(Serialize)]
pub(super) struct OneProcess {
    process: Option<ProcessJson>,
}

impl OneProcess {
    /// Returns the process; the running one if its pid was reused.
    pub(super) fn new(published: &Visible, pid: Pid) -> Self {
        let process = published
            .with_view(|view| Some(process_json(row_of(view, find(published, pid)?)?, published)));
        Self { process }
    }
}

fn find(published: &PublishedSnapshot, pid: Pid) -> Option<&ProcessView> {
    published.snapshot.processes.iter().find(|process| process.key.pid == pid)
}

/// Returns the row of a process.
fn row_of<'a>(view: &'a View<'_>, process: &ProcessView) -> Option<&'a ProcessRow<'a>> {
    view.processes.iter().find(|row| std::ptr::eq(row.process, process))
}

fn process_json(row: &ProcessRow<'_>, published: &Visible) -> ProcessJson {
    let mut json = ProcessJson::new(row, &published.context);
    json.truncate_sites(SITES_PER_PROCESS);
    json
}

/// `sites`: those of all processes, or those of one. A site that several processes share has the
/// totals of all of them in the former, and those of one in the latter.
pub(super) fn sites(published: &Visible, query: ListQuery) -> List<SiteJson> {
    let of_process = query.pid.map(|pid| {
        let process = find(published, pid);
        process.map_or_else(Vec::new, |process| own_sites(process, pid))
    });
    let all = of_process.as_deref().unwrap_or(&published.snapshot.sites);
    let json = |site| SiteJson::new(site, &published.context);
    let entries = all.iter().take(query.limit).map(json).collect();
    List { name: "sites", entries, total: all.len() }
}

/// Returns the sites of a process, with its values only.
fn own_sites(process: &ProcessView, pid: Pid) -> Vec<SiteView> {
    let own = |site: &SiteView| {
        let (live_bytes, live_allocations) = (site.live_bytes, site.live_allocations);
        let live = site.kinds.iter().filter(|view| view.live_allocations > 0);
        let kinds = live.map(Into::into).collect();
        let process = SiteProcess { pid: Some(pid), live_bytes, live_allocations, kinds };
        SiteView { processes: vec![process], ..site.clone() }
    };
    process.sites.iter().map(own).collect()
}

/// `suspects`.
pub(super) fn suspects(published: &Visible, query: ListQuery) -> List<SiteVerdictJson> {
    let is_wanted = |pid: Option<Pid>| query.pid.is_none() || pid == query.pid;
    let all = published.snapshot.suspects.iter().filter(|one| is_wanted(one.pid));
    List::new("suspects", all, query, |one| SiteVerdictJson::new(one, true))
}

/// `view/…`: rows of text cells, as text reports have them. They contain no paths, except for stacks.
#[derive(Serialize)]
pub(super) struct ViewList<T> {
    columns: Vec<PageColumn>,
    #[serde(flatten)]
    rows: List<T>,
}

impl ViewList<ProcessItem> {
    pub(super) fn processes(published: &PublishedSnapshot, query: ListQuery) -> Self {
        let rows = published.with_view(|view| {
            let all = view.processes.iter().filter(|row| query.has_pid(row.process.key.pid));
            List::new("rows", all, query, |row| ProcessItem::of(row, view))
        });
        Self { columns: process_columns(), rows }
    }
}

impl ViewList<SiteItem> {
    /// Returns the sites of all processes, or those of one, with its values only.
    pub(super) fn sites(published: &PublishedSnapshot, query: ListQuery) -> Self {
        let snapshot = &published.snapshot;
        let (sites, total) = match query.pid.map(|pid| find(published, pid)) {
            None => (&snapshot.sites[..], snapshot.sites_total),
            Some(Some(process)) => (&process.sites[..], process.sites_total),
            Some(None) => (&[][..], 0),
        };
        let rows = sites.iter().take(query.limit);
        let entries = rows.map(|site| SiteItem::of(site, snapshot, query.pid)).collect();
        let rows = List { name: "rows", entries, total: total as usize };
        Self { columns: SITE_COLUMNS.to_vec(), rows }
    }
}

impl ViewList<LeakDetails> {
    pub(super) fn leaks(published: &PublishedSnapshot, query: ListQuery, paths: bool) -> Self {
        let is_wanted = |leak: &Leak<'_>| {
            let mut pids = leak.processes.iter().map(|process| process.pid);
            query.pid.is_none() || pids.any(|pid| pid == query.pid)
        };
        let all = published.with_view(|view| LeakDetails::all(view, is_wanted, paths));
        let rows = List::new("rows", all.into_iter(), query, |leak| leak);
        Self { columns: LEAK_COLUMNS.to_vec(), rows }
    }
}

/// `view/sites/SITE`.
#[derive(Serialize)]
pub(super) struct OneSite {
    pub(super) columns: [PageColumn; SITE_COLUMNS.len()],
    pub(super) site: SiteDetails,
}

/// `gpus`.
pub(super) fn gpus(published: &PublishedSnapshot) -> List<impl Serialize + use<>> {
    let set = &published.metrics;
    let all = set.samples(catalog::GPU.name).iter();
    List::new("gpus", all, ListQuery::ALL, |sample| Gpu::new(sample, set))
}

/// A GPU; fields are metrics without their prefix.
#[derive(Serialize)]
struct Gpu {
    index: Option<u16>,
    uuid: Box<str>,
    name: Box<str>,
    total_bytes: Option<Number>,
    free_bytes: Option<Number>,
    used_bytes: Option<Number>,
    live_bytes: Option<Number>,
    untracked_bytes: Option<Number>,
    time_until_full_seconds: Option<Number>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Number {
    Whole(u64),
    Real(f64),
}

impl Gpu {
    fn new(sample: &Sample, set: &MetricSet) -> Self {
        let label = |at: usize| sample.labels.get(at).cloned().unwrap_or_default();
        let value = |metric: &Metric| {
            let mut samples = set.samples(metric.name).iter();
            let found = samples.find(|one| one.labels.first() == sample.labels.first())?;
            Some(match found.value {
                SampleValue::Whole(number) => Number::Whole(number),
                SampleValue::Real(number) => Number::Real(number),
            })
        };
        Self {
            index: label(0).parse().ok(),
            uuid: label(1),
            name: label(2),
            total_bytes: value(&catalog::GPU_TOTAL),
            free_bytes: value(&catalog::GPU_FREE),
            used_bytes: value(&catalog::GPU_USED),
            live_bytes: value(&catalog::GPU_LIVE),
            untracked_bytes: value(&catalog::GPU_UNTRACKED),
            time_until_full_seconds: value(&catalog::GPU_FULL_IN),
        }
    }
}

/// `alerts`.
pub(super) fn alerts(all: Vec<AlertView>, query: ListQuery) -> List<AlertView> {
    let pid = query.pid.map(|pid| pid.0.to_string());
    let is_wanted = |one: &AlertView| pid.is_none() || one.labels.get("pid") == pid.as_ref();
    List::new("alerts", all.into_iter().filter(is_wanted), query, |alert| alert)
}

/// `incidents`.
pub(super) fn incidents(all: Vec<IncidentView>, query: ListQuery) -> List<IncidentView> {
    let is_wanted = |one: &IncidentView| query.pid.is_none_or(|pid| one.pid == Some(pid.0));
    List::new("incidents", all.into_iter().filter(is_wanted), query, |incident| incident)
}

/// `incidents/ID`.
#[derive(Serialize)]
pub(super) struct OneIncident {
    incident: IncidentView,
    files: Vec<FileEntry>,
}

impl OneIncident {
    pub(super) fn new(incident: IncidentView) -> Self {
        Self { files: files::list(&incident.dir), incident }
    }
}

/// `status`: health and resource usage of the agent.
#[derive(Serialize)]
pub(super) struct Status {
    version: &'static str,
    ready: bool,
    uptime_seconds: f64,
    snapshots_total: u64,
    events_total: u64,
    lost_events: u64,
    before_trace: bool,
    degraded: Vec<&'static str>,
    cpu_seconds: f64,
    cpu_percent: f64,
    memory_bytes: u64,
    streams: usize,
    history_bytes: usize,
    requests: Requests,
}

#[derive(Serialize)]
struct Requests {
    ok: u64,
    client_errors: u64,
    server_errors: u64,
}

impl Status {
    pub(super) fn new(
        published: &PublishedSnapshot,
        shared: &AgentState,
        ready: bool,
        streams: usize,
    ) -> Self {
        let own = &published.own;
        let uncertainty = &published.snapshot.uncertainty;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let [_, ok, _, client_errors, server_errors] = shared.requests.classes();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            ready,
            uptime_seconds: (now - own.started).max(0.0).floor(),
            snapshots_total: published.sequence,
            events_total: own.events,
            lost_events: uncertainty.lost.events(),
            before_trace: uncertainty.before_trace,
            degraded: own.steps.iter().map(|step| step.name()).collect(),
            cpu_seconds: own.cpu_seconds,
            cpu_percent: own.cpu_percent,
            memory_bytes: own.memory.0,
            streams,
            history_bytes: LivePage::HISTORY_BYTES,
            requests: Requests { ok, client_errors, server_errors },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;

    const PAGE: &str = include_str!("../../../../docs/reference/http-api.md");

    fn alert() -> AlertView {
        AlertView {
            rule: "nearly_full",
            severity: "warning",
            labels: BTreeMap::from([("gpu", "0".into())]),
            summary: "GPU 0 is nearly full".into(),
            value: 0.97,
            since: "2026-01-01T00:00:00Z".into(),
            resolved: None,
        }
    }

    fn incident(pid: u32) -> IncidentView {
        IncidentView {
            id: format!("2026-01-01-{pid}"),
            trigger: "out_of_memory",
            cause: "the device is full".into(),
            time: "2026-01-01T00:00:00Z".into(),
            pid: Some(pid),
            process: "python3".into(),
            requested_bytes: Some(1),
            gpu: Some(0),
            summary: "python3 requested 1 byte".into(),
            size_bytes: 10,
            written_after_ms: 5,
            written: true,
            row: formats::report::incident::IncidentRow::default(),
            summary_text: None,
            dir: "/var/lib/vramscope/x".into(),
        }
    }

    fn value(answer: &impl Serialize) -> Value {
        serde_json::to_value(answer).unwrap()
    }

    /// Returns the fields that the page documents for the items of a list.
    fn documented(list: &str) -> Vec<&'static str> {
        let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `"));
        let mut fields: Vec<_> = rows
            .filter_map(|row| row.split('`').next()?.strip_prefix(list)?.strip_prefix("[]."))
            .collect();
        fields.sort_unstable();
        fields
    }

    fn names(object: &Value) -> Vec<&str> {
        object.as_object().unwrap().keys().map(String::as_str).collect()
    }

    #[test]
    fn alerts_and_incidents_match_the_docs() {
        let found = value(&alerts(vec![alert()], ListQuery::ALL));
        assert_eq!(names(&found["alerts"][0]), documented("alerts"));
        assert_eq!(found["alerts"][0]["labels"], json!({ "gpu": "0" }));
        let unwritten = IncidentView { summary_text: Some("out of memory".into()), ..incident(1) };
        let all = vec![unwritten.clone(), incident(2)];
        let found = value(&incidents(all, ListQuery::ALL));
        assert_eq!(names(&found["incidents"][0]), documented("incidents"));
        assert_eq!(
            names(&value(&OneIncident::new(unwritten))["incident"]),
            documented("incidents")
        );
        assert_eq!(found["incidents"][1].get("summary_text"), None);
        // Directories of the host are not exposed.
        assert!(!found.to_string().contains("/var/lib"));
    }

    #[test]
    fn lists_can_be_limited_and_filtered_by_pid() {
        let with_pid = |pid: &str| {
            let labels = BTreeMap::from([("gpu", "7".into()), ("pid", pid.into())]);
            AlertView { labels, ..alert() }
        };
        let all = || vec![alert(), with_pid("7"), with_pid("8")];
        let of_7 = ListQuery { pid: Some(Pid(7)), ..ListQuery::ALL };
        let first_2 = ListQuery { pid: None, limit: 2 };
        let found = value(&alerts(all(), of_7));
        assert_eq!(
            (&found["total"], &found["alerts"][0]["labels"]["pid"]),
            (&1.into(), &"7".into())
        );
        assert_eq!(value(&alerts(all(), first_2))["total"], 3);
        let all = || (1..=9).map(incident).collect();
        let found = incidents(all(), first_2);
        assert_eq!((found.total, found.entries.len()), (9, 2));
        let found = incidents(all(), of_7);
        assert_eq!((found.total, found.entries[0].pid), (1, Some(7)));
    }
}
