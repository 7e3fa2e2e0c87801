//! A recording has the verdicts of the live report: for memory, tensors and objects.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::harness::{TestEnv, VRAMSCOPE};

/// A verdict with its numbers.
#[derive(Debug, PartialEq)]
struct VerdictFields {
    verdict: String,
    confidence: String,
    per_hour: u64,
    live: u64,
    created: u64,
    ended: u64,
}

/// Verdicts by process, kind and call stack.
type Verdicts = BTreeMap<(u64, String, String), VerdictFields>;

fn key(entry: &Value) -> (u64, String, String) {
    let kind = entry["kind"].as_str().unwrap().to_owned();
    (entry["pid"].as_u64().unwrap(), kind, entry["frames"].to_string())
}

fn verdict_fields(entry: &Value, [per_hour, live, created, ended]: [&Value; 4]) -> VerdictFields {
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{entry}"));
    VerdictFields {
        verdict: entry["verdict"].as_str().unwrap().to_owned(),
        confidence: entry["confidence"].as_str().unwrap().to_owned(),
        per_hour: number(per_hour),
        live: number(live),
        created: number(created),
        ended: number(ended),
    }
}

fn list<'a>(report: &'a Value, names: &[&str]) -> Vec<&'a Value> {
    names.iter().flat_map(|name| report[*name].as_array().unwrap()).collect()
}

/// Returns the growth of memory, tensors or objects.
fn rate(entry: &Value) -> &Value {
    entry.get("growth_bytes_per_hour").unwrap_or(&entry["growth_objects_per_hour"])
}

fn of_trace(report: &Value) -> Verdicts {
    let entries = list(report, &["suspects", "other_verdicts"]).into_iter().map(|entry| {
        let rate = rate(entry);
        let evidence = &entry["evidence"];
        let numbers = [rate, &evidence["live"], &evidence["created"], &evidence["freed"]];
        (key(entry), verdict_fields(entry, numbers))
    });
    entries.collect()
}

fn of_recording(report: &Value) -> Verdicts {
    let memory = list(report, &["suspects", "other_verdicts"]).into_iter().map(|entry| {
        let evidence = &entry["evidence"];
        let rate = &evidence["growth_bytes_per_hour"];
        let numbers = [rate, &entry["bytes"], &evidence["created"], &evidence["freed"]];
        (key(entry), verdict_fields(entry, numbers))
    });
    let others = list(report, &["tensors_and_objects"]).into_iter().map(|entry| {
        let numbers = [rate(entry), &entry["live"], &entry["created"], &entry["freed"]];
        (key(entry), verdict_fields(entry, numbers))
    });
    memory.chain(others).collect()
}

fn report_of(file: &Path) -> Value {
    let mut command = Command::new(VRAMSCOPE);
    command.arg("report").arg(file).args(["--analysis", "suspects", "--format", "json"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs a workload to its end; the recording must give the verdicts of the last report.
fn assert_same_verdicts(env: &TestEnv, options: &[&str], workload: &str) -> Verdicts {
    let file = env.dir.path().join("run.arrows");
    let record = [options, &["--record", file.to_str().unwrap()]].concat();
    let traced = env.trace(&record, &workload.split(' ').collect::<Vec<_>>());
    assert!(traced.status.success(), "{}", traced.messages);
    let (live, recorded) = (of_trace(traced.last()), of_recording(&report_of(&file)));
    assert!(!live.is_empty(), "{workload}: {}", traced.last());
    assert_eq!(live, recorded, "{workload}");
    live
}

/// Like real drivers, this one takes time to initialize; the probes are attached meanwhile.
fn env() -> TestEnv {
    TestEnv::new().env("SIM_INIT_MS", "500")
}

/// Keeps a tensor with its own segment in each step.
const LEAK: &str = "torch-leak --steps 200 --step-ms 20 --keep-bytes 12000000";

/// Returns the memory kinds with a verdict.
fn kinds(verdicts: &Verdicts, verdict: &str) -> Vec<String> {
    let found = verdicts.iter().filter(|(_, verdict_fields)| verdict_fields.verdict == verdict);
    found.map(|((_, kind, _), _)| kind.clone()).collect()
}

#[test]
fn cache_of_leaking_tensors_is_not_a_suspect_live_or_recorded() {
    let live = assert_same_verdicts(&env(), &["--torch"], LEAK);
    assert_eq!(kinds(&live, "leak"), ["torch"], "{live:?}");
    assert_eq!(kinds(&live, "cache"), ["device"], "{live:?}");
    let live = assert_same_verdicts(&env(), &[], LEAK);
    assert_eq!(kinds(&live, "leak"), ["device"], "{live:?}");
}

#[test]
fn recorded_torch_runs_get_the_live_verdicts() {
    std::thread::scope(|scope| {
        for workload in [
            "torch-leak --steps 200 --step-ms 20 --keep-bytes 3000000",
            "torch-leak --steps 200 --step-ms 20",
            "torch-clean --steps 200 --step-ms 20",
            "torch-clean --steps 200 --step-ms 20 --empty-cache",
            "torch-spam --pairs 2000 --stacks 8",
        ] {
            scope.spawn(move || assert_same_verdicts(&env(), &["--torch"], workload));
        }
        scope.spawn(|| assert_same_verdicts(&env(), &["--torch=totals"], LEAK));
        let env = env().env("SIM_TORCH_BACKEND", "async");
        scope.spawn(move || assert_same_verdicts(&env, &["--torch"], LEAK));
    });
}

#[test]
fn recorded_runs_without_torch_get_the_live_verdicts() {
    std::thread::scope(|scope| {
        for workload in [
            "leaks fast-leak --seconds 6",
            "leaks lru-cache --seconds 6",
            "leaks stream-leak --seconds 6",
            "leak3 --work-ms 2500 --wait-ms 100",
        ] {
            scope.spawn(move || assert_same_verdicts(&TestEnv::new(), &[], workload));
        }
    });
}

#[test]
fn recorded_running_process_gets_the_live_verdicts() {
    let env = env();
    let arguments = "torch-leak --wait-loaded --steps 3000 --step-ms 20 --keep-bytes 12000000";
    let mut workload = env.workload(&arguments.split(' ').collect::<Vec<_>>());
    workload.wait_ready();
    let (pid, file) = (workload.pid().to_string(), env.dir.path().join("run.arrows"));
    let options = ["--torch", "--record", file.to_str().unwrap(), "-p", &pid];
    let mut tracer = env.start_trace(&options);
    tracer.next();
    workload.go();
    let started = std::time::Instant::now();
    tracer.wait_for("five seconds", |_| started.elapsed().as_secs() >= 5);
    let live = of_trace(tracer.stop().last());
    assert_eq!(live, of_recording(&report_of(&file)));
    assert!(!live.is_empty());
}
