//! A recording has the verdicts of the live report: for memory, tensors and objects.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;
use std::process::Command;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use engine::metrics::{AgentStats, CollectorInput, GpuInfo, MetricsCollector, SeriesLimits};
use engine::model::units::Bytes;
use flate2::read::GzDecoder;
use formats::export::GpuLabel;
use formats::import::agent::AgentState;
use formats::report::verdict::short_location;
use serde_json::Value;

use crate::harness::files::fixture;
use crate::harness::http::{response, serve_once};
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

fn verdicts(report: &Value) -> Verdicts {
    let entries = list(report, &["suspects", "other_verdicts"]).into_iter().map(|entry| {
        let rate = rate(entry);
        let evidence = &entry["evidence"];
        let numbers = [rate, &evidence["live"], &evidence["created"], &evidence["freed"]];
        (key(entry), verdict_fields(entry, numbers))
    });
    entries.collect()
}

fn report_of(file: &Path) -> Value {
    let mut command = Command::new(VRAMSCOPE);
    command.arg("report").arg(file).args(["leaks", "--format", "json"]);
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
    let report = report_of(&file);
    let (live, recorded) = (verdicts(traced.last()), verdicts(&report));
    assert_same_view(env, &file, traced.last(), &report);
    assert!(!live.is_empty(), "{workload}: {}", traced.last());
    assert_eq!(live, recorded, "{workload}");
    live
}

/// Returns the data of an HTML report as JSON.
pub(crate) fn page_data(page: &Path) -> String {
    let page = std::fs::read_to_string(page).unwrap();
    let (_, data) = page.split_once("id=\"data\">").unwrap();
    let packed = BASE64_STANDARD.decode(data.split_once('<').unwrap().0).unwrap();
    let mut plain = Vec::new();
    GzDecoder::new(&*packed).read_to_end(&mut plain).unwrap();
    let length = u32::from_le_bytes(plain[..4].try_into().unwrap()) as usize;
    String::from_utf8(plain[4..4 + length].to_vec()).unwrap()
}

