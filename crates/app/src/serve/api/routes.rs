//! Paths of the API and their responses.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use formats::export::openmetrics;
use hyper::{StatusCode, Uri};
use serde_json::Value;

use super::cache::ResponseCache;
use super::guard::RequestGuard;
use super::query::ListQuery;
use super::response::{ApiResponse, CONTENT_TYPE_JSON, CONTENT_TYPE_TEXT};
use super::{endpoints, incidents};
use crate::serve::PublishedSnapshot;

/// Profiles are gzipped; clients must not decompress them in transit.
const CONTENT_TYPE_PPROF: &str = "application/octet-stream";

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

/// Whether a path needs no token, because it exposes nothing.
pub(super) fn is_open(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz")
}

/// Whether a path takes the parameters of a list.
fn is_list(path: &str) -> bool {
    let lists = ["processes", "sites", "suspects", "alerts", "incidents"];
    path.strip_prefix("/api/v1/").is_some_and(|name| lists.contains(&name))
}

/// Returns the response to an authorized request.
pub(super) fn respond(guard: &RequestGuard, uri: &Uri) -> ApiResponse {
    match uri.path() {
        "/healthz" => return ApiResponse::text(StatusCode::OK, "ok\n"),
        "/readyz" if guard.is_ready() => return ApiResponse::text(StatusCode::OK, "ready\n"),
        "/readyz" => return ApiResponse::text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
        "/" => return ApiResponse::ok(CONTENT_TYPE_TEXT, INDEX),
        _ => {}
    }
    // Scrapers add parameters to these paths; they are ignored.
    let text = uri.query().filter(|_| !matches!(uri.path(), "/metrics" | "/debug/pprof/heap"));
    let query = match ListQuery::read(text, is_list(uri.path())) {
        Ok(query) => query,
        Err(error) => {
            return ApiResponse::error(
                StatusCode::BAD_REQUEST,
                error,
                "see docs/reference/http-api.md",
            );
        }
    };
    let Some(published) = guard.shared.feed.newest() else {
        return ApiResponse::error(
            StatusCode::SERVICE_UNAVAILABLE,
            "no snapshot available yet",
            "retry in a second",
        );
    };
    if uri.path() == "/metrics" {
        let metrics = guard.with_cache(|cache| cache.metrics(&published));
        return metrics.map_or_else(internal_error, |metrics| {
            ApiResponse::ok(openmetrics::CONTENT_TYPE, metrics)
        });
    }
    let published = guard.visible(published);
    if matches!(uri.path(), "/api/v1/profile.pb.gz" | "/debug/pprof/heap") {
        return ApiResponse::ok(
            CONTENT_TYPE_PPROF,
            guard.with_cache(|cache| cache.profile(&published)),
        );
    }
    match uri.path().strip_prefix("/api/v1/") {
        Some(path) => api(guard, &published, path, query),
        None => not_found(),
    }
}

fn api(
    guard: &RequestGuard,
    published: &Arc<PublishedSnapshot>,
    path: &str,
    query: ListQuery,
) -> ApiResponse {
    let paths = guard.shared.config.http.show_paths;
    let report = || guard.with_cache(|cache| cache.report(published));
    let json = |fields: Value| ApiResponse::json(&endpoints::envelope(published, fields));
    let cached = |build: &dyn Fn(&mut ResponseCache) -> Option<Value>| {
        guard
            .with_cache(|cache| cache.response(published, (path, query), build))
            .map_or_else(internal_error, |bytes| ApiResponse::ok(CONTENT_TYPE_JSON, bytes))
    };
    let mut parts = path.split('/');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some("snapshot"), None, ..) => guard
            .with_cache(|cache| cache.snapshot(published))
            .map_or_else(internal_error, |snapshot| ApiResponse::ok(CONTENT_TYPE_JSON, snapshot)),
        (Some(name @ "sites"), None, ..) if let Some(pid) = query.pid => {
            let all = ListQuery { pid: None, ..query };
            cached(&|_| Some(endpoints::list(&ResponseCache::sites_of(published, pid)?, name, all)))
        }
        (Some(name @ ("processes" | "sites" | "suspects")), None, ..) => {
            cached(&|cache| Some(endpoints::list(&*cache.report(published)?, name, query)))
        }
        (Some("processes"), Some(pid), None, _) => {
            let Ok(pid) = pid.parse() else { return not_found() };
            match report().map(|report| endpoints::has_process(&report, pid)) {
                None => internal_error(),
                Some(false) => no_process(),
                Some(true) => cached(&|cache| endpoints::process(&*cache.report(published)?, pid)),
            }
        }
        (Some("gpus"), None, ..) => cached(&|_| Some(endpoints::gpus(&published.metrics))),
        (Some("advice"), None, ..) => {
            cached(&|_| serde_json::to_value(guard.shared.incidents.advice(published)).ok())
        }
        (Some("alerts"), None, ..) => json(endpoints::alerts(&guard.shared.alerts.list(), query)),
        (Some("status"), None, ..) => {
            json(endpoints::status(published, &guard.shared, guard.is_ready(), now()))
        }
        (Some("incidents"), None, ..) => {
            json(endpoints::incidents(&guard.shared.incidents.list(), query))
        }
        (Some("incidents"), Some(id), file, None) => {
            let all = guard.shared.incidents.list();
            let Some(incident) = all.iter().find(|incident| incident.id == id) else {
                return not_found();
            };
            match file {
                None => json(incidents::manifest(incident)),
                Some(name) => incidents::file(incident, name, paths),
            }
        }
        _ => not_found(),
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

fn not_found() -> ApiResponse {
    ApiResponse::error(StatusCode::NOT_FOUND, "not found", "see / for all paths")
}

fn no_process() -> ApiResponse {
    ApiResponse::error(
        StatusCode::NOT_FOUND,
        "no such process uses the CUDA driver",
        "see /api/v1/processes",
    )
}

fn internal_error() -> ApiResponse {
    ApiResponse::error(
        StatusCode::INTERNAL_SERVER_ERROR,
        "internal error",
        "please report this as a bug",
    )
}
