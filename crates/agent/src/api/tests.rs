//! Responses contain no paths of files unless the configuration allows it.
#![cfg_attr(
    not(test),
    allow(dead_code, unused_imports, reason = "fuzz targets use the agent only")
)]
#![allow(
    clippy::unwrap_used,
    reason = "also compiled for fuzz targets, where a failed check ends the process"
)]

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::http::{Request, Response, header};
use engine::metrics::{AgentStats, CollectorInput, GpuInfo, MetricsCollector, SeriesLimits};
use engine::model::{
    AllocationKey, Bytes, CallStack, Container, ContainerRuntime, DeviceHolder, DeviceId, Frame,
    GpuId, GraphExecId, LaunchTarget, Mark, MarkKind, MemoryKind, MigInstance, NameSource, Nanos,
    Pid, Pod, ProcessIdentity, ProcessKey, SiteId, SiteName, Tid, Timestamp, site_name,
};
use engine::snapshot::{
    ActivityView, AllocationView, ApiMisuse, FrameworkOom, KernelView, KindView, LibraryView,
    NotFreed, NotFreedSite, OutOfMemory, OverheadView, ProcessView, ReceivedCalls, ShareRole,
    SharedMemoryView, SiteHistory, SiteKindView, SiteView, Snapshot, ThreadView, Uncertainty,
};
use engine::verdict::{Anomaly, AnomalyKind, Confidence, Evidence, Resource, SiteVerdict, Verdict};
use formats::WallClock;
use formats::export::{GpuLabel, ReportContext};
use formats::recording::FunctionTable;
use formats::report::verdict::short_location;
use serde_json::Value;
use tower::ServiceExt;

use super::auth::token::BearerToken;
use super::{Api, READY_TIMEOUT, routes};
use crate::alerts::AlertView;
use crate::config::Config;
use crate::incidents::IncidentView;
use crate::process::budget::AgentUsage;
use crate::{AgentState, PublishedSnapshot};

/// In every string that is a path.
pub(super) const PATH: &str = "/srv/ann/secret/file";

/// In every other string that a program or host chooses: names are not paths and are shown.
const NAME: &str = "/name";

/// Fields that contain such names.
const NAMES: [&str; 23] = [
    "notes",
    "library",
    "name",
    "program",
    "user",
    "location",
    "process",
    "thread",
    "function",
    "symbol",
    "full_name",
    "id",
    "uid",
    "namespace",
    "container",
    "uuid",
    "summary",
    "cells",
    "key",
    "sentence",
    "text",
    "label",
    "profile",
];

fn frames() -> CallStack {
    let frame = Frame {
        function: NAME.into(),
        file: Some(PATH.into()),
        line: 7,
        module: Some(PATH.into()),
        ..Frame::default()
    };
    // The first frame has no function name, so its module is shown.
    [Frame { function: "".into(), ..frame.clone() }, frame].into()
}

fn site() -> SiteView {
    SiteView {
        name: SiteName::Resolved(site_name(&frames())),
        frames: frames(),
        live_bytes: Bytes(1 << 30),
        live_allocations: 1,
        grown: 1,
        bytes_total: Bytes(1 << 30),
        allocations_total: 1,
        freed_total: 0,
        sampling: None,
        peak_bytes: Bytes(1 << 30),
        peak_at: Some(Timestamp(1)),
        seen: (Timestamp(1), Timestamp(2)),
        lifetimes: Vec::new(),
        longest_lifetime: None,
        growth: SiteHistory::default(),
        kinds: vec![SiteKindView {
            kind: MemoryKind::Device,
            live_bytes: Bytes(1 << 30),
            live_allocations: 1,
            unknown_sizes: 0,
            bytes_total: Bytes(1 << 30),
            allocations_total: 1,
            freed_total: 0,
            peak_bytes: Bytes(1 << 30),
        }],
        objects: Vec::new(),
        processes: Vec::new(),
    }
}