/// Compares leaks, counts and sums of all outputs for one run.
fn assert_same_view(env: &TestEnv, file: &Path, traced: &Value, report: &Value) {
    let fields = ["leaks", "leaks_total", "leaking_processes", "not_freed", "undecided_sites"];
    for field in fields {
        assert_eq!(traced[field], report[field], "{field}");
    }
    let run = |arguments: &[&str]| {
        let output = Command::new(VRAMSCOPE).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let path = file.to_str().unwrap();
    let summary: Value = serde_json::from_str(&run(&["report", path, "--json"])).unwrap();
    let replayed: Value = serde_json::from_str(&run(&["replay", path, "--json"])).unwrap();
    for field in fields {
        assert_eq!(summary[field], report[field], "{field} of the summary");
        assert_eq!(replayed[field], report[field], "{field} of the replay");
    }
    let page = env.dir.path().join("page.html");
    run(&["report", path, "--format", "html", "-o", page.to_str().unwrap(), "--force"]);
    let page = page_data(&page);
    let total = format!("\"leaks_total\":{}", report["leaks_total"]);
    assert!(page.contains(&total), "{total} is not in the page");
    let (text, replayed_text) = (run(&["report", path]), run(&["replay", path]));
    for leak in report["leaks"].as_array().unwrap() {
        let location = leak["location"].as_str().unwrap();
        for output in [&text, &replayed_text, &page] {
            assert!(output.contains(location), "{location} is not in {output}");
        }
    }
    let headline = text.lines().next().unwrap();
    assert_eq!(replayed_text.lines().next(), Some(headline));
    assert!(page.contains(headline.split("  ").next().unwrap()), "{headline} is not in the page");
    let top: Value = serde_json::from_str(&run(&["top", "--once", "--json", path])).unwrap();
    assert_eq!(top["leaks_total"], report["leaks_total"], "{top}");
    let advice: Value = serde_json::from_str(&run(&["advise", path, "--json"])).unwrap();
    for gpu in advice["gpus"].as_array().unwrap() {
        let steps = gpu["steps"].as_array().unwrap();
        let pids: BTreeSet<u64> = steps.iter().map(|step| step["pid"].as_u64().unwrap()).collect();
        assert_eq!(pids.len(), steps.len(), "one step per process: {gpu:#}");
    }
    let steps = advice["gpus"].as_array().unwrap().iter().filter_map(|gpu| gpu["steps"].as_array());
    let restarted: BTreeSet<u64> = steps
        .flatten()
        .filter(|step| step["action"] == "restart_leaking")
        .map(|step| step["pid"].as_u64().unwrap())
        .collect();
    let is_device =
        |leak: &&Value| ["device_memory", "tensors"].contains(&leak["resource"].as_str().unwrap());
    let processes = traced["processes"].as_array().unwrap().iter();
    let running: Vec<u64> = processes
        .filter(|process| process["exited"] == false)
        .map(|process| process["pid"].as_u64().unwrap())
        .collect();
    let leaking: BTreeSet<u64> = report["leaks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(is_device)
        .flat_map(|leak| leak["pids"].as_array().unwrap())
        .filter_map(Value::as_u64)
        .filter(|pid| running.contains(pid))
        .collect();
    assert_eq!(restarted, leaking, "advice");
    assert_agent_agrees(traced, &replayed_text, report);
}

/// Compares the leaks of an agent that reports this state, and its metrics.
fn assert_agent_agrees(state: &Value, text: &str, report: &Value) {
    let mut state = state.clone();
    state["api"] = "v1".into();
    let (url, request) = serve_once(response("200 OK", &state.to_string()));
    let output = Command::new(VRAMSCOPE).args(["trace", "--agent", &url]).output().unwrap();
    assert!(request.join().unwrap().starts_with("GET /api/v1/snapshot "));
    let of_agent = String::from_utf8(output.stdout).unwrap();
    let rows = |text: &str| {
        let after = text.lines().skip_while(|line| !line.contains(" LEAKS AT ")).skip(1);
        let rows = after.take_while(|line| line.starts_with(|c: char| c.is_ascii_digit()));
        rows.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(rows(&of_agent), rows(text), "{of_agent}");
    let AgentState { snapshot, context, .. } =
        formats::import::agent::snapshot(state.to_string().as_bytes(), |clock| clock).unwrap();
    let gpu = |gpu: &GpuLabel| GpuInfo {
        id: gpu.id,
        uuid: (&*gpu.uuid).into(),
        name: (&*gpu.name).into(),
        total: Bytes(gpu.total_bytes),
    };
    let metrics = MetricsCollector::new(SeriesLimits::default()).observe(&CollectorInput {
        snapshot: &snapshot,
        gpus: &context.gpus.iter().map(gpu).collect::<Vec<_>>(),
        agent: &AgentStats::default(),
        location: short_location,
    });
    let total: f64 =
        metrics.samples("vramscope_suspects").iter().map(|one| one.value.as_f64()).sum();
    assert_eq!(Some(total), report["leaks_total"].as_f64(), "metrics");
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
    let live = assert_same_verdicts(&env(), &["--allocators"], LEAK);
    assert_eq!(kinds(&live, "leak"), ["torch"], "{live:?}");
    assert_eq!(kinds(&live, "cache"), [] as [&str; 0], "its growth is listed with the tensors");
    let live = assert_same_verdicts(&env(), &["--allocators=off"], LEAK);
    assert_eq!(kinds(&live, "leak"), ["device"], "{live:?}");
}

/// Recordings of leaking and corrected programs on an H200; in the first one a request fails. Their
/// leaks, as program and location.
const REAL_LEAKS: [(&str, &[&str]); 3] = [
    (
        "pytorch",
        &[
            "torch_graphs.py:16,13 capture",
            "torch_loss_history.py:11 validate",
            "torch_loss_history.py:16 <module>",
        ],
    ),
    (
        "cupy_jax_triton",
        &[
            "cupy_fft_plans.py:10 transform",
            "jax_history.py:14 train",
            "triton_constexpr.py:25 <module>",
        ],
    ),
    ("cpp", &["error_path.cu:15 process", "error_path.cu:26 measure"]),
];

#[test]
fn outputs_of_real_recordings_have_the_same_leaks() {
    let env = TestEnv::new();
    for (name, expected) in REAL_LEAKS {
        let file = fixture(&format!("h200-leaks/{name}.arrows"));
        let file = Path::new(&file);
        let mut command = Command::new(VRAMSCOPE);
        let output = command.arg("replay").arg(file).arg("--json").output().unwrap();
        let replayed: Value = serde_json::from_slice(&output.stdout).unwrap();
        let report = report_of(file);
        assert_same_view(&env, file, &replayed, &report);
        let leaks = report["leaks"].as_array().unwrap().iter();
        let found: Vec<_> = leaks.map(|leak| leak["location"].as_str().unwrap()).collect();
        assert_eq!(found, expected, "{name}");
    }
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
            scope.spawn(move || assert_same_verdicts(&env(), &["--allocators"], workload));
        }
        scope.spawn(|| assert_same_verdicts(&env(), &["--allocators=totals"], LEAK));
        let env = env().env("SIM_TORCH_BACKEND", "async");
        scope.spawn(move || assert_same_verdicts(&env, &["--allocators"], LEAK));
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
    let options = ["--allocators", "--record", file.to_str().unwrap(), "-p", &pid];
    let mut tracer = env.start_trace(&options);
    tracer.next();
    workload.go();
    let started = std::time::Instant::now();
    tracer.wait_for("five seconds", |_| started.elapsed().as_secs() >= 5);
    let stopped = tracer.stop();
    let (live, report) = (verdicts(stopped.last()), report_of(&file));
    assert_eq!(live, verdicts(&report));
    assert_same_view(&env, &file, stopped.last(), &report);
    assert!(!live.is_empty());
}
