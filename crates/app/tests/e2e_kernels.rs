//! Launches, copies and failing calls equal what the driver itself says.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod harness;

use std::collections::BTreeMap;

use harness::{Stage, Traced, process, simulator};
use serde_json::Value;

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("a number: {value}"))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("a text: {value}")).to_owned()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("a list: {value}"))
}

/// Sums by a key; entries of nothing are left out.
fn sums<K: Ord>(list: &[Value], key: impl Fn(&Value) -> K, of: &str) -> BTreeMap<K, u64> {
    let mut sums = BTreeMap::new();
    for entry in list {
        *sums.entry(key(entry)).or_default() += number(&entry[of]);
    }
    sums.retain(|_, sum| *sum > 0);
    sums
}

/// Launches by symbol, copies by direction and mode, failures by function: all as the driver says.
fn assert_work(report: &Value, oracle: &Value) {
    let kernels: Vec<Value> =
        list(&report["kernels"]).iter().filter(|row| row["kind"] == "kernel").cloned().collect();
    for of in ["launches", "captured"] {
        let ours = sums(&kernels, |row| text(&row["symbol"]), of);
        assert_eq!(ours, sums(list(&oracle["launches"]), |row| text(&row["name"]), of), "{of}");
    }
    let graphs = list(&report["kernels"]).iter().filter(|row| row["kind"] == "graph");
    let graphs: Vec<Value> = graphs.cloned().collect();
    let ours = sums(&graphs, |row| text(&row["handle"]), "launches");
    let theirs = sums(list(&oracle["graph_launches"]), |row| text(&row["exec"]), "launches");
    assert_eq!(ours, theirs, "graphs");
    let way = |row: &Value| (text(&row["direction"]), text(&row["mode"]));
    for of in ["calls", "bytes"] {
        let ours = sums(list(&report["copies"]), way, of);
        assert_eq!(ours, sums(list(&oracle["copies"]), way, of), "{of} of copies");
    }
    let failed = |row: &Value| (text(&row["function"]), row["code"].as_i64());
    let ours = sums(list(&report["failed_calls"]), failed, "count");
    let mut theirs = sums(list(&oracle["errors"]), failed, "count");
    // How the workload says what went wrong; not a function that is traced.
    theirs.retain(|(function, _), _| function != "cuGetErrorName");
    assert_eq!(ours, theirs, "errors");
}

/// The last report is exact, and every process of it as the driver says.
fn assert_truth(traced: &Traced, stage: &Stage) {
    assert!(traced.status.success(), "{}", traced.messages);
    let last = traced.last();
    assert_eq!(last["exact"], true, "{last}");
    let oracles = stage.oracles();
    assert!(!oracles.is_empty());
    for (pid, oracle) in &oracles {
        assert_work(process(last, *pid), oracle);
    }
}

#[test]
fn two_kernels_a_thousand_times_each() {
    let stage = Stage::new();
    let traced = stage.kernels(&[], &["launches", "--iterations", "1000"]);
    assert_truth(&traced, &stage);
    let last = traced.last();
    assert_eq!(last["launches_total"], 2000);
    let process = &last["processes"][0];
    assert_eq!(process["launches_total"], 2000);
    let kernels = list(&process["kernels"]);
    assert_eq!(kernels.len(), 2);
    assert!(kernels.iter().all(|kernel| kernel["launches"] == 1000));
    assert!(kernels.iter().all(|kernel| kernel["name_source"] == "call"));
}

#[test]
fn many_kernels_threads_and_processes() {
    let stage = Stage::new();
    let workload = [
        "launches",
        "--kernels",
        "200",
        "--threads",
        "16",
        "--processes",
        "4",
        "--iterations",
        "20",
    ];
    let traced = stage.kernels(&[], &workload);
    assert_truth(&traced, &stage);
    assert_eq!(stage.oracles().len(), 4);
    assert_eq!(traced.last()["launches_total"], 4 * 200 * 16 * 20);
}

#[test]
fn the_most_common_shape_is_told() {
    let stage = Stage::new();
    let traced = stage.kernels(&[], &["launches", "--iterations", "500"]);
    let oracles = stage.oracles();
    let (pid, oracle) = oracles.iter().next().unwrap();
    for kernel in list(&process(traced.last(), *pid)["kernels"]) {
        let theirs = list(&oracle["launches"]).iter();
        let theirs = theirs.filter(|row| row["name"] == kernel["symbol"]);
        let shapes = theirs.flat_map(|row| list(&row["shapes"]));
        let most = shapes.max_by_key(|shape| number(&shape["count"])).unwrap();
        assert_eq!(kernel["shape_exact"], true);
        assert_eq!(kernel["grid"], most["grid"]);
        assert_eq!(kernel["block"], most["block"]);
        assert_eq!(kernel["shared_bytes"], most["shared"]);
        assert_eq!(kernel["shape_launches"], most["count"]);
    }
}

