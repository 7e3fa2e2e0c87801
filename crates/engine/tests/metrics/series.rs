//! Series of processes and containers: which exist, and for how long.

use std::sync::Arc;

use engine::metrics::{MetricSet, SeriesLimits};
use engine::model::container::{Container, ContainerRuntime, Pod};
use engine::model::event::EventKind;
use engine::model::ids::Pid;

use super::fixture::{MetricsFixture, find, whole};

const LIVE: &str = "vramscope_process_live_bytes";
const ALLOCATIONS: &str = "vramscope_process_allocations_total";

fn two() -> SeriesLimits {
    SeriesLimits { processes: 2, containers: 2, sites: 2, suspects: 2 }
}

fn pids(metrics: &MetricSet) -> Vec<String> {
    let samples = metrics.samples(ALLOCATIONS).iter();
    let mut pids: Vec<_> = samples.map(|sample| sample.labels[0].to_string()).collect();
    pids.sort();
    pids
}

#[test]
fn largest_processes_keep_their_series_until_exit() {
    let mut fixture = MetricsFixture::new(two());
    for (pid, bytes) in [(1, 10), (2, 30), (3, 20)] {
        fixture.begin(pid, u64::from(pid), "p");
        fixture.allocate(pid, 0x1000, bytes);
    }
    let metrics = fixture.metrics();
    assert_eq!(pids(&metrics), ["2", "3", "other"]);
    assert_eq!(whole(&metrics, LIVE, &["2", "GPU-0"]), 30);
    assert_eq!(whole(&metrics, LIVE, &["other", "GPU-0"]), 10);
    // The process without series becomes the largest, but has to wait.
    fixture.allocate(1, 0x2000, 500);
    assert_eq!(pids(&fixture.metrics()), ["2", "3", "other"]);
    fixture.apply(2, EventKind::Exit);
    assert_eq!(pids(&fixture.metrics()), ["1", "3", "other"]);
}

#[test]
fn process_with_late_series_counts_from_then_on() {
    let mut fixture = MetricsFixture::new(SeriesLimits { processes: 1, ..two() });
    fixture.begin(1, 1, "first");
    fixture.allocate(1, 0x1000, 100);
    fixture.begin(2, 2, "second");
    for address in 1..=5 {
        fixture.allocate(2, address * 0x1000, 1);
    }
    let metrics = fixture.metrics();
    assert_eq!(whole(&metrics, ALLOCATIONS, &["1"]), 1);
    assert_eq!(whole(&metrics, ALLOCATIONS, &["other"]), 5);
    fixture.apply(1, EventKind::Exit);
    fixture.allocate(2, 0x9000, 1);
    let metrics = fixture.metrics();
    assert_eq!(whole(&metrics, ALLOCATIONS, &["2"]), 1);
    assert_eq!(whole(&metrics, ALLOCATIONS, &["other"]), 5);
    assert_eq!(whole(&metrics, "vramscope_allocations_total", &[]), 7);
    fixture.allocate(2, 0xa000, 1);
    assert_eq!(whole(&fixture.metrics(), ALLOCATIONS, &["2"]), 2);
}

#[test]
fn short_lived_processes_are_counted_once() {
    let mut fixture = MetricsFixture::new(two());
    fixture.begin(1, 1, "long");
    fixture.allocate(1, 0x1000, 8);
    fixture.metrics();
    // One starts and exits between two snapshots, one is seen before it exits.
    fixture.begin(2, 2, "short");
    fixture.allocate(2, 0x1000, 8);
    fixture.free(2, 0x1000);
    fixture.apply(2, EventKind::Exit);
    fixture.begin(3, 3, "seen");
    fixture.allocate(3, 0x1000, 8);
    let metrics = fixture.metrics();
    assert_eq!(whole(&metrics, ALLOCATIONS, &["other"]), 1);
    fixture.allocate(3, 0x2000, 8);
    fixture.apply(3, EventKind::Exit);
    let metrics = fixture.metrics();
    assert_eq!(whole(&metrics, "vramscope_allocations_total", &[]), 4);
    assert_eq!(whole(&metrics, "vramscope_frees_total", &[]), 1);
    assert_eq!(whole(&metrics, "vramscope_processes_ended_total", &[]), 2);
    assert_eq!(whole(&metrics, "vramscope_not_freed_bytes_total", &[]), 16);
    assert_eq!(whole(&metrics, "vramscope_processes", &[]), 1);
    assert_eq!(pids(&metrics), ["1", "other"]);
    // They are not counted again.
    assert_eq!(whole(&fixture.metrics(), "vramscope_allocations_total", &[]), 4);
}

