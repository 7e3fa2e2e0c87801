use axum::body::{Body, to_bytes};
use axum::http::{Request, Response, header};
use engine::metrics::MetricSet;
use engine::model::units::{Bytes as Size, Timestamp};
use engine::model::{Pid, ProcessKey};
use engine::snapshot::{ProcessView, Snapshot};
use futures_util::StreamExt;
use tower::ServiceExt;

use super::*;
use crate::AgentState;
use crate::api::routes;
use crate::config::Config;
use crate::exporters::published;
use crate::incidents::IncidentView;

fn api() -> Arc<Api> {
    Api::new(AgentState::new(Config::default()), Config::default().http.listen, None)
}

/// Publishes a snapshot at a second, with one process per size.
fn publish(api: &Api, second: u64, sizes: &[u64]) {
    let process = |(size, pid): (&u64, u32)| ProcessView {
        key: ProcessKey { pid: Pid(pid), start: 1 },
        name: "train".into(),
        live_bytes: Size(*size),
        live_allocations: 1,
        ..ProcessView::default()
    };
    let snapshot = Snapshot {
        at: Timestamp(second * 1_000_000_000),
        live_bytes: Size(sizes.iter().sum()),
        processes: sizes.iter().zip(1..).map(process).collect(),
        is_live: true,
        ..Snapshot::default()
    };
    api.shared.feed.publish(published(second, snapshot, MetricSet::default()));
}

/// Returns the event for a client that has seen a snapshot, with its name.
fn event(api: &Api, seen: u64) -> Option<(String, Value)> {
    let newest = api.shared.feed.newest().unwrap();
    let (_, bytes) = api.live.event(api, &newest, seen)?;
    Some(parse(&bytes))
}

fn parse(bytes: &[u8]) -> (String, Value) {
    let text = std::str::from_utf8(bytes).unwrap();
    assert!(text.ends_with("\n\n") && text.matches('\n').count() == 4, "{text}");
    let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    (line("event: ").to_owned(), serde_json::from_str(line("data: ")).unwrap())
}

const MIB: u64 = 1 << 20;

#[test]
fn only_changed_rows_are_sent() {
    let api = api();
    publish(&api, 1, &[MIB, 2 * MIB, 3 * MIB]);
    let (name, whole) = event(&api, 0).unwrap();
    assert_eq!((name.as_str(), &whole["sequence"]), ("whole", &json!(1)));
    assert_eq!(whole["processes"]["order"], json!(["3-1", "2-1", "1-1"]));
    assert_eq!(whole["processes"]["entries"].as_array().unwrap().len(), 3);
    assert_eq!(whole["history"]["totals"], json!([6 * MIB]));
    assert!(event(&api, 1).is_none(), "nothing is newer");
    publish(&api, 2, &[MIB, 2 * MIB + 4096, 3 * MIB]);
    let (name, change) = event(&api, 1).unwrap();
    assert_eq!((name.as_str(), &change["after_ms"]), ("change", &json!(1000)));
    assert!(change.get("processes").is_none(), "2.00M is shown as before: {change}");
    publish(&api, 3, &[MIB, 9 * MIB, 3 * MIB]);
    let (_, change) = event(&api, 2).unwrap();
    assert_eq!(change["processes"]["order"], json!(["2-1", "3-1", "1-1"]));
    assert_eq!(change["processes"]["entries"].as_array().unwrap().len(), 1);
    assert_eq!(change["row"]["series"]["process"]["values"], json!([[1, 9 * MIB]]));
    for list in ["gpus", "leaks", "incidents", "totals"] {
        assert!(change.get(list).is_none(), "{list}: {change}");
    }
}

#[test]
fn client_that_missed_a_snapshot_gets_the_whole_state() {
    let api = api();
    for second in 1..=4 {
        publish(&api, second, &[second * MIB]);
        event(&api, second - 1).unwrap();
    }
    let (name, whole) = event(&api, 2).unwrap();
    assert_eq!((name.as_str(), &whole["sequence"]), ("whole", &json!(4)));
    assert_eq!(whole["history"]["totals"], json!([MIB, MIB, MIB, MIB]), "differences");
    assert_eq!(event(&api, 3).unwrap().0, "change");
}

