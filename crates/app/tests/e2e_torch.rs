//! PyTorch tensors on the simulated cache: reported values match the cache's own statistics, and
//! driver memory is unaffected.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::harness::{
    TestEnv, VRAMSCOPE, Workload, code_of, process, send_signal, simulator, until,
};

/// Like real drivers, this one takes time to initialize; the probes are attached meanwhile.
fn env() -> TestEnv {
    TestEnv::new().env("SIM_INIT_MS", "500")
}

/// Programs wait until the allocator's functions are probed.
fn probed_env() -> TestEnv {
    TestEnv::new().env("SIM_WAIT_PROBED", "1")
}

/// Returns the statistics that the cache of a process wrote.
fn oracle(env: &TestEnv, pid: u32) -> Value {
    let path = env.dir.path().join(format!("torch-{pid}.json"));
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("no oracle {}: {error}", path.display()));
    serde_json::from_str::<Value>(&text).unwrap()["devices"][0].clone()
}

fn only_pid(report: &Value) -> u32 {
    let [process] = &report["processes"].as_array().unwrap()[..] else { panic!("{report}") };
    process["pid"].as_u64().unwrap() as u32
}

fn device(report: &Value, pid: u32) -> &Value {
    let torch = &process(report, pid)["allocators"][0];
    assert_eq!(torch["pools"].as_array().unwrap().len(), 1, "{torch}");
    &torch["pools"][0]
}

/// Asserts that the reported tensors of a process match the cache.
fn assert_blocks(env: &TestEnv, report: &Value, pid: u32) {
    let (found, oracle) = (device(report, pid), oracle(env, pid));
    for (ours, theirs) in [
        ("device", "device"),
        ("allocated_bytes", "allocated"),
        ("tracked_bytes", "allocated"),
        ("reserved_bytes", "reserved"),
        ("peak_bytes", "peak"),
        ("live_blocks", "blocks"),
        ("allocations_total", "allocations"),
        ("frees_total", "frees"),
        ("ooms_total", "ooms"),
        ("releasable_bytes", "whole"),
        ("fragmented_bytes", "fragmented"),
        ("largest_free_bytes", "largest"),
    ] {
        assert_eq!(found[ours], oracle[theirs], "{ours}: {found}\n{oracle}");
    }
    assert_eq!(found["unmatched_frees"], 0);
    assert_eq!(process(report, pid)["allocators"][0]["exact"], true);
}

/// Returns the only tensor site with a frame of this function.
fn tensor_site<'a>(report: &'a Value, function: &str) -> &'a Value {
    let sites = report["tensor_sites"].as_array().unwrap();
    let has = |site: &&Value| {
        let frames = site["frames"].as_array().unwrap();
        // The code of some frames may be unknown when a process ends.
        frames
            .iter()
            .any(|frame| frame["function"].as_str().is_some_and(|name| name.ends_with(function)))
    };
    let found: Vec<_> = sites.iter().filter(has).collect();
    assert_eq!(found.len(), 1, "{function} in {sites:#?}");
    found[0]
}

#[test]
fn tensors_of_growing_processes_are_tracked_by_default() {
    let workload = ["--hold-ms", "300", "torch-leak", "--steps", "4000", "--step-ms", "1"];
    for attach_mode in ["session", "multi", "single"] {
        let env = env();
        let traced = env.trace(&["--attach-mode", attach_mode], &workload);
        traced.assert_matches_oracle(&env);
        let last = traced.last();
        let site = tensor_site(last, "keep_history");
        assert!(site["live_allocations"].as_u64() > Some(100), "{attach_mode}: {site}");
        let device = device(last, only_pid(last));
        assert_eq!(device["allocated_bytes"], oracle(&env, only_pid(last))["allocated"]);
    }
}

