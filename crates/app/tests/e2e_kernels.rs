//! Launches, copies and failed calls match the driver's oracle.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::harness::{self, TestEnv, TraceResult, process, simulator};

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("a number: {value}"))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("a text: {value}")).to_owned()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("a list: {value}"))
}

/// Sums by key; zero entries are omitted.
fn sums<K: Ord>(list: &[Value], key: impl Fn(&Value) -> K, field: &str) -> BTreeMap<K, u64> {
    let mut sums = BTreeMap::new();
    for entry in list {
        *sums.entry(key(entry)).or_default() += number(&entry[field]);
    }
    sums.retain(|_, sum| *sum > 0);
    sums
}

/// Asserts that launches by symbol, copies by direction and mode, and failures by function match
/// the oracle.
fn assert_activity(report: &Value, oracle: &Value) {
    let kernels: Vec<Value> =
        list(&report["kernels"]).iter().filter(|row| row["kind"] == "kernel").cloned().collect();
    for field in ["launches", "captured"] {
        let ours = sums(&kernels, |row| text(&row["symbol"]), field);
        assert_eq!(
            ours,
            sums(list(&oracle["launches"]), |row| text(&row["name"]), field),
            "{field}"
        );
    }
    let graphs = list(&report["kernels"]).iter().filter(|row| row["kind"] == "graph");
    let graphs: Vec<Value> = graphs.cloned().collect();
    let ours = sums(&graphs, |row| text(&row["handle"]), "launches");
    let theirs = sums(list(&oracle["graph_launches"]), |row| text(&row["exec"]), "launches");
    assert_eq!(ours, theirs, "graphs");
    let direction_and_mode = |row: &Value| (text(&row["direction"]), text(&row["mode"]));
    for field in ["calls", "bytes"] {
        let ours = sums(list(&report["copies"]), direction_and_mode, field);
        assert_eq!(
            ours,
            sums(list(&oracle["copies"]), direction_and_mode, field),
            "{field} of copies"
        );
    }
    let failed = |row: &Value| (text(&row["function"]), row["code"].as_i64());
    let ours = sums(list(&report["failed_calls"]), failed, "count");
    let mut theirs = sums(list(&oracle["errors"]), failed, "count");
    // The workload uses it for error messages; it is not traced.
    theirs.retain(|(function, _), _| function != "cuGetErrorName");
    assert_eq!(ours, theirs, "errors");
}

/// Asserts that the last report is exact, and that every process in it matches the oracle.
fn assert_matches_oracle(traced: &TraceResult, env: &TestEnv) {
    assert!(traced.status.success(), "{}", traced.messages);
    let last = traced.last();
    assert_eq!(last["exact"], true, "{last}");
    let oracles = env.oracles();
    assert!(!oracles.is_empty());
    for (pid, oracle) in &oracles {
        assert_activity(process(last, *pid), oracle);
    }
}

