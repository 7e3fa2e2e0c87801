//! Paths of the API.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get};
use engine::model::Pid;
use formats::export::{openmetrics, profile};
use formats::report::explain::ExplainReport;
use formats::report::view::page::{SITE_COLUMNS, SiteDetails};
use serde::Serialize;

use super::answers::{self, Answer, OneIncident, OneProcess, OneSite, Snapshot, Status, ViewList};
use super::cache::Visible;
use super::query::{ListQuery, NoQuery, PathPart};
use super::response::{ApiError, ApiResult, BINARY, HTML, JSON, TEXT, json, ok};
use super::server::layers;
use super::{Api, files, live};
use crate::PublishedSnapshot;
use crate::incidents::IncidentView;

const INDEX: &str = "\
vramscope: GPU memory of every process on this host

/                                 live page, for browsers
/metrics                          Prometheus metrics (OpenMetrics)
/healthz                          liveness
/readyz                           readiness: probes attached, snapshots current
/api/v1/status                    agent health and resource usage
/api/v1/snapshot                  current snapshot of all processes
/api/v1/processes?limit=N         processes, largest first
/api/v1/processes/PID             one process
/api/v1/sites?pid=PID&limit=N     allocation sites, largest first
/api/v1/suspects?pid=PID          leak suspects
/api/v1/view/processes            processes as rows of text, as the live page shows them
/api/v1/view/sites?pid=PID        allocation sites as rows of text
/api/v1/view/sites/SITE           one site and its call stack
/api/v1/view/leaks?pid=PID        leaks with evidence, advice and call stacks
/api/v1/stream                    server-sent events of the live page
/api/v1/gpus                      GPUs of this host
/api/v1/advice                    how to free memory
/api/v1/explain?pid=PID           where driver-reported memory goes
/api/v1/alerts                    active and recent alerts
/api/v1/profile.pb.gz             heap profile (pprof); also /debug/pprof/heap
/api/v1/incidents                 out-of-memory snapshots, newest first
/api/v1/incidents/ID              one incident and its files
/api/v1/incidents/ID/FILE         one file
";

/// Policy of incident files. A report has its own, stricter policy for its script; the sandbox
/// separates it from the live page, which may have a token.
const REPORT_POLICY: &str = "sandbox allow-scripts; default-src 'none'; \
    script-src 'unsafe-inline'; style-src 'unsafe-inline'; frame-ancestors 'none'";

/// Whether a path needs no token, because it exposes nothing.
pub(super) fn is_open(path: &str) -> bool {
    matches!(path, "/" | "/healthz" | "/readyz")
}

/// Returns all paths, behind the checks and limits of every request.
pub(super) fn router(api: &Arc<Api>) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/api", get(|| async { ok(TEXT, INDEX) }))
        .route("/healthz", get(|| async { ok(TEXT, "ok\n") }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/debug/pprof/heap", get(heap_profile))
        .route("/api/v1/profile.pb.gz", get(|api: ApiState, _: NoQuery| heap_profile(api)))
        .route("/api/v1/status", get(status))
        .route("/api/v1/snapshot", get(snapshot))
        .route("/api/v1/processes", list("processes", answers::processes))
        .route("/api/v1/processes/{pid}", get(process))
        .route("/api/v1/sites", list("sites", answers::sites))
        .route("/api/v1/suspects", list("suspects", answers::suspects))
        .route("/api/v1/view/processes", rows("view/processes", ViewList::processes))
        .route("/api/v1/view/sites", rows("view/sites", ViewList::sites))
        .route("/api/v1/view/sites/{site}", get(view_site))
        .route("/api/v1/view/leaks", get(view_leaks))
        .route("/api/v1/stream", get(live::stream))
        .route("/api/v1/gpus", get(gpus))
        .route("/api/v1/advice", get(advice))
        .route("/api/v1/explain", list("explain", explain))
        .route("/api/v1/alerts", get(alerts))
        .route("/api/v1/incidents", get(incidents))
        .route("/api/v1/incidents/{id}", get(incident))
        .route("/api/v1/incidents/{id}/{file}", get(incident_file))
        .fallback(|| async { ApiError::NOT_FOUND })
        .layer(from_fn_with_state(Arc::clone(api), layers::check))
        .layer(from_fn_with_state(Arc::clone(api), layers::limit))
        .with_state(Arc::clone(api))
}

type ApiState = State<Arc<Api>>;

/// Returns the live page to browsers, and the list of paths to other clients. Neither contains
/// data, so that the page can request the token.
async fn page(State(api): ApiState, headers: HeaderMap) -> ApiResult {
    let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    if !accepts.is_some_and(|accepts| accepts.contains("text/html")) {
        return Ok(ok(TEXT, INDEX));
    }
    let mut response = ok(HTML, api.page.html.clone());
    let policy = HeaderValue::from_str(&api.page.policy).map_err(|_| ApiError::INTERNAL)?;
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    Ok(response)
}

async fn ready(State(api): ApiState) -> Response<Body> {
    let (status, text) = match api.is_ready() {
        true => (StatusCode::OK, "ready\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
    };
    let mut response = ok(TEXT, text);
    *response.status_mut() = status;
    response
}

// Scrapers and `pprof` add parameters to these two paths; they are ignored.
async fn metrics(State(api): ApiState) -> ApiResult {
    let published = api.shared.feed.newest().ok_or(ApiError::NO_SNAPSHOT)?;
    let encode = || {
        let metrics = Arc::new(published.metrics.clone());
        openmetrics::encode(metrics).ok().map(String::into_bytes)
    };
    let body = api.cached(&published, ("metrics", ListQuery::ALL), encode)?;
    Ok(ok(openmetrics::CONTENT_TYPE, body))
}

async fn heap_profile(State(api): ApiState) -> ApiResult {
    let published = api.visible()?;
    let encode = || {
        let mut bytes = Vec::new();
        let (snapshot, context) = (&published.snapshot, &published.context);
        profile::live_pprof(&mut bytes, snapshot, context).ok().map(|()| bytes)
    };
    Ok(ok(BINARY, api.cached(&published, ("profile", ListQuery::ALL), encode)?))
}

async fn status(State(api): ApiState, _: NoQuery) -> ApiResult {
    let published = api.newest()?;
    let status = Status::new(&published, &api.shared, api.is_ready(), api.live.streams());
    json(&Answer::new(&published, status))
}

async fn snapshot(State(api): ApiState, _: NoQuery) -> ApiResult {
    let published = api.visible()?;
    let encode = || {
        let marks = api.live.marks(&published);
        serde_json::to_vec(&Snapshot::new(&published, marks)).ok()
    };
    Ok(ok(JSON, api.cached(&published, ("snapshot", ListQuery::ALL), encode)?))
}

/// Returns a path with a list of a snapshot.
fn list<T: Serialize + 'static>(
    name: &'static str,
    fields: fn(&Visible, ListQuery) -> T,
) -> MethodRouter<Arc<Api>> {
    get(async move |State(api): ApiState, query: ListQuery| {
        api.answer(&api.visible()?, name, query, |it| fields(it, query))
    })
}

/// Returns a path with rows of text of a snapshot.
fn rows<T: Serialize + 'static>(
    name: &'static str,
    fields: fn(&PublishedSnapshot, ListQuery) -> T,
) -> MethodRouter<Arc<Api>> {
    get(async move |State(api): ApiState, query: ListQuery| {
        api.answer(&api.newest()?, name, query, |it| fields(it, query))
    })
}