#[test]
fn blocks_match_the_cache_in_every_attach_mode() {
    for attach_mode in ["session", "multi", "single"] {
        let env = probed_env();
        let workload = ["--hold-ms", "300", "torch-leak", "--refuse"];
        let traced = env.trace(&["--allocators", "--attach-mode", attach_mode], &workload);
        traced.assert_matches_oracle(&env);
        let last = traced.last();
        assert_blocks(&env, last, only_pid(last));
        for (function, live, total, freed) in
            [("weights", 5, 5, 0), ("activations", 0, 60, 60), ("keep_history", 20, 20, 0)]
        {
            let site = tensor_site(last, function);
            assert_eq!(site["live_allocations"], live, "{attach_mode}: {site}");
            assert_eq!(site["allocations_total"], total);
            assert_eq!(site["frees_total"], freed);
            assert_eq!(site["kinds"][0]["kind"], "torch");
        }
        // A block was kept 20 times, each rounded to 512.
        assert_eq!(tensor_site(last, "keep_history")["live_bytes"], 20 * 1536);
        assert_eq!(last["tensor_sites_total"], 3);
    }
}

#[test]
fn tensors_in_process_match_the_cache() {
    let env = env();
    let workload = ["--hold-ms", "300", "torch-leak", "--refuse"];
    let traced = env.in_process(&["--allocators"], &workload);
    traced.assert_matches_oracle(&env);
    let last = traced.last();
    assert_blocks(&env, last, only_pid(last));
    for (function, live, total, freed) in
        [("weights", 5, 5, 0), ("activations", 0, 60, 60), ("keep_history", 20, 20, 0)]
    {
        let site = tensor_site(last, function);
        assert_eq!(site["live_allocations"], live, "{site}");
        assert_eq!(site["allocations_total"], total);
        assert_eq!(site["frees_total"], freed);
    }
}

#[test]
fn sampled_sites_are_estimates_and_totals_are_exact() {
    let workload = ["--hold-ms", "300", "torch-spam", "--pairs", "20000", "--stacks", "4"];
    let env = probed_env();
    let probed = env.trace(&["--allocators=sampled"], &workload);
    let own_env = self::env();
    let in_process = own_env.in_process(&["--allocators=sampled"], &workload);
    for (env, traced) in [(&env, &probed), (&own_env, &in_process)] {
        traced.assert_matches_oracle(env);
        let last = traced.last();
        let pid = only_pid(last);
        assert_blocks(env, last, pid);
        let sampling = &process(last, pid)["allocators"][0]["sampling"];
        let skipped = sampling["skipped_blocks"].as_u64();
        assert!(skipped > Some(1000) && sampling["since"].is_string(), "{sampling}");
        // One before the pairs, and four stacks. Some stacks may be lost before they are known.
        let sites = last["tensor_sites"].as_array().unwrap();
        let known = sites.iter().filter(|site| site["id"] != "none");
        assert_eq!(known.clone().count(), 5, "{sites:#?}");
        let all = device(last, pid)["allocations_total"].as_u64().unwrap();
        for (name, truth) in
            [("allocations_total", all), ("frees_total", all), ("bytes_total", all * 4096)]
        {
            let sum: u64 = sites.iter().map(|site| site[name].as_u64().unwrap()).sum();
            assert!(sum.abs_diff(truth) <= truth / 5, "{name} {truth}: {sites:#?}");
        }
        let is_sampled = |site: &&Value| site.get("sampling_interval_bytes").is_some();
        assert_eq!(known.filter(is_sampled).count(), 4, "{sites:#?}");
    }
}

#[test]
fn all_call_stacks_are_captured_on_request() {
    let env = probed_env();
    let workload = ["--hold-ms", "300", "torch-leak", "--steps", "1000", "--step-ms", "0"];
    let traced = env.trace(&["--allocators=full"], &workload);
    let last = traced.last();
    assert!(process(last, only_pid(last))["allocators"][0].get("sampling").is_none());
    let site = tensor_site(last, "keep_history");
    assert_eq!(
        (&site["live_allocations"], &site["live_bytes"]),
        (&1000.into(), &(1000 * 1536).into())
    );
}

#[test]
fn full_tensor_ring_in_process_loses_no_driver_calls() {
    let env = env();
    let workload = ["torch-spam", "--pairs", "50000"];
    let traced = env.in_process(&["--allocators=totals", "--ring-size", "64K"], &workload);
    traced.assert_matches_oracle(&env);
    let torch = &process(traced.last(), only_pid(traced.last()))["allocators"][0];
    assert!(torch["lost_events"].as_u64() > Some(0), "{torch}");
}