#[test]
fn series_of_a_reused_pid_are_separate() {
    let mut fixture = MetricsFixture::new(two());
    fixture.begin(1, 1, "old");
    fixture.allocate(1, 0x1000, 8);
    fixture.allocate(1, 0x2000, 8);
    fixture.metrics();
    fixture.apply(1, EventKind::Exit);
    fixture.begin(1, 99, "new");
    fixture.allocate(1, 0x1000, 8);
    let metrics = fixture.metrics();
    assert_eq!(pids(&metrics), ["1"]);
    assert_eq!(whole(&metrics, ALLOCATIONS, &["1", "new"]), 1);
    assert_eq!(whole(&metrics, "vramscope_allocations_total", &[]), 3);
}

#[test]
fn exec_does_not_lose_counts() {
    let mut fixture = MetricsFixture::new(two());
    fixture.begin(1, 1, "shell");
    fixture.allocate(1, 0x1000, 8);
    fixture.metrics();
    fixture.allocate(1, 0x2000, 8);
    fixture.apply(1, EventKind::Exec);
    fixture.allocate(1, 0x1000, 8);
    let metrics = fixture.metrics();
    assert_eq!(whole(&metrics, "vramscope_allocations_total", &[]), 3);
    assert_eq!(whole(&metrics, ALLOCATIONS, &["1"]), 1);
    assert_eq!(whole(&metrics, LIVE, &["1"]), 8);
    fixture.allocate(1, 0x3000, 8);
    assert_eq!(whole(&fixture.metrics(), "vramscope_allocations_total", &[]), 4);
}

fn container(id: &str, pod: Option<&str>) -> Arc<Container> {
    let pod = pod.map(|name| Pod {
        uid: "uid".into(),
        name: Some(name.into()),
        namespace: Some("team".into()),
        container: Some("main".into()),
    });
    Arc::new(Container {
        id: id.into(),
        runtime: ContainerRuntime::Containerd,
        pod,
        container_pid: Some(Pid(1)),
    })
}

#[test]
fn containers_sum_their_processes_and_are_limited() {
    let mut fixture = MetricsFixture::new(SeriesLimits { containers: 1, ..two() });
    for pid in 1..=4 {
        fixture.begin(pid, u64::from(pid), "p");
        fixture.allocate(pid, 0x1000, u64::from(pid) * 10);
    }
    let name = "vramscope_container_live_bytes";
    let mut snapshot = fixture.snapshot();
    for process in &mut snapshot.processes {
        // The first and second have equal labels: a restarted container.
        process.container = match process.key.pid.0 {
            1 => Some(container("aaa", Some("web"))),
            2 => Some(container("bbb", Some("web"))),
            3 => Some(container("0123456789abcdef0123", None)),
            _ => None,
        };
    }
    let metrics = fixture.observe(&snapshot);
    assert_eq!(whole(&metrics, name, &["0123456789ab", "GPU-0"]), 30);
    assert_eq!(whole(&metrics, name, &["other", "GPU-0"]), 30);
    assert_eq!(metrics.samples(name).len(), 2);
    let labels = &metrics.samples(LIVE)[0].labels;
    assert_eq!(labels.len(), 9);
    // It keeps its series, although the others are larger now.
    for process in &mut snapshot.processes {
        if process.key.pid.0 == 2 {
            process.devices[0].live_bytes.0 = 500;
        }
    }
    let metrics = fixture.observe(&snapshot);
    assert_eq!(whole(&metrics, name, &["other", "GPU-0"]), 510);
    snapshot.processes.retain(|process| process.key.pid.0 != 3);
    let metrics = fixture.observe(&snapshot);
    assert_eq!(whole(&metrics, name, &["main", "web", "team", "GPU-0"]), 510);
    assert!(find(&metrics, name, &["other"]).is_none());
}
