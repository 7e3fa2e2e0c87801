//! Paths and what they answer.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use formats::export::openmetrics;
use hyper::{StatusCode, Uri};
use serde_json::Value;

use super::answer::{Answer, JSON, TEXT};
use super::cache::Cache;
use super::door::Door;
use super::query::Query;
use super::{api, incidents};
use crate::serve::Published;

/// What profiles are: gzipped messages, to be kept as they are.
const PPROF: &str = "application/octet-stream";

const INDEX: &str = "\
vramscope: GPU memory of every process on this host

/metrics                          Prometheus metrics (OpenMetrics)
/healthz                          liveness
/readyz                           readiness: probes attached, snapshots current
/api/v1/status                    agent health and resource usage
/api/v1/snapshot                  current snapshot of all processes
/api/v1/processes?limit=N         processes, largest first
/api/v1/processes/PID             one process
/api/v1/sites?pid=PID&limit=N     allocation sites, largest first
/api/v1/suspects?pid=PID          leak suspects
/api/v1/gpus                      GPUs of this host
/api/v1/advice                    how to free memory
/api/v1/alerts                    active and recent alerts
/api/v1/profile.pb.gz             heap profile (pprof); also /debug/pprof/heap
/api/v1/incidents                 out-of-memory snapshots, newest first
/api/v1/incidents/ID              one incident and its files
/api/v1/incidents/ID/FILE         one file
";

/// Whether a path is answered without a token: it tells nothing.
pub(super) fn is_open(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz")
}

/// Whether a path can be asked for less.
fn is_list(path: &str) -> bool {
    let lists = ["processes", "sites", "suspects", "alerts", "incidents"];
    path.strip_prefix("/api/v1/").is_some_and(|name| lists.contains(&name))
}

/// The answer to a request that may be made.
pub(super) fn answer(door: &Door, uri: &Uri) -> Answer {
    match uri.path() {
        "/healthz" => return Answer::text(StatusCode::OK, "ok\n"),
        "/readyz" if door.is_ready() => return Answer::text(StatusCode::OK, "ready\n"),
        "/readyz" => return Answer::text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
        "/" => return Answer::whole(TEXT, INDEX),
        _ => {}
    }
    // What others put behind these paths by themselves is not for this agent.
    let asked = uri.query().filter(|_| !matches!(uri.path(), "/metrics" | "/debug/pprof/heap"));
    let query = match Query::read(asked, is_list(uri.path())) {
        Ok(query) => query,
        Err(wrong) => {
            return Answer::error(StatusCode::BAD_REQUEST, wrong, "see docs/reference/http-api.md");
        }
    };
    let Some(published) = door.shared.feed.newest() else {
        return Answer::error(
            StatusCode::SERVICE_UNAVAILABLE,
            "no snapshot available yet",
            "retry in a second",
        );
    };
    if uri.path() == "/metrics" {
        let metrics = door.with_cache(|cache| cache.metrics(&published));
        return metrics
            .map_or_else(not_made, |metrics| Answer::whole(openmetrics::CONTENT_TYPE, metrics));
    }
    let published = door.shown(published);
    if matches!(uri.path(), "/api/v1/profile.pb.gz" | "/debug/pprof/heap") {
        return Answer::whole(PPROF, door.with_cache(|cache| cache.profile(&published)));
    }
    match uri.path().strip_prefix("/api/v1/") {
        Some(path) => api(door, &published, path, query),
        None => not_found(),
    }
}

fn api(door: &Door, published: &Arc<Published>, path: &str, query: Query) -> Answer {
    let paths = door.shared.config.http.show_paths;
    let report = || door.with_cache(|cache| cache.report(published));
    let told = |fields: Value| Answer::json(&api::envelope(published, fields));
    let kept = |make: &dyn Fn(&mut Cache) -> Option<Value>| {
        door.with_cache(|cache| cache.answer(published, (path, query), make))
            .map_or_else(not_made, |answer| Answer::whole(JSON, answer))
    };
    let mut parts = path.split('/');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some("snapshot"), None, ..) => door
            .with_cache(|cache| cache.snapshot(published))
            .map_or_else(not_made, |snapshot| Answer::whole(JSON, snapshot)),
        (Some(name @ "sites"), None, ..) if let Some(pid) = query.pid => {
            let whole = Query { pid: None, ..query };
            kept(&|_| Some(api::list(&Cache::sites_of(published, pid)?, name, whole)))
        }
        (Some(name @ ("processes" | "sites" | "suspects")), None, ..) => {
            kept(&|cache| Some(api::list(&*cache.report(published)?, name, query)))
        }
        (Some("processes"), Some(pid), None, _) => {
            let Ok(pid) = pid.parse() else { return not_found() };
            match report().map(|report| api::has_process(&report, pid)) {
                None => not_made(),
                Some(false) => no_process(),
                Some(true) => kept(&|cache| api::process(&*cache.report(published)?, pid)),
            }
        }
        (Some("gpus"), None, ..) => kept(&|_| Some(api::gpus(&published.figures))),
        (Some("advice"), None, ..) => {
            kept(&|_| serde_json::to_value(door.shared.incidents.advice(published)).ok())
        }
        (Some("alerts"), None, ..) => told(api::alerts(&door.shared.alerts.list(), query)),
        (Some("status"), None, ..) => {
            told(api::status(published, &door.shared, door.is_ready(), now()))
        }
        (Some("incidents"), None, ..) => told(api::incidents(&door.shared.incidents.list(), query)),
        (Some("incidents"), Some(id), file, None) => {
            let all = door.shared.incidents.list();
            let Some(incident) = all.iter().find(|incident| incident.id == id) else {
                return not_found();
            };
            match file {
                None => told(incidents::manifest(incident)),
                Some(name) => incidents::file(incident, name, paths),
            }
        }
        _ => not_found(),
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

fn not_found() -> Answer {
    Answer::error(StatusCode::NOT_FOUND, "not found", "see / for all paths")
}

fn no_process() -> Answer {
    Answer::error(
        StatusCode::NOT_FOUND,
        "no such process uses the CUDA driver",
        "see /api/v1/processes",
    )
}

fn not_made() -> Answer {
    Answer::error(
        StatusCode::INTERNAL_SERVER_ERROR,
        "internal error",
        "please report this as a bug",
    )
}