fn kernel() -> KernelView {
    KernelView {
        target: LaunchTarget::Graph(GraphExecId(1)),
        name: Some(NAME.into()),
        name_source: Some(NameSource::Call),
        unnamed_reason: None,
        handles: 1,
        launches: 1,
        recent: 1,
        captured: 0,
        failed: 0,
        checked: 1,
        last: None,
        common: None,
        common_is_exact: true,
    }
}

fn identity() -> ProcessIdentity {
    let name = Some(NAME.into());
    ProcessIdentity { program: name.clone(), user: name, ..ProcessIdentity::default() }
}

fn allocation() -> AllocationView {
    AllocationView {
        key: AllocationKey::address(1),
        device: Some(DeviceId(0)),
        bytes: Bytes(1 << 30),
        kind: MemoryKind::Device,
        age: Nanos(1),
        site: site().name,
        baseline: None,
    }
}

fn process() -> ProcessView {
    let pod = Pod {
        uid: NAME.into(),
        name: Some(NAME.into()),
        namespace: Some(NAME.into()),
        container: Some(NAME.into()),
    };
    let container = Container {
        id: NAME.into(),
        runtime: ContainerRuntime::Docker,
        pod: Some(pod),
        container_pid: None,
    };
    let kind = KindView {
        kind: MemoryKind::Device,
        live_bytes: Bytes(1 << 30),
        live_allocations: 1,
        unknown_sizes: 0,
    };
    ProcessView {
        key: ProcessKey { pid: Pid(7), start: 1 },
        uid: Some(0),
        name: NAME.into(),
        identity: identity(),
        container: Some(Arc::new(container)),
        mig: Some(Arc::new(MigInstance { uuid: NAME.into(), profile: NAME.into() })),
        received_calls: ReceivedCalls::default(),
        ended: None,
        before_trace: false,
        live_bytes: Bytes(1 << 30),
        live_allocations: 1,
        peak_bytes: Bytes(1 << 30),
        peak_at: Timestamp(1),
        peak_bounds: None,
        allocations_total: 1,
        frees_total: 0,
        released_total: 0,
        failed_allocations: 0,
        unknown_frees: 0,
        failures: Vec::new(),
        devices: Vec::new(),
        kinds: vec![kind],
        threads: vec![ThreadView {
            tid: Tid(7),
            name: NAME.into(),
            live_bytes: Bytes(1 << 30),
            live_allocations: 1,
            kinds: Vec::new(),
            allocations: vec![allocation()],
        }],
        pools: Vec::new(),
        reserved_addresses: Bytes(0),
        shared_memory: vec![shared_memory()],
        api_misuse: ApiMisuse::default(),
        activity: Some(ActivityView {
            launches: 1,
            recent_launches: 1,
            captured: 0,
            failed: 0,
            checked: 1,
            window: Nanos(1_000_000_000),
            kernels_total: 1,
            kernels: vec![kernel()],
            copies: Vec::new(),
        }),
        libraries: vec![LibraryView { library: NAME.into(), ..LibraryView::default() }],
        overhead: OverheadView::default(),
        objects: Vec::new(),
        allocators: Vec::new(),
        sites: vec![site()],
        sites_total: 1,
        growth_per_hour: Some(1 << 30),
        undecided: None,
        uncertainty: Uncertainty::default(),
    }
}

fn shared_memory() -> SharedMemoryView {
    SharedMemoryView {
        role: ShareRole::Importer,
        peer: Some((Pid(8), NAME.into())),
        bytes: Bytes(1 << 20),
        allocations: 1,
        unknown_sizes: 0,
        kept_alive: true,
    }
}

fn site_verdict() -> SiteVerdict {
    SiteVerdict {
        pid: Some(Pid(7)),
        process: NAME.into(),
        site: site().name,
        frames: frames(),
        resource: Resource::Memory(MemoryKind::Device),
        device: Some(DeviceId(0)),
        thread: Some((Tid(7), NAME.into())),
        verdict: Verdict::Leak,
        confidence: Confidence::Likely,
        evidence: Evidence {
            live: 1 << 30,
            live_count: 1,
            growth_per_hour: 1 << 30,
            ..Evidence::default()
        },
    }
}

