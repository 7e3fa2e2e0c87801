//! Driver-reported usage (from a simulated NVML) next to traced memory.

use serde_json::Value;

use crate::harness::agent::Agent;
use crate::harness::{self, TestEnv, Tracer, VRAMSCOPE, Workload, compile, process};

fn shared() -> TestEnv {
    TestEnv::new().sharing().env("SIM_CONTEXT_OVERHEAD", "100M")
}

#[test]
fn memory_used_by_the_driver_is_reported_as_untracked() {
    let env = shared();
    let workload = ["--hold-ms", "3000", "leak3", "--work-ms", "1", "--wait-ms", "1"];
    let traced = env.trace(&[], &workload);
    let reported = traced.reports.iter().rev().find_map(|report| {
        let process = report["processes"].as_array()?.first()?.clone();
        (process["exited"] == false && process.get("untracked_bytes").is_some()).then_some(process)
    });
    let process = reported.expect("no driver-reported usage");
    let device = &process["devices"][0];
    assert_eq!(device["driver_bytes"], (100 << 20) + (8 << 20), "{process}");
    assert_eq!(device["untracked_bytes"], 100 << 20);
    assert_eq!(process["untracked_bytes"], 100 << 20);
    assert_eq!(device["gpu"]["index"], 0);
    assert!(device["gpu"]["uuid"].as_str().unwrap().starts_with("GPU-"));
}

#[test]
fn gpu_with_unified_memory_shows_traced_memory_and_a_note() {
    let env = shared().env("SIM_UNIFIED_MEMORY", "1");
    let workload = ["--hold-ms", "3000", "leak3", "--work-ms", "1", "--wait-ms", "1"];
    let traced = env.trace(&[], &workload);
    let reported = traced.reports.iter().rev().find(|report| {
        let process = &report["processes"][0];
        process["exited"] == false && process.get("untracked_bytes").is_some()
    });
    let report = reported.expect("no usage of processes");
    let process = &report["processes"][0];
    assert_eq!(
        (&process["live_bytes"], &process["untracked_bytes"]),
        (&(8 << 20).into(), &(100 << 20).into())
    );
    let gpu = &report["gpus"][0];
    assert_eq!((gpu.get("total_bytes"), gpu.get("used_bytes")), (None, None), "{gpu}");
    assert_eq!(gpu["traced_bytes"], 8 << 20, "{gpu}");
    assert_eq!(report["notes"][0]["type"], "no_device_memory", "{}", report["notes"]);
    let output = env
        .command(VRAMSCOPE)
        .args(["trace", "--interval", "300ms", "--"])
        .arg(harness::simulator().join("workload"))
        .args(workload)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("traced (device memory not reported)"), "{text}");
}

