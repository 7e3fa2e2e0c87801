//! Responses of the API as JSON. Names are a contract: fields are added, never renamed.

use engine::metrics::{Metric, MetricSet, Sample, SampleValue, catalog};
use formats::sanitize::sanitize;
use serde_json::{Map, Value, json};

use super::query::ListQuery;
use crate::serve::alerts::AlertView;
use crate::serve::incidents::IncidentView;
use crate::serve::{AgentState, PublishedSnapshot};

/// Version of the API.
pub(super) const VERSION: &str = "v1";

/// Adds the fields that every response has: version, time, and whether the values are exact.
pub(super) fn envelope(published: &PublishedSnapshot, fields: Value) -> Value {
    let mut all = Map::new();
    all.insert("api".into(), VERSION.into());
    all.insert("time".into(), published.context.clock.precise(published.snapshot.at).into());
    all.insert("exact".into(), published.snapshot.uncertainty.exact().into());
    if let Value::Object(fields) = fields {
        all.extend(fields);
    }
    Value::Object(all)
}

/// Returns a list of the report, optionally of one process. `total` counts entries before the
/// limit.
pub(super) fn list(report: &Value, name: &str, query: ListQuery) -> Value {
    let all = report.get(name).and_then(Value::as_array).map_or(&[][..], |all| all);
    let matching: Vec<&Value> = all.iter().filter(|item| belongs_to(item, query.pid)).collect();
    let total = matching.len();
    let items: Vec<&Value> = matching.into_iter().take(query.top).collect();
    json!({ name: items, "total": total })
}

/// Whether an item belongs to a process: itself, or one of its holders.
fn belongs_to(item: &Value, pid: Option<u32>) -> bool {
    let Some(pid) = pid else { return true };
    let holders = item.get("processes").and_then(Value::as_array);
    let mut holders = holders.into_iter().flatten();
    item.get("pid").is_some_and(|own| *own == pid)
        || holders.any(|holder| holder.get("pid").is_some_and(|own| *own == pid))
}

/// Returns one process of the report; the running one if its pid was reused.
pub(super) fn process(report: &Value, pid: u32) -> Option<Value> {
    Some(json!({ "process": find(report, pid)? }))
}

/// Whether the report has the process.
pub(super) fn has_process(report: &Value, pid: u32) -> bool {
    find(report, pid).is_some()
}

fn find(report: &Value, pid: u32) -> Option<&Value> {
    let all = report.get("processes").and_then(Value::as_array)?;
    all.iter().find(|process| process.get("pid").is_some_and(|own| *own == pid))
}

/// Returns the GPUs of the host.
pub(super) fn gpus(set: &MetricSet) -> Value {
    let field = |name: &str| name.trim_start_matches("vramscope_gpu_").to_owned();
    let metrics: [&Metric; 6] = [
        &catalog::GPU_TOTAL,
        &catalog::GPU_FREE,
        &catalog::GPU_USED,
        &catalog::GPU_LIVE,
        &catalog::GPU_UNTRACKED,
        &catalog::GPU_FULL_IN,
    ];
    let gpu = |sample: &Sample| {
        let label = |at: usize| sample.labels.get(at).map(|text| &**text).unwrap_or_default();
        let mut fields = Map::new();
        fields.insert("index".into(), label(0).parse::<u16>().map_or(Value::Null, Value::from));
        fields.insert("uuid".into(), label(1).into());
        fields.insert("name".into(), label(2).into());
        for metric in metrics {
            let mut samples = set.samples(metric.name).iter();
            let found = samples.find(|one| one.labels.first() == sample.labels.first());
            fields.insert(field(metric.name), found.map_or(Value::Null, |one| number(one.value)));
        }
        Value::Object(fields)
    };
    let all: Vec<Value> = set.samples(catalog::GPU.name).iter().map(gpu).collect();
    json!({ "total": all.len(), "gpus": all })
}

fn number(value: SampleValue) -> Value {
    match value {
        SampleValue::Whole(number) => number.into(),
        SampleValue::Real(number) => number.into(),
    }
}

/// Returns current alerts.
pub(super) fn alerts(alerts: &[AlertView], query: ListQuery) -> Value {
    let alert = |alert: &AlertView| {
        let labels: Map<_, _> = alert
            .labels
            .iter()
            .map(|(name, value)| (name.clone(), value.as_str().into()))
            .collect();
        let mut fields = serde_json::to_value(alert).unwrap_or_default();
        if let Some(fields) = fields.as_object_mut() {
            fields.insert("labels".into(), Value::Object(labels));
        }
        fields
    };
    let pid = query.pid.map(|pid| pid.to_string());
    let matches_pid = |alert: &&AlertView| {
        let is_pid = |(name, value): &(_, String)| name == "pid" && Some(value) == pid.as_ref();
        pid.is_none() || alert.labels.iter().any(is_pid)
    };
    let matching: Vec<&AlertView> = alerts.iter().filter(matches_pid).collect();
    let items: Vec<Value> = matching.iter().take(query.top).copied().map(alert).collect();
    json!({ "alerts": items, "total": matching.len() })
}