#[test]
fn launches_of_two_kernels_match_the_driver() {
    let env = TestEnv::new();
    let traced = env.kernels(&[], &["launches", "--iterations", "1000"]);
    assert_matches_oracle(&traced, &env);
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
fn activity_in_process_matches_the_driver() {
    for workload in [
        "launches --iterations 1000 --failing 7",
        "launches --kernels 200 --threads 8 --processes 2 --iterations 20",
        "launches --iterations 50 --graphs 5 --reloads 5",
        "launches --iterations 5 --old 20",
        "launch-late --iterations 50 --wait-ms 1",
        "copies --iterations 3",
        "capture-end --how call",
        "capture-end --how thread",
    ] {
        let env = TestEnv::new();
        let arguments: Vec<_> = workload.split(' ').collect();
        let traced = env.in_process(&["--kernels", "--check-launches", "all"], &arguments);
        traced.assert_matches_oracle(&env);
        for (pid, oracle) in &env.oracles() {
            assert_activity(process(traced.last(), *pid), oracle);
        }
    }
}

#[test]
fn launches_by_old_functions_and_on_several_devices_match_the_driver() {
    let env = TestEnv::new();
    let traced = env.kernels(&[], &["launches", "--iterations", "5", "--old", "20"]);
    assert_matches_oracle(&traced, &env);
    assert_eq!(traced.last()["launches_total"], 2 * 5 + 20 * 5);
}

#[test]
fn launches_of_many_threads_and_processes_match() {
    let env = TestEnv::new();
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
    let traced = env.kernels(&[], &workload);
    assert_matches_oracle(&traced, &env);
    assert_eq!(env.oracles().len(), 4);
    assert_eq!(traced.last()["launches_total"], 4 * 200 * 16 * 20);
}

#[test]
fn most_common_launch_shape_is_reported() {
    let env = TestEnv::new();
    let traced = env.kernels(&[], &["launches", "--iterations", "500"]);
    let oracles = env.oracles();
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
fn copies_in_every_direction_match_the_driver() {
    let env = TestEnv::new();
    assert_matches_oracle(&env.kernels(&[], &["copies", "--iterations", "3"]), &env);
}

#[test]
fn launches_beyond_a_full_map_are_counted() {
    let env = TestEnv::new();
    let workload = ["launches", "--kernels", "100", "--threads", "2", "--iterations", "30"];
    let traced = env.kernels(&["--activity-table-size", "16"], &workload);
    let last = traced.last();
    assert_eq!(last["exact"], false);
    let (seen, lost) = (number(&last["launches_total"]), number(&last["lost_launches"]));
    assert!(seen > 0 && lost > 0);
    assert_eq!(seen + lost, 100 * 2 * 30);
}

#[test]
fn failed_launches_are_reported_by_code_and_not_counted() {
    for check in ["sampled", "all"] {
        let env = TestEnv::new();
        let options = ["--check-launches", check];
        let traced = env.kernels(&options, &["launches", "--iterations", "100", "--failing", "9"]);
        assert_matches_oracle(&traced, &env);
        let process = &traced.last()["processes"][0];
        assert_eq!(process["failed_launches"], 9);
        assert_eq!(process["launches_total"], 200);
        let name = "CUDA_ERROR_INVALID_VALUE";
        assert!(list(&process["failed_calls"]).iter().all(|call| call["error"] == name));
    }
}

#[test]
fn every_launch_can_be_checked() {
    let env = TestEnv::new().env("SIM_INJECT_FAILURES", "cuLaunchKernel:every97=719");
    let workload = ["launches", "--iterations", "3000", "--time"];
    let traced = env.kernels(&["--check-launches", "all"], &workload);
    let oracles = env.oracles();
    let (pid, oracle) = oracles.iter().next().unwrap();
    assert_activity(process(traced.last(), *pid), oracle);
}

#[test]
fn failed_copies_are_reported_by_code_and_not_counted() {
    let env = TestEnv::new().env("SIM_INJECT_FAILURES", "cuMemcpyDtoH_v2:2=700");
    let traced = env.kernels(&[], &["copies", "--iterations", "3"]);
    let oracles = env.oracles();
    let (pid, oracle) = oracles.iter().next().unwrap();
    let report = process(traced.last(), *pid);
    assert_activity(report, oracle);
    assert_eq!(report["failed_calls"][0]["error"], "CUDA_ERROR_ILLEGAL_ADDRESS");
}

#[test]
fn captured_launches_count_when_the_graph_runs() {
    let env = TestEnv::new();
    let traced = env.kernels(&[], &["launches", "--iterations", "10", "--graphs", "7"]);
    assert_matches_oracle(&traced, &env);
    let process = &traced.last()["processes"][0];
    assert_eq!(process["captured_launches"], 2);
    assert_eq!(process["launches_total"], 20 + 7);
}

#[test]
fn reused_function_handle_is_another_kernel() {
    let env = TestEnv::new();
    let traced = env.kernels(&[], &["launches", "--iterations", "10", "--reloads", "60"]);
    assert_matches_oracle(&traced, &env);
    let kernels = list(&traced.last()["processes"][0]["kernels"]);
    let passing = kernels.iter().filter(|row| text(&row["symbol"]).starts_with("passing_"));
    let counts: Vec<u64> = passing.map(|row| number(&row["launches"])).collect();
    assert_eq!(counts, [100, 100, 100]);
}

/// The totals of all kernels and copies are read whenever a process ends, also while others run.
#[test]
fn totals_read_while_processes_end_belong_to_the_right_kernel() {
    let env = TestEnv::new();
    let driver = env.driver.to_str().unwrap();
    let mut tracer = env.start_trace(&["--kernels", "--driver", driver, "--top", "1000000"]);
    tracer.next();
    let reloads = ["launches", "--iterations", "5", "--threads", "2", "--reloads", "9"];
    let copies = ["copies", "--iterations", "1"];
    for _ in 0..30 {
        let many = [&reloads[..], &copies, &reloads, &copies, &reloads, &copies];
        let many = many.map(|arguments| env.workload(arguments));
        many.into_iter().for_each(|workload| assert!(workload.finish().0.success()));
    }
    let traced = tracer.stop();
    let all = traced.reports.iter().flat_map(|report| list(&report["processes"]));
    let last: BTreeMap<u64, &Value> =
        all.map(|process| (number(&process["pid"]), process)).collect();
    for (pid, oracle) in &env.oracles() {
        let process = last[&u64::from(*pid)];
        assert_eq!(process["exact"], true, "{process}");
        assert_activity(process, oracle);
    }
}

#[test]
fn kernel_names_from_before_the_trace_are_found() {
    let env = TestEnv::new();
    let mut workload = env.workload(&["launch-late", "--iterations", "300"]);
    workload.wait_ready();
    let pid = workload.pid().to_string();
    let mut tracer = env.start("kernels", &["-p", &pid]);
    // The first report shows that the probes are attached.
    tracer.next();
    workload.go();
    workload.finish();
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
    let env = TestEnv::new().env("SIM_BANDWIDTH", "20M");
    let traced = env.kernels(&[], &["copies", "--iterations", "2"]);
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
fn kernels_work_in_every_attach_mode_and_driver_build() {
    let workload = ["launches", "--iterations", "200", "--kernels", "9", "--threads", "2"];
    let env = TestEnv::new();
    assert_matches_oracle(&env.kernels(&["--attach-mode", "multi"], &workload), &env);
    let env = TestEnv::with_copy_of(&simulator().join("cmpl"));
    assert_matches_oracle(&env.kernels(&[], &workload), &env);
}

#[test]
fn trace_with_kernels_shows_memory_and_launches() {
    let env = TestEnv::new();
    let traced = env.trace(&["--kernels"], &["launches", "--iterations", "50"]);
    traced.assert_matches_oracle(&env);
    assert_eq!(traced.last()["processes"][0]["launches_total"], 100);
    let env = TestEnv::new();
    let traced = env.trace(&[], &["launches", "--iterations", "50"]);
    assert!(
        traced.last()["processes"]
            .as_array()
            .unwrap()
            .iter()
            .all(|process| { process["launches_total"] == Value::Null })
    );
}

#[test]
fn interim_reports_have_rates() {
    let env = TestEnv::new();
    let workload = ["launches", "--iterations", "60", "--pause-ms", "20"];
    let traced = env.kernels(&[], &workload);
    let rates = traced
        .reports
        .iter()
        .filter_map(|report| report["processes"][0]["launches_per_second"].as_f64());
    assert!(rates.filter(|rate| (20.0..200.0).contains(rate)).count() >= 2, "{:?}", traced.reports);
}

#[test]
fn launches_around_a_capture_end_are_counted() {
    for method in ["call", "null", "invalid", "thread", "stream"] {
        let env = TestEnv::new();
        let traced = env.kernels(&[], &["capture-end", "--how", method]);
        assert_matches_oracle(&traced, &env);
        let process = &traced.last()["processes"][0];
        assert_eq!(process["captured_launches"], 1, "{method}");
    }
    // The probes do not know which captures end with a context.
    let env = TestEnv::new();
    let traced = env.kernels(&[], &["capture-end", "--how", "context"]);
    let (pid, oracle) = env.oracles().into_iter().next().unwrap();
    assert_activity(process(traced.last(), pid), &oracle);
    assert_eq!(traced.last()["exact"], false);
    assert_eq!(traced.last()["lost_launches"], 1);
}

/// The driver, and a page whose contents survive `forget`, which makes the kernel map it again at
/// the next access: until then, a probe cannot read it.
const PAGE: &str = r#"
import ctypes, mmap, os, struct, threading, time
cu, libc = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
file = os.memfd_create("page")
os.ftruncate(file, mmap.PAGESIZE)
page = ctypes.c_void_p(libc.mmap(None, ctypes.c_size_t(mmap.PAGESIZE), 3, mmap.MAP_SHARED, file, ctypes.c_long(0)))
def write(*words):
    os.pwrite(file, struct.pack(f"={len(words)}Q", *words), 0)
def forget():
    assert libc.madvise(page, ctypes.c_size_t(mmap.PAGESIZE), mmap.MADV_DONTNEED) == 0
def check(result):
    assert result == 0, result
context, memory, stream = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
check(cu.cuInit(0))
check(cu.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
"#;

/// Copies whose descriptors are not mapped when the calls return.
const UNREADABLE_COPIES: &str = r"
host = ctypes.create_string_buffer(8000)
check(cu.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(8000)))
write(0, 0, 1, ctypes.addressof(host), 0, 0, 1000, 0, 0, 2, 0, memory.value, 0, 1000, 1000, 8)
def forget_always():
    while True:
        forget()
        time.sleep(0.001)
threading.Thread(target=forget_always, daemon=True).start()
for _ in range(3):
    check(cu.cuMemcpy2D_v2(page))
";

/// Launches whose configuration is not mapped when the calls begin; the last one after another
/// thread has begun a capture.
const UNREADABLE_LAUNCHES: &str = r#"
module, kernel = ctypes.c_uint64(), ctypes.c_uint64()
source = b".version 3.0\n.target sm_30\n.address_size 64\n.visible .entry step() { ret; }\n"
check(cu.cuModuleLoadData(ctypes.byref(module), source))
check(cu.cuModuleGetFunction(ctypes.byref(kernel), module, b"step"))
check(cu.cuStreamCreate(ctypes.byref(stream), 1))
write(2 | 1 << 32, 1 | 64 << 32, 1 | 1 << 32, 0, stream.value, 0, 0)
def launch():
    forget()
    check(cu.cuLaunchKernelEx(page, kernel, None, None))
for _ in range(5):
    launch()
def capture():
    check(cu.cuCtxSetCurrent(context))
    check(cu.cuStreamBeginCapture_v2(stream, 2))
if CAPTURES:
    other = threading.Thread(target=capture)
    other.start()
    other.join()
    launch()
"#;

/// The last report of `kernels` on a Python program, which must succeed.
fn kernels_of_python(env: &TestEnv, script: &str) -> Value {
    let mut command = env.command(harness::VRAMSCOPE);
    command.args(["kernels", "--format", "json", "--", "python3", "-c"]);
    let output = command.arg(format!("{PAGE}\n{script}")).output().unwrap();
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{messages}");
    let text = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

#[test]
fn copies_with_unreadable_descriptors_are_counted_as_lost() {
    let env = TestEnv::new().env("SIM_LATENCY_US", "100000");
    let report = kernels_of_python(&env, UNREADABLE_COPIES);
    let lost = number(&report["lost_copies"]);
    let seen = list(&report["processes"][0]["copies"]);
    let sum = |field: &str| seen.iter().map(|row| number(&row[field])).sum::<u64>();
    assert!(lost > 0, "{report}");
    assert_eq!(report["exact"], false);
    assert_eq!(sum("calls") + lost, 3, "{report}");
    assert_eq!(sum("bytes"), sum("calls") * 8000, "{report}");
}

#[test]
fn launches_with_unreadable_arguments_have_no_known_shape() {
    for captures in [false, true] {
        let script =
            UNREADABLE_LAUNCHES.replace("CAPTURES", if captures { "True" } else { "False" });
        let report = kernels_of_python(&TestEnv::new(), &script);
        assert_eq!(report["launches_total"], 5, "{report}");
        // Whether the last one became a node of the graph cannot be known.
        assert_eq!(report["lost_launches"], u64::from(captures), "{report}");
        assert_eq!(report["exact"], !captures, "{report}");
        assert_eq!(report["processes"][0]["kernels"][0]["shape_exact"], false, "{report}");
    }
}