#[test]
fn visible_devices_are_mapped_to_host_gpus() {
    let env = shared();
    let output = env
        .command(VRAMSCOPE)
        .args(["trace", "--json", "--interval", "300ms", "--", "env", "CUDA_VISIBLE_DEVICES=1"])
        .arg(harness::simulator().join("workload"))
        .args(["leak3", "--work-ms", "800", "--wait-ms", "1"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let device = &last["processes"][0]["devices"][0];
    assert_eq!((&device["device"], &device["gpu"]["index"]), (&0.into(), &1.into()), "{last}");
}

#[test]
fn memory_from_before_the_trace_is_untracked() {
    let env = shared();
    let workload = env.hold(0, 5, 1 << 20);
    let pid = workload.pid();
    let mut command = env.command(VRAMSCOPE);
    command.args(["trace", "--json", "--interval", "200ms", "-p", &pid.to_string()]);
    let mut tracer = harness::Tracer::start(&mut command);
    let report = tracer.wait_for_process(pid, |process| process.get("untracked_bytes").is_some());
    let process = process(&report, pid);
    assert_eq!(process["live_bytes"], 0);
    assert_eq!(process["before_trace"], true);
    assert_eq!(process["exact"], false);
    assert_eq!(process["untracked_bytes"], (100 << 20) + (5 << 20));
    assert_eq!(process["name"], "workload");
}

#[test]
fn out_of_memory_lists_all_holders_on_the_gpu() {
    let env = shared().env("SIM_MEMORY", "4G");
    let driver = env.driver.to_str().unwrap().to_owned();
    let mut command = env.command(VRAMSCOPE);
    command.args(["trace", "--json", "--interval", "200ms", "--driver", &driver]);
    let mut tracer = harness::Tracer::start(&mut command);
    tracer.next();
    let mut holder =
        env.workload(&["hold", "--count", "2", "--size", "1073741824", "--wait-ms", "60000"]);
    holder.wait_ready();
    let workload = env.workload(&["oom", "--chunk-mb", "300"]);
    let (pid, holder_pid) = (workload.pid(), holder.pid());
    let report = tracer.wait_for("out of memory", |report| report.get("out_of_memory").is_some());
    let oom = &report["out_of_memory"][0];
    assert_eq!(oom["pid"], pid);
    assert_eq!(oom["requested_bytes"], 300 << 20);
    assert_eq!(oom["gpu"]["index"], 0);
    let holders: Vec<_> =
        oom["holders"].as_array().unwrap().iter().map(|h| h["pid"].clone()).collect();
    assert!(holders.contains(&holder_pid.into()) && holders.contains(&pid.into()), "{oom}");
    let held = oom["holders"].as_array().unwrap().iter().find(|h| h["pid"] == holder_pid).unwrap();
    assert_eq!(held["live_bytes"], 2_u64 << 30);
    workload.finish();
}

const MIB: u64 = 1 << 20;

/// Traces a program whose context predates the trace, and returns the report in which the driver
/// counts the 20 MiB that it keeps, and 100 MiB for each of its contexts.
fn late(env: &TestEnv, mode: &str, device: &str, contexts: u64) -> (Workload, Value) {
    let program = env.dir.path().join("program");
    compile("late.c", &program, &["-ldl"]);
    let mut workload = Workload::start(env.command(&program).args([mode, device]));
    workload.wait_ready();
    let pid = workload.pid();
    let mut command = env.command(VRAMSCOPE);
    command.args(["trace", "--json", "--interval", "200ms", "-p", &pid.to_string()]);
    let mut tracer = Tracer::start(&mut command);
    tracer.next();
    workload.go();
    let all = (20 + 100 * contexts) * MIB;
    let report = tracer.wait_for_process(pid, |process| {
        let devices = process["devices"].as_array().unwrap().iter();
        let driver: u64 = devices.filter_map(|device| device["driver_bytes"].as_u64()).sum();
        process["live_bytes"] == 20 * MIB && driver == all
    });
    (workload, process(&report, pid).clone())
}

/// Asserts that all memory of a process is on one device.
fn assert_on(process: &Value, device: u64, gpu: u64) {
    let [on] = &process["devices"].as_array().unwrap()[..] else { panic!("{process}") };
    assert_eq!((&on["device"], &on["gpu"]["index"]), (&device.into(), &gpu.into()), "{process}");
    assert_eq!((&on["live_bytes"], &on["peak_bytes"]), (&(20 * MIB).into(), &(20 * MIB).into()));
    assert_eq!(on["untracked_bytes"], 100 * MIB, "{process}");
    assert_eq!(process["untracked_bytes"], 100 * MIB);
    let allocations = process["threads"][0]["allocations"].as_array().unwrap();
    assert!(allocations.iter().all(|one| one["device"] == device), "{process}");
}

#[test]
fn late_attach_on_a_host_with_one_gpu_knows_the_device() {
    let (_workload, process) = late(&shared().env("SIM_DEVICES", "1"), "keeps", "0", 1);
    assert_on(&process, 0, 0);
}

#[test]
fn late_attach_knows_the_only_gpu_that_the_driver_lists() {
    for device in 0..2 {
        let (_workload, process) = late(&shared(), "keeps", &device.to_string(), 1);
        assert_on(&process, device, device);
    }
}

#[test]
fn late_attach_does_not_guess_between_two_gpus() {
    let (_workload, process) = late(&shared(), "both", "1", 2);
    let devices = process["devices"].as_array().unwrap();
    let numbers: Vec<_> = devices.iter().map(|on| on["device"].as_u64()).collect();
    assert_eq!(numbers, [Some(0), Some(1), None], "{process}");
    assert_eq!(
        (&devices[2]["live_bytes"], &devices[2]["unknown_reason"].is_string()),
        (&(20 * MIB).into(), &true)
    );
    // Traced memory is not untracked, even if its GPU is unknown.
    assert_eq!(process["untracked_bytes"], 200 * MIB, "{process}");
    let bounds = |on: &Value| (on["untracked_bytes"].as_u64(), on["untracked_bytes_max"].as_u64());
    assert_eq!(bounds(&devices[0]), (Some(80 * MIB), Some(100 * MIB)), "{process}");
    assert_eq!(bounds(&devices[1]), (Some(100 * MIB), Some(120 * MIB)), "{process}");
}

#[test]
fn processes_have_their_mig_instance_in_reports_and_recordings() {
    let env = shared().env("SIM_MIG", "2");
    // The second instance of the first device, in hexadecimal digits of its text.
    let hex: String = b"VRAMSCOPE-MI0100".iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    let second = format!("MIG-{}", parts.join("-"));
    let file = env.dir.path().join("run.arrows");
    let workload = harness::simulator().join("workload");
    let visible = format!("CUDA_VISIBLE_DEVICES={second}");
    let traced = |format: &[&str]| {
        let output = env
            .command(VRAMSCOPE)
            .args(["trace", "--interval", "300ms"])
            .args(format)
            .args(["--", "env", &visible])
            .arg(&workload)
            .args(["--hold-ms", "1500", "leak3", "--work-ms", "1", "--wait-ms", "1"])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let json = traced(&["--json", "--record", file.to_str().unwrap()]);
    let replayed = env.command(VRAMSCOPE).arg("replay").arg(&file).arg("--json").output().unwrap();
    for text in [&json, &String::from_utf8(replayed.stdout).unwrap()] {
        let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        let mig = &last["processes"][0]["mig"];
        assert_eq!(mig["uuid"], second.as_str(), "{last}");
        assert_eq!(mig["profile"], "1g.3gb", "{last}");
    }
    let text = traced(&[]);
    assert!(text.contains("(MIG 1g.3gb)"), "{text}");
    // Without a name in its environment, the driver says which one it is.
    let plain = env.trace(&[], &["--hold-ms", "2500", "leak3", "--work-ms", "1", "--wait-ms", "1"]);
    let first = plain.last()["processes"][0]["mig"]["uuid"].as_str().unwrap_or("none");
    assert!(first.starts_with("MIG-") && first != second, "{first}");
}

#[test]
fn agent_exports_the_mig_instance_of_a_process() {
    let env = shared().env("SIM_MIG", "2");
    let agent = Agent::start(&env, &[]);
    let holder = env.hold(0, 5, MIB);
    let (pid, info) = (format!("pid=\"{}\"", holder.pid()), "vramscope_process_mig_info");
    let metrics = agent.until("the instance", |agent| {
        let metrics = agent.metrics();
        (metrics.sum(info, &[&pid]) > 0.0).then_some(metrics)
    });
    let line = metrics.lines(info, &[&pid]).next().unwrap();
    assert!(line.contains("mig=\"MIG-") && line.contains("mig_profile=\"1g.3gb\""), "{line}");
    assert_eq!(metrics.sum(info, &[&pid]), 1.0);
    assert_eq!(metrics.sum("vramscope_process_live_bytes", &[&pid]), (5 * MIB) as f64);
}