/// Returns written incidents.
pub(super) fn incidents(incidents: &[IncidentView], query: ListQuery) -> Value {
    let matches_pid = |one: &&IncidentView| query.pid.is_none() || one.pid == query.pid;
    let matching: Vec<&IncidentView> = incidents.iter().filter(matches_pid).collect();
    let total = matching.len();
    let items: Vec<Value> = matching
        .into_iter()
        .take(query.top)
        .map(|one| serde_json::to_value(one).unwrap_or_default())
        .collect();
    json!({ "incidents": items, "total": total })
}

/// Returns health and resource usage of the agent.
pub(super) fn status(
    published: &PublishedSnapshot,
    shared: &AgentState,
    ready: bool,
    now: f64,
) -> Value {
    let own = &published.own;
    let uncertainty = &published.snapshot.uncertainty;
    let steps: Vec<&str> = own.steps.iter().map(|step| step.name()).collect();
    let [_, ok, _, client_errors, server_errors] = shared.requests.classes();
    json!({
        "version": sanitize(env!("CARGO_PKG_VERSION")),
        "ready": ready,
        "uptime_seconds": (now - own.started).max(0.0).floor(),
        "snapshots_total": published.sequence,
        "events_total": own.events,
        "lost_events": uncertainty.lost.events(),
        "before_trace": uncertainty.before_trace,
        "degraded": steps,
        "cpu_seconds": own.cpu_seconds,
        "cpu_percent": own.cpu_percent,
        "memory_bytes": own.memory.0,
        "requests": { "ok": ok, "client_errors": client_errors, "server_errors": server_errors },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::api::incidents::manifest;

    const PAGE: &str = include_str!("../../../../../docs/reference/http-api.md");
    const ALL: ListQuery = ListQuery { pid: None, top: 10 };

    fn alert() -> AlertView {
        AlertView {
            rule: "nearly_full".into(),
            severity: "warning".into(),
            labels: vec![("gpu".into(), "0".into())],
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
            summary_text: None,
            dir: "/var/lib/vramscope/x".into(),
        }
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
        let found = alerts(&[alert()], ALL);
        assert_eq!(names(&found["alerts"][0]), documented("alerts"));
        assert_eq!(found["alerts"][0]["labels"], json!({ "gpu": "0" }));
        let unwritten = IncidentView { summary_text: Some("out of memory".into()), ..incident(1) };
        let found = incidents(&[unwritten.clone(), incident(2)], ALL);
        assert_eq!(names(&found["incidents"][0]), documented("incidents"));
        assert_eq!(names(&manifest(&unwritten)["incident"]), documented("incidents"));
        assert_eq!(found["incidents"][1].get("summary_text"), None);
        // Directories of the host are not exposed.
        assert!(!found.to_string().contains("/var/lib"));
    }

    #[test]
    fn alerts_can_be_filtered_by_pid() {
        let labels = |pid: &str| vec![("gpu".into(), "7".into()), ("pid".into(), pid.into())];
        let with_pid = |pid| AlertView { labels: labels(pid), ..alert() };
        let all = [alert(), with_pid("7"), with_pid("8")];
        let found = alerts(&all, ListQuery { pid: Some(7), top: 9 });
        assert_eq!(
            (&found["total"], &found["alerts"][0]["labels"]["pid"]),
            (&1.into(), &"7".into())
        );
        assert_eq!(alerts(&all, ListQuery { pid: None, top: 2 })["total"], 3);
    }

    #[test]
    fn lists_can_be_limited_and_filtered_by_pid() {
        let all: Vec<_> = (1..=5).map(incident).collect();
        let found = incidents(&all, ListQuery { pid: None, top: 2 });
        assert_eq!(
            (found["total"].clone(), found["incidents"].as_array().unwrap().len()),
            (5.into(), 2)
        );
        let found = incidents(&all, ListQuery { pid: Some(3), top: 2 });
        assert_eq!((&found["total"], &found["incidents"][0]["pid"]), (&1.into(), &3.into()));
        let report = json!({ "sites": [
            { "id": "a", "processes": [{ "pid": 1 }, { "pid": 2 }] },
            { "id": "b", "processes": [{ "pid": 3 }] },
        ] });
        let found = list(&report, "sites", ListQuery { pid: Some(2), top: 9 });
        assert_eq!((&found["total"], &found["sites"][0]["id"]), (&1.into(), &"a".into()));
        assert_eq!(list(&report, "nothing", ALL)["total"], 0);
    }
}