#[test]
fn totals_mode_has_equal_values_without_sites() {
    let env = probed_env();
    let traced = env.trace(&["--allocators=totals"], &["torch-leak"]);
    traced.assert_matches_oracle(&env);
    let last = traced.last();
    assert_blocks(&env, last, only_pid(last));
    let [site] = &last["tensor_sites"].as_array().unwrap()[..] else { panic!("{last}") };
    assert_eq!((&site["id"], &site["live_allocations"]), (&"none".into(), &25.into()));
    // Driver allocations still have their stacks.
    assert_eq!(last["allocations_without_stack"], 0);
}

#[test]
fn tensors_are_not_reported_if_turned_off() {
    let env = env();
    let traced = env.trace(&["--allocators=off"], &["torch-leak"]);
    traced.assert_matches_oracle(&env);
    assert_eq!(
        process(traced.last(), only_pid(traced.last()))["allocators"],
        Value::Array(Vec::new())
    );
    assert!(traced.last().get("tensor_sites").is_none());
}

#[test]
fn emptied_cache_holds_nothing() {
    let env = probed_env();
    let traced = env.trace(
        &["--allocators", "--fail-on-leak"],
        &["--hold-ms", "300", "torch-clean", "--empty-cache"],
    );
    traced.assert_matches_oracle(&env);
    let last = traced.last();
    let pid = only_pid(last);
    assert_blocks(&env, last, pid);
    let found = device(last, pid);
    assert_eq!((&found["live_blocks"], &found["allocations_total"]), (&0.into(), &65.into()));
}

#[test]
fn preexisting_process_has_the_cache_totals() {
    let env = env();
    let mut workload = env.workload(&["torch-clean", "--wait-loaded"]);
    workload.wait_ready();
    let pid = workload.pid();
    let mut tracer = env.start_trace(&["--allocators", "-p", &pid.to_string()]);
    tracer.next();
    workload.go();
    workload.finish();
    let traced = tracer.stop();
    let (found, oracle) = (device(traced.last(), pid), oracle(&env, pid));
    for (ours, theirs) in [("allocated_bytes", "allocated"), ("reserved_bytes", "reserved")] {
        assert_eq!(found[ours], oracle[theirs]);
    }
    // The five weights were allocated before the trace, and all of them were freed.
    assert_eq!((&found["allocations_total"], &found["frees_total"]), (&60.into(), &65.into()));
    assert_eq!((&found["unmatched_frees"], &found["live_blocks"]), (&5.into(), &0.into()));
}

#[test]
fn tensors_from_before_the_trace_are_unknown() {
    let env = env();
    let mut workload = env.workload(&["torch-leak", "--wait-loaded", "--hold-ms", "60000"]);
    workload.wait_ready();
    let pid = workload.pid();
    let mut tracer = env.start_trace(&["--allocators", "-p", &pid.to_string()]);
    tracer.next();
    workload.go();
    let report = tracer.wait_for_process(pid, |process| {
        process["allocators"][0]["pools"][0]["allocations_total"] == 80
    });
    let (found, oracle) = (device(&report, pid), oracle(&env, pid));
    assert_eq!(found["allocated_bytes"], oracle["allocated"]);
    assert_eq!((&found["live_blocks"], &found["tracked_bytes"]), (&20.into(), &(20 * 1536).into()));
    assert_eq!(found["fragmentation_unknown_reason"], "blocks_unknown");
    assert_eq!(process(&report, pid)["allocators"][0]["exact"], false);
}

