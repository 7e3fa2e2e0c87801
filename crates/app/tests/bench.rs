//! The benchmarks work in their short forms: their checks hold, and their output is what the
//! performance page is generated from. Those that measure run alone.

use std::process::Command;

use serde_json::Value;

use crate::harness::files::root;
use crate::harness::{ONLY_LIBRARIES_IN, VRAMSCOPE, simulator};

/// Time limit for one benchmark, in seconds.
const BENCH_TIMEOUT_SECONDS: &str = "240";

/// Runs a script of `experiments/`, which must succeed, and returns its output.
fn experiment(script: &str, arguments: &[&str]) -> String {
    // Copies of the simulator are made there.
    let build = simulator().parent().unwrap().to_path_buf();
    let tmp = tempfile::tempdir_in(&build).unwrap();
    let output = Command::new("timeout")
        .env("TMPDIR", tmp.path())
        .env(ONLY_LIBRARIES_IN, &build)
        .args(["-s", "INT", "-k", "10", BENCH_TIMEOUT_SECONDS, "python3", "-B"])
        .arg(root().join("experiments").join(script))
        .args(arguments)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {:?}\n{text}\n{messages}", output.status);
    text
}

/// Runs a script that traces with the build under test.
fn measurement(script: &str, arguments: &[&str]) -> (String, Value) {
    let dir = tempfile::tempdir().unwrap();
    let results = dir.path().join("results.json");
    let build = simulator().parent().unwrap().to_path_buf();
    let mut all = vec!["--build", build.to_str().unwrap(), "--vramscope", VRAMSCOPE];
    all.extend(["--results", results.to_str().unwrap()]);
    all.extend(arguments);
    let text = experiment(script, &all);
    (text, serde_json::from_str(&std::fs::read_to_string(results).unwrap()).unwrap())
}

#[test]
fn stress_run_loses_no_events() {
    let (text, results) = measurement("cost/stress/run.py", &["--quick", "--cells", "2"]);
    let cells = results["stress"]["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 2, "{text}");
    for cell in cells {
        assert_eq!(cell["received"], cell["truth"], "{text}");
        assert!(cell["truth"].as_u64().unwrap() > 1000, "{text}");
        assert_eq!(cell["lost"], 0, "{text}");
        assert!(cell["ring"]["most_bytes"].as_u64().unwrap() > 0, "{text}");
        assert!(!cell["series"].as_array().unwrap().is_empty(), "{text}");
    }
    let rows = results["other_tools"]["rows"].as_array().unwrap();
    let row = |way: &str| rows.iter().find(|row| row["way"] == way).unwrap();
    // Not every machine can build the baselines; a baseline that runs receives all calls.
    for way in ["record", "paired", "naive"] {
        let reported = &row(way)["reported"];
        assert!(row(way)["missing"].is_string() || reported["lost"] == 0, "{text}");
        assert!(row(way)["missing"].is_string() || reported["received"].as_u64().unwrap() > 10_000);
    }
    assert!(row("vramscope off")["added_ns"].as_f64().unwrap() > 100.0, "{text}");
}

#[test]
fn soak_finds_no_leaks_leftovers_or_wrong_values() {
    let dir = tempfile::tempdir().unwrap();
    let plot = dir.path().join("soak.svg");
    let arguments = ["--seconds", "18", "--plot", plot.to_str().unwrap()];
    let (text, results) = measurement("cost/soak/run.py", &arguments);
    assert!(results["soak"]["compared"].as_u64().unwrap() > 20, "{text}");
    assert!(results["soak"]["sigkills"].as_u64().unwrap() > 0, "{text}");
    assert!(text.contains("nothing was lost, nothing is left behind"), "{text}");
    let drawn = std::fs::read_to_string(plot).unwrap();
    for title in ["Memory", "Open files and threads", "Map entries", "Programs and losses"] {
        assert!(drawn.contains(&format!("<title>{title}</title>")), "{drawn}");
    }
}

/// Runs rounds of random accidents, which must agree with the oracle, and returns the summary.
fn chaos(kind: &str, seeds: &[&str]) -> Value {
    let build = simulator().parent().unwrap().to_path_buf();
    let kept = tempfile::tempdir().unwrap();
    let mut all = vec!["--build", build.to_str().unwrap(), "--vramscope", VRAMSCOPE];
    all.extend(["--kind", kind, "--keep", kept.path().to_str().unwrap(), "--seed"]);
    all.extend(seeds);
    let text = experiment("verify/chaos/run.py", &all);
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&last["rounds"], &last["wrong"]),
        (&seeds.len().into(), &serde_json::json!([])),
        "{text}"
    );
    last
}

#[test]
fn fault_rounds_agree_with_the_driver() {
    assert!(chaos("reuse", &["343828345"])["compared"].as_u64() > Some(5));
    assert_eq!(chaos("kill", &["1"])["compared"], 0);
}

/// The seeds cover every fault; with the last ones maps cannot be read and allocated, and events
/// are lost.
#[test]
fn injected_faults_leave_reports_exact_or_bounded() {
    std::thread::scope(|scope| {
        let mixed = scope.spawn(|| chaos("faults", &["42", "68", "101"]));
        let lossy = chaos("allocation", &["3", "64"]);
        assert!(lossy["not_exact"].as_u64() > Some(0), "{lossy}");
        let mixed = mixed.join().unwrap();
        assert!(mixed["compared"].as_u64() > Some(5), "{mixed}");
    });
}

#[test]
fn growth_costs_are_measured() {
    let (text, results) = measurement("cost/growth.py", &["--quick", "--counts", "1000"]);
    let rows = results["growth"]["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["who"] == "vramscope"), "{text}");
}

#[test]
fn http_load_loses_no_events_and_is_measured() {
    let (text, results) = measurement("cost/http_load.py", &["--quick"]);
    let load = &results["load"];
    assert_eq!((&load["lost"], &load["errors"]), (&0.into(), &0.into()), "{text}");
    assert_eq!(load["received"], load["truth"], "{text}");
    assert!(load["requests_per_s"].as_f64().unwrap() > 100.0, "{text}");
    assert_eq!(load["cost"].as_array().unwrap().len(), 3, "{text}");
    for row in load["cost"].as_array().unwrap() {
        assert!(row["processor_ns"].as_f64().unwrap() > 100.0, "{text}");
    }
}

#[test]
fn monitor_writes_its_columns() {
    let own = std::process::id().to_string();
    let arguments = ["--duration", "0.5", "--description", "me", &own];
    let text = experiment("cost/stress/monitor.py", &arguments);
    let mut lines = text.lines();
    assert_eq!(
        lines.next().unwrap(),
        "timestamp,description,pid,name,cpu_percent,memory_mb,disk_read_kb,disk_write_kb"
    );
    let row: Vec<&str> = lines.next().unwrap().split(',').collect();
    assert_eq!((row[1], row[2]), ("me", own.as_str()));
    assert!(row[5].parse::<f64>().unwrap() > 0.5, "{text}");
}

#[test]
fn performance_page_is_generated_from_results() {
    experiment("cost/stress/report.py", &["--check"]);
}