#[test]
fn copies_in_every_direction() {
    let stage = Stage::new();
    assert_truth(&stage.kernels(&[], &["copies", "--iterations", "3"]), &stage);
}

#[test]
fn a_table_that_is_full_is_counted() {
    let stage = Stage::new();
    let workload = ["launches", "--kernels", "100", "--threads", "2", "--iterations", "30"];
    let traced = stage.kernels(&["--activity-table-size", "16"], &workload);
    let last = traced.last();
    assert_eq!(last["exact"], false);
    let (seen, lost) = (number(&last["launches_total"]), number(&last["lost_launches"]));
    assert!(seen > 0 && lost > 0);
    assert_eq!(seen + lost, 100 * 2 * 30);
}

#[test]
fn launches_that_fail_are_told_by_code_and_not_counted() {
    for check in ["sampled", "all"] {
        let stage = Stage::new();
        let options = ["--check-launches", check];
        let traced =
            stage.kernels(&options, &["launches", "--iterations", "100", "--failing", "9"]);
        assert_truth(&traced, &stage);
        let process = &traced.last()["processes"][0];
        assert_eq!(process["failed_launches"], 9);
        assert_eq!(process["launches_total"], 200);
        let name = "CUDA_ERROR_INVALID_VALUE";
        assert!(list(&process["failed_calls"]).iter().all(|call| call["error"] == name));
    }
}

#[test]
fn every_launch_can_be_checked() {
    let stage = Stage::new().env("SIM_INJECT_FAILURES", "cuLaunchKernel:every97=719");
    let workload = ["launches", "--iterations", "3000", "--time"];
    let traced = stage.kernels(&["--check-launches", "all"], &workload);
    let oracles = stage.oracles();
    let (pid, oracle) = oracles.iter().next().unwrap();
    assert_work(process(traced.last(), *pid), oracle);
}

#[test]
fn copies_that_fail_are_told_by_code_and_not_counted() {
    let stage = Stage::new().env("SIM_INJECT_FAILURES", "cuMemcpyDtoH_v2:2=700");
    let traced = stage.kernels(&[], &["copies", "--iterations", "3"]);
    let oracles = stage.oracles();
    let (pid, oracle) = oracles.iter().next().unwrap();
    let report = process(traced.last(), *pid);
    assert_work(report, oracle);
    assert_eq!(report["failed_calls"][0]["error"], "CUDA_ERROR_ILLEGAL_ADDRESS");
}

#[test]
fn a_capture_launches_nothing_and_its_graph_does() {
    let stage = Stage::new();
    let traced = stage.kernels(&[], &["launches", "--iterations", "10", "--graphs", "7"]);
    assert_truth(&traced, &stage);
    let process = &traced.last()["processes"][0];
    assert_eq!(process["captured_launches"], 2);
    assert_eq!(process["launches_total"], 20 + 7);
}

#[test]
fn a_handle_that_is_given_out_again_is_another_kernel() {
    let stage = Stage::new();
    let traced = stage.kernels(&[], &["launches", "--iterations", "10", "--reloads", "60"]);
    assert_truth(&traced, &stage);
    let kernels = list(&traced.last()["processes"][0]["kernels"]);
    let passing = kernels.iter().filter(|row| text(&row["symbol"]).starts_with("passing_"));
    let counts: Vec<u64> = passing.map(|row| number(&row["launches"])).collect();
    assert_eq!(counts, [100, 100, 100]);
}

/// The totals of all kernels and copies are read whenever a process ends, also while others run.
#[test]
fn totals_read_while_processes_end_belong_to_the_right_kernel() {
    let stage = Stage::new();
    let driver = stage.driver.to_str().unwrap();
    let mut tracer = stage.start_trace(&["--kernels", "--driver", driver, "--top", "1000000"]);
    tracer.next();
    let reloads = ["launches", "--iterations", "5", "--threads", "2", "--reloads", "9"];
    let copies = ["copies", "--iterations", "1"];
    for _ in 0..30 {
        let many = [&reloads[..], &copies, &reloads, &copies, &reloads, &copies];
        let many = many.map(|workload| stage.workload(workload));
        many.into_iter().for_each(|player| assert!(player.finish().0.success()));
    }
    let traced = tracer.stop();
    let all = traced.reports.iter().flat_map(|report| list(&report["processes"]));
    let last: BTreeMap<u64, &Value> =
        all.map(|process| (number(&process["pid"]), process)).collect();
    for (pid, oracle) in &stage.oracles() {
        let process = last[&u64::from(*pid)];
        assert_eq!(process["exact"], true, "{process}");
        assert_work(process, oracle);
    }
}