fn snapshot() -> Snapshot {
    let anomaly = Anomaly {
        at: Timestamp(1),
        pid: Pid(7),
        process: NAME.into(),
        tid: Some(Tid(7)),
        thread: NAME.into(),
        site: site().name,
        frames: frames(),
        device: Some(DeviceId(0)),
        kind: MemoryKind::Device,
        details: AnomalyKind::Size {
            key: AllocationKey::address(1),
            bytes: Bytes(1 << 30),
            baseline: Bytes(1),
            of: 100,
            of_site: true,
            live: true,
        },
    };
    let out_of_memory = OutOfMemory {
        framework: Some(FrameworkOom {
            requested: Bytes(1),
            allocated: Bytes(2),
            reserved: Bytes(3),
        }),
        recovered: Some(Bytes(4)),
        at: Timestamp(1),
        pid: Pid(7),
        tid: Tid(7),
        name: NAME.into(),
        device: Some(DeviceId(0)),
        gpu: Some(GpuId(0)),
        requested: Some((MemoryKind::Device, Bytes(1 << 30))),
        site: Some(SiteId(1)),
        site_name: site().name,
        frames: frames(),
        holders: vec![(Pid(7), NAME.into(), Bytes(1))],
    };
    let not_freed = NotFreed {
        key: ProcessKey { pid: Pid(8), start: 1 },
        name: NAME.into(),
        identity: identity(),
        cached: Bytes(0),
        bytes: Bytes(1),
        allocations: 1,
        sites: vec![NotFreedSite {
            site: site().name,
            frames: frames(),
            kind: MemoryKind::Device,
            bytes: Bytes(1),
            allocations: 1,
        }],
    };
    Snapshot {
        at: Timestamp(1_000_000_000),
        observed: Nanos(1_000_000_000),
        is_live: true,
        not_freed: vec![not_freed],
        live_bytes: Bytes(1 << 30),
        live_allocations: 1,
        uncertainty: Uncertainty::default(),
        processes: vec![process()],
        out_of_memory: vec![out_of_memory],
        ooms_by_gpu: vec![(Some(GpuId(0)), 1)],
        sites: vec![site()],
        sites_total: 1,
        allocations_total: 1,
        without_stack: 0,
        tensor_sites: vec![site()],
        tensor_sites_total: 1,
        suspects: vec![site_verdict()],
        suspects_total: 1,
        other_verdicts: vec![SiteVerdict { verdict: Verdict::Plateau, ..site_verdict() }],
        anomalies: vec![anomaly],
        gpus: Vec::new(),
        device_holders: vec![device_holder()],
        marks: vec![mark()],
        unknown_calls: BTreeMap::from([(NAME.into(), 1)]),
    }
}

fn mark() -> Mark {
    let (at, kind, label) = (Timestamp(1), MarkKind::Point, NAME.into());
    Mark { at, pid: None, kind, label }
}

fn device_holder() -> DeviceHolder {
    DeviceHolder {
        pid: Pid(8),
        name: NAME.into(),
        uid: 0,
        gpus: Vec::new(),
        has_cuda: true,
        is_zombie: false,
        parent: Some((Pid(7), NAME.into())),
        parent_is_listed: true,
        age: Nanos(1),
        container: None,
    }
}

fn published() -> PublishedSnapshot {
    let snapshot = snapshot();
    let gpu = GpuLabel { id: GpuId(0), uuid: NAME.into(), name: NAME.into(), total_bytes: 1 << 40 };
    let context = ReportContext {
        source: None,
        clock: WallClock::fixed(Timestamp(0), 1_700_000_000),
        function: |_| "cuMemAlloc_v2",
        recorded: FunctionTable::default(),
        gpus: vec![gpu],
    };
    let gpus =
        [GpuInfo { id: GpuId(0), uuid: NAME.into(), name: NAME.into(), total: Bytes(1 << 40) }];
    let metrics = MetricsCollector::new(SeriesLimits::default()).observe(&CollectorInput {
        snapshot: &snapshot,
        gpus: &gpus,
        agent: &AgentStats::default(),
        location: short_location,
    });
    let own = AgentUsage { tracing: true, ..AgentUsage::default() };
    PublishedSnapshot { sequence: 1, snapshot, context: Arc::new(context), metrics, own }
}