#[test]
fn new_incidents_are_sent_once() {
    let api = api();
    publish(&api, 1, &[MIB]);
    event(&api, 0).unwrap();
    api.shared.incidents.show(vec![IncidentView {
        id: "one".into(),
        trigger: "out_of_memory",
        cause: "device_exhausted".into(),
        time: "2026-01-01T00:00:00Z".into(),
        pid: Some(7),
        process: "train".into(),
        requested_bytes: None,
        gpu: None,
        summary: "train requested memory".into(),
        size_bytes: 0,
        written_after_ms: 0,
        written: true,
        row: formats::report::incident::IncidentRow::default(),
        summary_text: None,
        dir: "/srv".into(),
    }]);
    publish(&api, 2, &[MIB]);
    let (_, change) = event(&api, 1).unwrap();
    assert_eq!(change["incidents"]["order"], json!(["one"]));
    assert_eq!(change["totals"]["incidents"], 1);
    publish(&api, 3, &[MIB]);
    assert!(event(&api, 2).unwrap().1.get("incidents").is_none());
}

#[test]
fn long_lists_are_sent_in_part() {
    let api = api();
    let sizes: Vec<u64> = (1..=500).map(|size| size * MIB).collect();
    publish(&api, 1, &sizes);
    let (_, whole) = event(&api, 0).unwrap();
    assert_eq!(whole["processes"]["entries"].as_array().unwrap().len(), 100);
    assert_eq!(whole["totals"]["processes"], 500);
    assert_eq!(whole["history"]["series"]["process"]["bands"].as_array().unwrap().len(), 24);
    assert_eq!(whole["history"]["series"]["process"]["others"], 476);
    // All of them change.
    let more: Vec<u64> = sizes.iter().map(|size| size + 7 * MIB).collect();
    publish(&api, 2, &more);
    let newest = api.shared.feed.newest().unwrap();
    let (_, bytes) = api.live.event(&api, &newest, 1).unwrap();
    assert!(bytes.len() < 20_000, "{} bytes", bytes.len());
}

async fn open(api: &Arc<Api>) -> Response<Body> {
    let request = Request::get("/api/v1/stream").header("host", "localhost");
    routes::router(api).oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
}

#[test]
fn streams_are_limited_and_make_room_when_they_end() {
    let api = api();
    publish(&api, 1, &[MIB]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let mut streams = Vec::new();
        for _ in 0..MAX_STREAMS {
            let response = open(&api).await;
            assert_eq!(response.status(), 200);
            assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
            streams.push(response.into_body().into_data_stream());
        }
        assert_eq!(api.live.streams(), MAX_STREAMS);
        assert_eq!(open(&api).await.status(), 503);
        let first = streams.pop().unwrap().next().await.unwrap().unwrap();
        assert_eq!(parse(&first).0, "whole");
        assert_eq!(open(&api).await.status(), 200, "one stream ended");
        // A stream ends with the feed.
        let mut last = streams.pop().unwrap();
        assert_eq!(parse(&last.next().await.unwrap().unwrap()).0, "whole");
        publish(&api, 2, &[2 * MIB]);
        assert_eq!(parse(&last.next().await.unwrap().unwrap()).0, "change");
        api.shared.feed.close();
        assert!(last.next().await.is_none());
    });
}

#[test]
fn browsers_get_the_page_and_others_the_paths() {
    let api = api();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    for (accept, content) in [("text/html,*/*;q=0.8", "text/html"), ("*/*", "text/plain")] {
        let request = Request::get("/").header("host", "localhost").header("accept", accept);
        let response = routes::router(&api).oneshot(request.body(Body::empty()).unwrap());
        let (head, body) = runtime.block_on(response).unwrap().into_parts();
        assert!(head.headers[header::CONTENT_TYPE].to_str().unwrap().starts_with(content));
        let policy = head.headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        let text = runtime.block_on(to_bytes(body, usize::MAX)).unwrap();
        assert_eq!(text.starts_with(b"<!DOCTYPE html>"), content == "text/html");
    }
}