#[test]
fn torch_processes_are_separate() {
    let env = env();
    let start = |arguments: &[&str]| {
        let mut workload = env.workload(arguments);
        workload.wait_ready();
        workload
    };
    let mut first = start(&["--wait-start", "--hold-ms", "500", "torch-leak", "--steps", "7"]);
    let mut second = start(&["--wait-start", "--hold-ms", "500", "torch-leak", "--steps", "30"]);
    let (one, two) = (first.pid(), second.pid());
    let pids = [one.to_string(), two.to_string()];
    let mut tracer = env.start_trace(&["--allocators", "-p", &pids[0], "-p", &pids[1]]);
    tracer.next();
    first.go();
    second.go();
    first.finish();
    second.finish();
    let traced = tracer.stop();
    assert_blocks(&env, traced.last(), one);
    assert_blocks(&env, traced.last(), two);
    let kept = tensor_site(traced.last(), "keep_history");
    assert_eq!(kept["live_allocations"], 37);
    assert_eq!(kept["processes"].as_array().unwrap().len(), 2);
}

/// Creates empty libraries with these names.
fn stubs(env: &TestEnv, names: &[&str]) -> String {
    let paths = names.iter().map(|name| {
        let path = env.dir.path().join(name);
        let status = Command::new("gcc")
            .args(["-shared", "-fPIC", "-x", "c", "/dev/null", "-o"])
            .arg(&path)
            .status()
            .unwrap();
        assert!(status.success());
        path.to_str().unwrap().to_owned()
    });
    paths.collect::<Vec<_>>().join(" ")
}

#[test]
fn unsupported_pytorch_is_reported_with_a_reason() {
    for (names, reason) in
        [(&["libc10.so", "libc10_cuda.so"][..], "no_symbol"), (&["libc10_cuda.so"], "no_library")]
    {
        let env = TestEnv::new();
        let preload = stubs(&env, names);
        let mut command = env.command(simulator().join("workload"));
        command.env("LD_PRELOAD", preload);
        let arguments = ["--wait-start", "leak3", "--work-ms", "1000", "--wait-ms", "60000"];
        let mut workload = Workload::start(command.args(arguments));
        workload.wait_ready();
        let pid = workload.pid();
        let mut tracer = env.start_trace(&["--allocators", "-p", &pid.to_string()]);
        tracer.next();
        workload.go();
        let report = tracer.wait_for_process(pid, |process| process["allocators"][0].is_object());
        let torch = &process(&report, pid)["allocators"][0];
        assert_eq!(torch["unavailable_reason"], reason, "{torch}");
        assert_eq!(torch["pools"], Value::Array(Vec::new()));
        let messages = tracer.stop().messages;
        assert_eq!(messages.matches("tensors not tracked").count(), 1, "{messages}");
    }
}

#[test]
fn cuda_malloc_async_backend_is_driver_memory() {
    let env = env().env("SIM_TORCH_BACKEND", "async");
    let traced = env.trace(&["--allocators"], &["--hold-ms", "500", "torch-leak"]);
    traced.assert_matches_oracle(&env);
    let process = process(traced.last(), only_pid(traced.last()));
    assert_eq!(process["allocators"][0]["unavailable_reason"], "async_backend", "{process}");
    assert_eq!(process["live_allocations_by_kind"]["async"], 25);
}

#[test]
fn full_tensor_ring_loses_no_driver_calls() {
    let env = probed_env();
    let options = ["--allocators", "--ring-size", "4096"];
    let traced = env.trace(&options, &["torch-spam", "--pairs", "100000"]);
    traced.assert_matches_oracle(&env);
    let last = traced.last();
    let pid = only_pid(last);
    let number = |value: &Value| value.as_u64().unwrap();
    let (torch, oracle) = (&process(last, pid)["allocators"][0], oracle(&env, pid));
    assert!(number(&torch["lost_events"]) > 0, "{torch}");
    assert_eq!(torch["exact"], false);
    let found = device(last, pid);
    let received = number(&found["allocations_total"]) + number(&found["frees_total"]);
    let expected = number(&oracle["allocations"]) + number(&oracle["frees"]);
    assert_eq!(received + number(&torch["lost_events"]), expected);
}

