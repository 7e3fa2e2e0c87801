//! Full BPF maps under real probes: entries that do not fit are counted, and the bounds of the
//! report contain the driver's value.

use serde_json::Value;

use crate::harness::{TestEnv, TraceResult, process};

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("a number: {value}"))
}

fn is_inexact(process: &Value) -> bool {
    process["exact"] == false
}

/// Fails unless a process is inexact and its bounds contain the actual live bytes.
fn assert_bounded(process: &Value, actual: u64) {
    assert!(is_inexact(process), "{process}");
    let uncertainty = &process["uncertainty"];
    let [low, high] = ["live_bytes_min", "live_bytes_max"].map(|bound| number(&uncertainty[bound]));
    assert!((low..=high).contains(&actual), "{actual} is not in {low}..={high}: {process}");
}

/// Returns the only process of a trace, and its oracle.
fn only(env: &TestEnv, traced: &TraceResult) -> (Value, Value) {
    assert!(traced.status.success(), "{}", traced.messages);
    let (pid, oracle) = env.oracles().into_iter().next().unwrap();
    (process(traced.last(), pid).clone(), oracle)
}

#[test]
fn lost_allocations_of_every_kind_are_bounded() {
    for kind in ["device", "pitched", "array", "mipmapped"] {
        let env = TestEnv::new();
        let workload = ["hold", "--count", "30000", "--size", "4096", "--kind", kind];
        let traced = env.trace(&["--ring-size", "4096", "--stacks", "off"], &workload);
        println!("{kind}");
        let (process, oracle) = only(&env, &traced);
        assert!(number(&process["uncertainty"]["lost_allocations"]) > 0, "nothing was lost");
        assert_bounded(&process, number(&oracle["live_bytes"]));
    }
}

#[test]
fn full_thread_map_is_counted_and_bounded() {
    let threads = ["threads", "--threads", "5", "--duration", "2"];
    let random = ["random", "--ops", "4000", "--threads", "4", "--devices", "2"];
    for workload in [&threads[..], &random[..]] {
        for entries in ["1", "3"] {
            let env = TestEnv::new();
            println!("{} with {entries} entries", workload[0]);
            let traced = env.trace(&["--thread-table-size", entries], workload);
            let (process, oracle) = only(&env, &traced);
            assert!(number(&process["uncertainty"]["lost_allocations"]) > 0, "nothing was lost");
            assert_bounded(&process, number(&oracle["live_bytes"]));
        }
    }
}

#[test]
fn thread_map_with_room_is_exact() {
    let env = TestEnv::new();
    let workload = ["random", "--ops", "3000", "--threads", "3", "--devices", "2"];
    let options = ["--thread-table-size", "64", "--top", "1000000"];
    env.trace(&options, &workload).assert_matches_oracle(&env);
}

#[test]
fn processes_beyond_the_maps_are_counted_and_bounded() {
    let env = TestEnv::new();
    let driver = env.driver.to_str().unwrap();
    let mut tracer = env.start_trace(&["--driver", driver, "--process-table-size", "1"]);
    tracer.next();
    let hold = ["--hold-ms", "120000", "capture-end"];
    // Processes of other tests may be in the maps for a while.
    let _first = loop {
        let first = env.workload(&hold);
        let is_settled = |process: &Value| process["live_bytes"] == 7 << 20 || is_inexact(process);
        let report = tracer.wait_for_process(first.pid(), is_settled);
        if !is_inexact(process(&report, first.pid())) {
            break first;
        }
    };
    // Neither an exec of the second process nor its graph launches can be seen.
    let second = env.workload(&hold);
    let report = tracer.wait_for_process(second.pid(), |process| process["live_bytes"] == 6 << 20);
    let process = process(&report, second.pid());
    assert!(number(&process["uncertainty"]["lost_other"]) > 0, "{process}");
    assert_bounded(process, 7 << 20);
    // Its exit is still detected.
    let pid = second.pid();
    drop(second);
    tracer.wait_for("the end of the second process", |report| {
        !report["processes"].as_array().unwrap().iter().any(|process| process["pid"] == pid)
    });
    // An exec of a thread that called the driver is seen.
    let third = env.workload(&["exec"]);
    let pid = third.pid();
    assert!(third.finish().0.success());
    let traced = tracer.stop();
    let mut rows = traced.last()["processes"].as_array().unwrap().iter();
    let replaced = |process: &Value| process["pid"] == pid && process["end_reason"] == "exec";
    assert!(rows.any(replaced), "{}", traced.last());
}

#[test]
fn captures_beyond_the_map_leave_memory_exact() {
    // Room for the stream, and none for the thread.
    let env = TestEnv::new();
    let options = ["--process-table-size", "1", "--kernels"];
    let traced = env.trace(&options, &["capture-end"]);
    traced.assert_matches_oracle(&env);
    assert!(number(&traced.last()["lost_launches"]) > 0, "{}", traced.last());
}
