//! The driver's own account (a simulated NVML) beside what was traced.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod harness;

use harness::{Stage, VRAMSCOPE, process};

fn shared() -> Stage {
    Stage::new().sharing().env("SIM_CONTEXT_OVERHEAD", "100M")
}

#[test]
fn what_the_driver_takes_beside_the_program_is_told() {
    let stage = shared();
    let workload = ["--hold-ms", "3000", "leak3", "--work-ms", "1", "--wait-ms", "1"];
    let traced = stage.trace(&[], &workload);
    let with_account = traced.reports.iter().rev().find_map(|report| {
        let process = report["processes"].as_array()?.first()?.clone();
        (process["exited"] == false && process.get("untracked_bytes").is_some()).then_some(process)
    });
    let process = with_account.expect("the account was asked");
    let device = &process["devices"][0];
    assert_eq!(device["driver_bytes"], (100 << 20) + (8 << 20), "{process}");
    assert_eq!(device["untracked_bytes"], 100 << 20);
    assert_eq!(process["untracked_bytes"], 100 << 20);
    assert_eq!(device["gpu"]["index"], 0);
    assert!(device["gpu"]["uuid"].as_str().unwrap().starts_with("GPU-"));
}

#[test]
fn visible_devices_are_turned_into_gpus_of_the_host() {
    let stage = shared();
    let output = stage
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
fn memory_from_before_the_trace_is_named() {
    let stage = shared();
    let player = stage.hold(0, 5, 1 << 20);
    let pid = player.pid();
    let mut command = stage.command(VRAMSCOPE);
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
fn out_of_memory_names_everybody_on_the_gpu() {
    let stage = shared().env("SIM_MEMORY", "4G");
    let driver = stage.driver.to_str().unwrap().to_owned();
    let mut command = stage.command(VRAMSCOPE);
    command.args(["trace", "--json", "--interval", "200ms", "--driver", &driver]);
    let mut tracer = harness::Tracer::start(&mut command);
    tracer.next();
    let mut holder =
        stage.workload(&["hold", "--count", "2", "--size", "1073741824", "--wait-ms", "60000"]);
    holder.wait_ready();
    let player = stage.workload(&["oom", "--chunk-mb", "300"]);
    let (pid, holder_pid) = (player.pid(), holder.pid());
    let report = tracer.wait_for("out of memory", |report| report.get("out_of_memory").is_some());
    let oom = &report["out_of_memory"][0];
    assert_eq!(oom["pid"], pid);
    assert_eq!(oom["asked_bytes"], 300 << 20);
    assert_eq!(oom["gpu"]["index"], 0);
    let holders: Vec<_> =
        oom["holders"].as_array().unwrap().iter().map(|h| h["pid"].clone()).collect();
    assert!(holders.contains(&holder_pid.into()) && holders.contains(&pid.into()), "{oom}");
    let held = oom["holders"].as_array().unwrap().iter().find(|h| h["pid"] == holder_pid).unwrap();
    assert_eq!(held["live_bytes"], 2_u64 << 30);
    player.finish();
}
