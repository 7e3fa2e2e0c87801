//! Series of processes and containers: who has them, and for how long.

use std::sync::Arc;

use engine::container::{Container, Pod, Runtime};
use engine::event::What;
use engine::ids::Pid;
use engine::metrics::{Figures, Limits};

use super::stage::{Stage, find, whole};

const LIVE: &str = "vramscope_process_live_bytes";
const ALLOCATIONS: &str = "vramscope_process_allocations_total";

fn two() -> Limits {
    Limits { processes: 2, containers: 2, sites: 2, suspects: 2 }
}

fn pids(figures: &Figures) -> Vec<String> {
    let samples = figures.of(ALLOCATIONS).iter();
    let mut pids: Vec<_> = samples.map(|sample| sample.labels[0].to_string()).collect();
    pids.sort();
    pids
}

#[test]
fn the_biggest_processes_have_series_and_keep_them_until_they_end() {
    let mut stage = Stage::new(two());
    for (pid, bytes) in [(1, 10), (2, 30), (3, 20)] {
        stage.begin(pid, u64::from(pid), "p");
        stage.allocate(pid, 0x1000, bytes);
    }
    let figures = stage.figures();
    assert_eq!(pids(&figures), ["2", "3", "other"]);
    assert_eq!(whole(&figures, LIVE, &["2", "GPU-0"]), 30);
    assert_eq!(whole(&figures, LIVE, &["other", "GPU-0"]), 10);
    // The one without becomes the biggest: it has to wait.
    stage.allocate(1, 0x2000, 500);
    assert_eq!(pids(&stage.figures()), ["2", "3", "other"]);
    stage.tell(2, What::Exit);
    assert_eq!(pids(&stage.figures()), ["1", "3", "other"]);
}

#[test]
fn a_process_that_gets_series_later_counts_from_then_on() {
    let mut stage = Stage::new(Limits { processes: 1, ..two() });
    stage.begin(1, 1, "first");
    stage.allocate(1, 0x1000, 100);
    stage.begin(2, 2, "second");
    for address in 1..=5 {
        stage.allocate(2, address * 0x1000, 1);
    }
    let figures = stage.figures();
    assert_eq!(whole(&figures, ALLOCATIONS, &["1"]), 1);
    assert_eq!(whole(&figures, ALLOCATIONS, &["other"]), 5);
    stage.tell(1, What::Exit);
    stage.allocate(2, 0x9000, 1);
    let figures = stage.figures();
    assert_eq!(whole(&figures, ALLOCATIONS, &["2"]), 1);
    assert_eq!(whole(&figures, ALLOCATIONS, &["other"]), 5);
    assert_eq!(whole(&figures, "vramscope_allocations_total", &[]), 7);
    stage.allocate(2, 0xa000, 1);
    assert_eq!(whole(&stage.figures(), ALLOCATIONS, &["2"]), 2);
}

#[test]
fn what_short_processes_did_is_counted_once_whoever_saw_them() {
    let mut stage = Stage::new(two());
    stage.begin(1, 1, "long");
    stage.allocate(1, 0x1000, 8);
    stage.figures();
    // One that begins and ends between two snapshots, one that is seen before it ends.
    stage.begin(2, 2, "short");
    stage.allocate(2, 0x1000, 8);
    stage.free(2, 0x1000);
    stage.tell(2, What::Exit);
    stage.begin(3, 3, "seen");
    stage.allocate(3, 0x1000, 8);
    let figures = stage.figures();
    assert_eq!(whole(&figures, ALLOCATIONS, &["other"]), 1);
    stage.allocate(3, 0x2000, 8);
    stage.tell(3, What::Exit);
    let figures = stage.figures();
    assert_eq!(whole(&figures, "vramscope_allocations_total", &[]), 4);
    assert_eq!(whole(&figures, "vramscope_frees_total", &[]), 1);
    assert_eq!(whole(&figures, "vramscope_processes_ended_total", &[]), 2);
    assert_eq!(whole(&figures, "vramscope_not_freed_bytes_total", &[]), 16);
    assert_eq!(whole(&figures, "vramscope_processes", &[]), 1);
    assert_eq!(pids(&figures), ["1", "other"]);
    // And not again.
    assert_eq!(whole(&stage.figures(), "vramscope_allocations_total", &[]), 4);
}

#[test]
fn a_number_that_is_used_again_is_another_process() {
    let mut stage = Stage::new(two());
    stage.begin(1, 1, "old");
    stage.allocate(1, 0x1000, 8);
    stage.allocate(1, 0x2000, 8);
    stage.figures();
    stage.tell(1, What::Exit);
    stage.begin(1, 99, "new");
    stage.allocate(1, 0x1000, 8);
    let figures = stage.figures();
    assert_eq!(pids(&figures), ["1"]);
    assert_eq!(whole(&figures, ALLOCATIONS, &["1", "new"]), 1);
    assert_eq!(whole(&figures, "vramscope_allocations_total", &[]), 3);
}

#[test]
fn a_program_that_replaces_itself_is_counted_whole() {
    let mut stage = Stage::new(two());
    stage.begin(1, 1, "shell");
    stage.allocate(1, 0x1000, 8);
    stage.figures();
    stage.allocate(1, 0x2000, 8);
    stage.tell(1, What::Exec);
    stage.allocate(1, 0x1000, 8);
    let figures = stage.figures();
    assert_eq!(whole(&figures, "vramscope_allocations_total", &[]), 3);
    assert_eq!(whole(&figures, ALLOCATIONS, &["1"]), 1);
    assert_eq!(whole(&figures, LIVE, &["1"]), 8);
    stage.allocate(1, 0x3000, 8);
    assert_eq!(whole(&stage.figures(), "vramscope_allocations_total", &[]), 4);
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
        runtime: Runtime::Containerd,
        pod,
        pid_inside: Some(Pid(1)),
    })
}

#[test]
fn containers_are_sums_of_their_processes_and_bounded_too() {
    let mut stage = Stage::new(Limits { containers: 1, ..two() });
    for pid in 1..=4 {
        stage.begin(pid, u64::from(pid), "p");
        stage.allocate(pid, 0x1000, u64::from(pid) * 10);
    }
    let name = "vramscope_container_live_bytes";
    let mut snapshot = stage.snapshot();
    for process in &mut snapshot.processes {
        // The first and the second are the same to people: a container that was started again.
        process.container = match process.key.pid.0 {
            1 => Some(container("aaa", Some("web"))),
            2 => Some(container("bbb", Some("web"))),
            3 => Some(container("0123456789abcdef0123", None)),
            _ => None,
        };
    }
    let figures = stage.observe(&snapshot);
    assert_eq!(whole(&figures, name, &["0123456789ab", "GPU-0"]), 30);
    assert_eq!(whole(&figures, name, &["other", "GPU-0"]), 30);
    assert_eq!(figures.of(name).len(), 2);
    let labels = &figures.of(LIVE)[0].labels;
    assert_eq!(labels.len(), 7);
    // It keeps its place, although the others are bigger now.
    for process in &mut snapshot.processes {
        if process.key.pid.0 == 2 {
            process.devices[0].live_bytes.0 = 500;
        }
    }
    let figures = stage.observe(&snapshot);
    assert_eq!(whole(&figures, name, &["other", "GPU-0"]), 510);
    snapshot.processes.retain(|process| process.key.pid.0 != 3);
    let figures = stage.observe(&snapshot);
    assert_eq!(whole(&figures, name, &["main", "web", "team", "GPU-0"]), 510);
    assert!(find(&figures, name, &["other"]).is_none());
}