/// An agent with all of that, and with incidents and alerts.
pub(super) fn api(show_paths: bool) -> Arc<Api> {
    api_with(show_paths, None)
}

fn api_with(show_paths: bool, token: Option<BearerToken>) -> Arc<Api> {
    let mut config = Config::default();
    config.http.show_paths = show_paths;
    let shared = AgentState::new(config);
    shared.feed.publish(published());
    shared.alerts.show(vec![AlertView {
        rule: "leak_suspect",
        severity: "warning",
        labels: BTreeMap::from([("process", NAME.into())]),
        summary: NAME.into(),
        value: 1.0,
        since: "2026-01-01T00:00:00Z".into(),
        resolved: None,
    }]);
    shared.incidents.show(vec![IncidentView {
        id: "one".into(),
        trigger: "threshold",
        cause: "device_exhausted".into(),
        time: "2026-01-01T00:00:00Z".into(),
        pid: Some(7),
        process: NAME.into(),
        requested_bytes: None,
        gpu: None,
        summary: NAME.into(),
        size_bytes: 0,
        written_after_ms: 0,
        written: true,
        row: formats::report::incident::IncidentRow::default(),
        summary_text: None,
        dir: PATH.into(),
    }]);
    // Streams end after their first event.
    shared.feed.close();
    Api::new(shared, Config::default().http.listen, token)
}

/// Returns every path of the index, with its placeholders filled in.
fn paths(api: &Arc<Api>) -> Vec<String> {
    let index = get(api, "/api");
    let listed = index.lines().filter_map(|line| line.split_ascii_whitespace().next());
    let listed = listed.filter(|path| path.starts_with('/')).map(|path| {
        let path =
            path.replace("?pid=PID&limit=N", "").replace("?limit=N", "").replace("?pid=PID", "");
        let path = path.replace("SITE", &site().name.to_string());
        path.replace("PID", "7").replace("ID", "one").replace("FILE", "summary.txt")
    });
    listed.chain(["/api/v1/sites?pid=7".into(), "/debug/pprof/heap".into()]).collect()
}

/// Sends a request through all layers.
fn request(api: &Arc<Api>, request: Request<Body>) -> (Response<()>, Vec<u8>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let response = routes::router(api).oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        (Response::from_parts(head, ()), to_bytes(body, usize::MAX).await.unwrap().into())
    })
}

fn get(api: &Arc<Api>, path: &str) -> String {
    let (_, bytes) =
        request(api, Request::get(path).header("host", "localhost").body(Body::empty()).unwrap());
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return String::from_utf8_lossy(&bytes).into_owned();
    }
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut plain).unwrap();
    String::from_utf8_lossy(&plain).into_owned()
}

/// Collects the keys of fields that contain a name.
fn named(value: &Value, key: &str, found: &mut Vec<String>) {
    match value {
        Value::String(text) if text.contains(NAME) => found.push(key.to_owned()),
        Value::Array(items) => items.iter().for_each(|item| named(item, key, found)),
        Value::Object(fields) => fields.iter().for_each(|(key, value)| named(value, key, found)),
        _ => {}
    }
}