#[test]
fn killed_tracer_leaves_no_probe_on_the_library() {
    const REPORT: &str = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE";
    let dir = tempfile::tempdir().unwrap();
    // Separate copies: no probes of other tests are on them.
    for name in ["libcuda.so.1", "libc10.so", "libc10_cuda.so"] {
        std::fs::copy(simulator().join(name), dir.path().join(name)).unwrap();
    }
    let library = dir.path().join("libc10.so");
    let env = TestEnv::with_driver(dir.path().join("libcuda.so.1"));
    let steps = ["torch-leak", "--wait-loaded", "--steps", "8000", "--step-ms", "1"];
    let mut workload = env.workload(&steps);
    workload.wait_ready();
    let pid = workload.pid();
    assert_eq!(code_of(pid, &library, REPORT)[..2], [0x41, 0x56]);
    let mut tracer = env.start_trace(&["--allocators", "-p", &pid.to_string()]);
    tracer.next();
    workload.go();
    tracer.wait_for_process(pid, |process| process["allocators"][0]["pools"][0].is_object());
    assert_eq!(code_of(pid, &library, REPORT)[0], 0xcc, "the probe is a breakpoint");
    send_signal(tracer.child.id(), 9);
    tracer.child.wait().unwrap();
    until("the code without a breakpoint", String::new, || {
        (code_of(pid, &library, REPORT)[..2] == [0x41, 0x56]).then_some(())
    });
    let (status, _) = workload.finish();
    assert!(status.success(), "the target did not finish");
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/torch/train.py")
}

/// Returns the line of a mark.
fn mark(word: &str) -> u64 {
    let text = std::fs::read_to_string(script()).unwrap();
    let line = text.lines().position(|line| line.ends_with(&format!("# mark: {word}")));
    line.unwrap() as u64 + 1
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn tensors_are_listed_by_python_line() {
    let env = env();
    let mut command = env.command(VRAMSCOPE);
    command.args(["trace", "--json", "--allocators", "--"]).arg("python3").arg(script());
    let text = succeeded(&command.output().unwrap());
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let pid = only_pid(&last);
    assert_blocks(&env, &last, pid);
    let lines = |site: &Value| -> Vec<u64> {
        let frames = site["frames"].as_array().unwrap().iter();
        let python = frames.filter(|frame| frame["language"] == "python");
        python.map(|frame| frame["line"].as_u64().unwrap()).collect()
    };
    let sites = last["tensor_sites"].as_array().unwrap();
    let kept_stack = [mark("empty"), mark("keep"), mark("remember"), mark("loop")];
    let site = sites.iter().find(|site| lines(site) == kept_stack);
    let site = site.unwrap_or_else(|| panic!("{kept_stack:?} in {sites:#?}"));
    assert_eq!((&site["live_allocations"], &site["live_bytes"]), (&10.into(), &10240.into()));
    let freed_stack = [mark("empty"), mark("forward"), mark("step"), mark("loop")];
    let site = sites.iter().find(|site| lines(site) == freed_stack).unwrap();
    assert_eq!((&site["live_allocations"], &site["frees_total"]), (&0.into(), &10.into()));
    let weights = sites.iter().find(|site| lines(site).contains(&mark("weights"))).unwrap();
    assert_eq!(weights["live_allocations"], 3);
}

#[test]
fn torch_recording_matches_the_trace() {
    let env = probed_env();
    let file = env.dir.path().join("run.arrows");
    let report = env.dir.path().join("report.txt");
    let mut command = env.command(VRAMSCOPE);
    command.args(["trace", "--allocators", "--interval", "1h", "-o"]).arg(&report);
    command.arg("--record").arg(&file).arg("--").arg(simulator().join("workload"));
    succeeded(&command.args(["torch-leak", "--refuse"]).output().unwrap());
    let text = std::fs::read_to_string(&report).unwrap();
    assert!(
        text.contains("PyTorch gpu_0: 15.58 MiB allocated in 25 tensors, 22.00 MiB reserved"),
        "{text}"
    );
    let mut command = Command::new(VRAMSCOPE);
    command.arg("replay").arg(&file);
    assert_eq!(succeeded(&command.output().unwrap()), text);
    // File reports count driver memory only.
    let mut command = Command::new(VRAMSCOPE);
    command.arg("report").arg(&file).args(["leaks", "--format", "json"]);
    let leakage: Value = serde_json::from_str(&succeeded(&command.output().unwrap())).unwrap();
    assert!(leakage["by_kind"].get("torch").is_none(), "{leakage}");
}