async fn process(State(api): ApiState, PathPart(pid): PathPart<u32>, _: NoQuery) -> ApiResult {
    let query = ListQuery { pid: Some(Pid(pid)), ..ListQuery::ALL };
    let published = api.visible()?;
    if !published.snapshot.processes.iter().any(|process| process.key.pid == Pid(pid)) {
        return Err(ApiError::NO_PROCESS);
    }
    api.answer(&published, "process", query, |it| OneProcess::new(it, Pid(pid)))
}

async fn view_leaks(State(api): ApiState, query: ListQuery) -> ApiResult {
    let paths = api.shared.config.http.show_paths;
    api.answer(&api.newest()?, "view/leaks", query, |it| ViewList::leaks(it, query, paths))
}

async fn view_site(State(api): ApiState, PathPart(id): PathPart<String>, _: NoQuery) -> ApiResult {
    let (published, paths) = (api.newest()?, api.shared.config.http.show_paths);
    let site = SiteDetails::find(&published.snapshot, &id, paths).ok_or(ApiError::NO_SITE)?;
    json(&Answer::new(&published, OneSite { columns: SITE_COLUMNS, site }))
}

async fn gpus(State(api): ApiState, _: NoQuery) -> ApiResult {
    api.answer(&api.newest()?, "gpus", ListQuery::ALL, |it| answers::gpus(it))
}

async fn advice(State(api): ApiState, _: NoQuery) -> ApiResult {
    api.answer(&api.visible()?, "advice", ListQuery::ALL, |it| {
        answers::Advice::of(api.shared.incidents.advice(it))
    })
}

fn explain(it: &Visible, query: ListQuery) -> ExplainReport {
    ExplainReport::of(&it.snapshot, &it.context, |process| query.has_pid(process.key.pid))
}

async fn alerts(State(api): ApiState, query: ListQuery) -> ApiResult {
    let all = answers::alerts(api.shared.alerts.list(), query);
    json(&Answer::new(&*api.newest()?, all))
}

async fn incidents(State(api): ApiState, query: ListQuery) -> ApiResult {
    let all = answers::incidents(api.shared.incidents.list(), query);
    json(&Answer::new(&*api.newest()?, all))
}

async fn incident(State(api): ApiState, PathPart(id): PathPart<String>, _: NoQuery) -> ApiResult {
    let published = api.newest()?;
    json(&Answer::new(&published, OneIncident::new(find_incident(&api, &id)?)))
}

/// Returns one file. Files contain full call stacks, with paths of programs.
async fn incident_file(
    State(api): ApiState,
    PathPart((id, name)): PathPart<(String, String)>,
    _: NoQuery,
) -> ApiResult {
    let incident = find_incident(&api, &id)?;
    if !api.shared.config.http.show_paths {
        return Err(ApiError::PATHS_HIDDEN);
    }
    let file = files::open(&incident.dir, &name).ok_or(ApiError::NO_FILE)?;
    let (content_type, disposition) = match name.rsplit_once('.') {
        Some((_, "json")) => (JSON, "attachment"),
        Some((_, "txt")) => (TEXT, "inline"),
        Some((_, "html")) => (HTML, "inline"),
        _ => (BINARY, "attachment"),
    };
    let response = Response::builder()
        .header(header::CONTENT_TYPE, content_type)
        .header(header::CONTENT_LENGTH, file.remaining())
        .header(header::CONTENT_DISPOSITION, disposition)
        .header(header::CONTENT_SECURITY_POLICY, REPORT_POLICY)
        .body(Body::from_stream(futures_util::stream::iter(file)));
    response.map_err(|_| ApiError::INTERNAL)
}

fn find_incident(api: &Api, id: &str) -> Result<IncidentView, ApiError> {
    let all = api.shared.incidents.list();
    all.into_iter().find(|incident| incident.id == id).ok_or(ApiError::NOT_FOUND)
}