#[test]
fn responses_have_no_paths_without_show_paths() {
    let (hidden, visible) = (api(false), api(true));
    let mut with_paths = 0;
    for path in paths(&hidden) {
        let text = get(&hidden, &path);
        assert!(!text.contains("/srv/ann"), "{path}: {text}");
        with_paths += usize::from(get(&visible, &path).contains(PATH));
        if let Ok(value) = serde_json::from_str::<Value>(&text) {
            let mut found = Vec::new();
            named(&value, "", &mut found);
            found.retain(|key| !NAMES.contains(&key.as_str()));
            assert_eq!(found, [""; 0], "{path}: a name where none was expected: {text}");
        }
    }
    // Snapshot, sites (all, and of one process), suspects, two paths of the profile, and the call
    // stacks of a site and of leaks on the live page.
    assert_eq!(with_paths, 8);
}

#[test]
fn hostile_hosts_and_origins_are_rejected_on_every_path() {
    let api = api(false);
    for path in paths(&api) {
        let origin = "http://evil.example";
        let absolute = [origin, &path].concat();
        for (uri, host, origin) in [
            (&path, "evil.example", None),
            (&path, "127.0.0.1.evil.example:9754", None),
            (&path, "localhost%40evil.example", None),
            (&path, "localhost", Some(origin)),
            (&path, "localhost", Some("null")),
            (&absolute, "localhost", None),
        ] {
            let hostile = Request::get(uri).header("host", host);
            let hostile =
                origin.into_iter().fold(hostile, |it, origin| it.header("origin", origin));
            let (response, body) = request(&api, hostile.body(Body::empty()).unwrap());
            let text = String::from_utf8_lossy(&body);
            assert_eq!(response.status(), 403, "{uri} {host} {origin:?}: {text}");
            assert!(!text.contains(NAME), "{uri}: {text}");
        }
    }
}

#[test]
fn token_is_needed_on_every_path_with_data() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "0123456789abcdef").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let api = api_with(false, Some(BearerToken::read(&file).unwrap()));
    let status = |path: &str, authorization: &str| {
        let get = Request::get(path).header("host", "gpu.example");
        let get = get.header("authorization", authorization);
        let (response, body) = request(&api, get.body(Body::empty()).unwrap());
        (response.status().as_u16(), String::from_utf8_lossy(&body).into_owned())
    };
    for path in paths(&self::api(false)) {
        let is_open = ["/", "/healthz", "/readyz"].contains(&&*path);
        for wrong in ["", "Bearer", "Bearer ", "Bearer 0123456789abcdeg", "Basic 0123456789abcdef"]
        {
            let (status, text) = status(&path, wrong);
            assert_eq!(status == 401, !is_open, "{path} {wrong}: {status}");
            assert!(!text.contains(NAME), "{path}: {text}");
        }
        assert_ne!(status(&path, "bearer 0123456789abcdef").0, 401, "{path}");
    }
    assert_eq!(status("/api/v1/status?token=0123456789abcdef", "").0, 401);
}

#[test]
fn every_response_has_security_headers_and_is_counted() {
    let api = api(false);
    for (path, status) in [("/healthz", 200), ("/nowhere", 404), ("/api/v1/gpus?limit=3", 400)] {
        let request_ok = Request::get(path).header("host", "localhost").body(Body::empty());
        let (response, _) = request(&api, request_ok.unwrap());
        assert_eq!(response.status(), status, "{path}");
        for name in [header::X_CONTENT_TYPE_OPTIONS, header::CONTENT_SECURITY_POLICY] {
            assert!(response.headers().contains_key(name), "{path}");
        }
    }
    let [_, ok, _, client_errors, _] = api.shared.requests.classes();
    assert_eq!((ok, client_errors), (1, 2));
}

#[test]
fn agent_without_recent_snapshots_is_not_ready() {
    let shared = AgentState::new(Config::default());
    let api = Api::new(Arc::clone(&shared), Config::default().http.listen, None);
    assert!(!api.is_ready(), "nothing was published");
    for (age, is_ready) in [(0, true), (20, false), (10, true)] {
        let at = Instant::now().checked_sub(Duration::from_secs(age)).unwrap();
        shared.feed.publish_at(published(), at);
        assert_eq!(api.is_ready(), is_ready, "{age} s ago; limit {READY_TIMEOUT:?}");
    }
}