#[test]
fn names_from_before_the_trace_are_found_in_the_driver() {
    let stage = Stage::new();
    let mut player = stage.workload(&["launch-late", "--iterations", "300"]);
    player.wait_ready();
    let pid = player.pid().to_string();
    let mut tracer = stage.start("kernels", &["-p", &pid]);
    // The first report shows that the probes are attached.
    tracer.next();
    player.go();
    player.finish();
    let traced = tracer.stop();
    let process = &traced.last()["processes"][0];
    assert_eq!(process["before_trace"], true);
    assert_eq!(process["launches_total"], 600);
    for kernel in list(&process["kernels"]) {
        assert_eq!(kernel["name_source"], "memory");
        assert_eq!(kernel["launches"], 300);
        assert!(text(&kernel["symbol"]).starts_with("_Z"), "{kernel}");
    }
}

#[test]
fn synchronous_copies_have_a_bandwidth() {
    let stage = Stage::new().env("SIM_BANDWIDTH", "20M");
    let traced = stage.kernels(&[], &["copies", "--iterations", "2"]);
    let copies = list(&traced.last()["processes"][0]["copies"]);
    let h2d = |mode: &str| {
        copies.iter().find(|row| row["direction"] == "H2D" && row["mode"] == mode).unwrap()
    };
    let rate = h2d("sync")["bytes_per_second"].as_f64().unwrap();
    assert!(rate > 1e5 && rate <= 20.0 * 1_048_576.0, "{rate}");
    let p50 = h2d("sync")["bandwidth"]["p50"].as_f64().unwrap();
    assert!(p50 > 1e5 && p50 <= 30e6, "{p50}");
    assert_eq!(h2d("async")["bytes_per_second"], Value::Null);
}

#[test]
fn other_ways_to_attach_and_the_older_build() {
    let workload = ["launches", "--iterations", "200", "--kernels", "9", "--threads", "2"];
    let stage = Stage::new();
    assert_truth(&stage.kernels(&["--attach-mode", "multi"], &workload), &stage);
    let stage = Stage::with_driver(simulator().join("cmpl/libcuda.so.1"));
    assert_truth(&stage.kernels(&[], &workload), &stage);
}

#[test]
fn a_trace_of_memory_shows_both() {
    let stage = Stage::new();
    let traced = stage.trace(&["--kernels"], &["launches", "--iterations", "50"]);
    traced.assert_truth(&stage);
    assert_eq!(traced.last()["processes"][0]["launches_total"], 100);
    let stage = Stage::new();
    let traced = stage.trace(&[], &["launches", "--iterations", "50"]);
    assert!(
        traced.last()["processes"]
            .as_array()
            .unwrap()
            .iter()
            .all(|process| { process["launches_total"] == Value::Null })
    );
}

#[test]
fn reports_on_the_way_have_rates() {
    let stage = Stage::new();
    let workload = ["launches", "--iterations", "60", "--pause-ms", "20"];
    let traced = stage.kernels(&[], &workload);
    let rates = traced
        .reports
        .iter()
        .filter_map(|report| report["processes"][0]["launches_per_second"].as_f64());
    assert!(rates.filter(|rate| (20.0..200.0).contains(rate)).count() >= 2, "{:?}", traced.reports);
}

#[test]
fn launches_around_any_end_of_a_capture_are_counted() {
    for how in ["call", "null", "invalid", "thread", "stream"] {
        let stage = Stage::new();
        let traced = stage.kernels(&[], &["capture-end", "--how", how]);
        assert_truth(&traced, &stage);
        let process = &traced.last()["processes"][0];
        assert_eq!(process["captured_launches"], 1, "{how}");
    }
    // The probes do not know which captures end with a context.
    let stage = Stage::new();
    let traced = stage.kernels(&[], &["capture-end", "--how", "context"]);
    let (pid, oracle) = stage.oracles().into_iter().next().unwrap();
    assert_work(process(traced.last(), pid), &oracle);
    assert_eq!(traced.last()["exact"], false);
    assert_eq!(traced.last()["lost_launches"], 1);
}
