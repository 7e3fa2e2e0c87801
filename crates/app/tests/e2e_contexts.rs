//! Context stacks of threads under real probes and in-process: deep stacks, failed destroys, and
//! stacks deeper than the tracked levels.

use crate::harness::{self, TestEnv, Workload, send_signal, trace_both};

#[test]
fn deep_context_stack_is_exact() {
    for depth in ["1", "4", "8", "9", "16", "64", "200", "254"] {
        println!("depth {depth}");
        let workload = ["context-stack", "--depth", depth];
        for (_, traced) in trace_both(TestEnv::new, &[], &workload) {
            let process = &traced.last()["processes"][0];
            assert_eq!(process["live_bytes"], 10_000);
            assert_eq!(process["released_total"], 2);
        }
    }
}

#[test]
fn too_deep_context_stack_is_inexact_and_bounded() {
    for (verb, depth) in [("trace", "256"), ("run", "256"), ("trace", "300"), ("run", "1000")] {
        println!("{verb}, depth {depth}");
        let env = TestEnv::new();
        let traced = env.run(verb, &[], &["context-stack", "--depth", depth]);
        assert!(traced.status.success(), "{}", traced.messages);
        let (pid, oracle) = env.oracles().into_iter().next().unwrap();
        let process = harness::process(traced.last(), pid);
        assert_eq!(oracle["live_bytes"], 10_000);
        assert_eq!(process["exact"], false, "{process}");
        assert_eq!(process["uncertainty"]["unknown_context"], 1);
        assert_eq!(process["uncertainty"]["live_bytes_min"], 10_000);
        assert_eq!(process["uncertainty"]["live_bytes_max"], 14_000);
        // The top of the stack was always known.
        assert_eq!(process["released_total"], 1);
        assert_eq!(traced.last()["lost_events"], 0);
    }
}

#[test]
fn failed_context_destroy_keeps_the_stack() {
    for seed in ["1", "7", "8"] {
        let env = || TestEnv::new().env("SIM_INJECT_FAILURES", "cuCtxDestroy_v2:every2=1");
        let workload = ["--seed", seed, "random", "--ops", "8000", "--devices", "2"];
        println!("seed {seed}");
        trace_both(env, &["--top", "1000000"], &workload);
    }
}

/// After a line of input, creates a context of device 1; after another, allocates and queries the
/// device until there is a third. Then execs itself once, with the other driver.
const QUERIES: &str = r#"
import ctypes, os, select, sys
print("ready", flush=True)
os.read(0, 64)
cu = ctypes.CDLL("libcuda.so.1")
context, memory, device = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_int()
assert cu.cuInit(0) == 0 and cu.cuCtxCreate_v2(ctypes.byref(context), 0, 1) == 0
print("ready", flush=True)
os.read(0, 64)
while not select.select([0], [], [], 0.02)[0]:
    assert cu.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4096)) == 0
    assert cu.cuCtxGetCurrent(ctypes.byref(context)) == 0 and cu.cuCtxGetDevice(ctypes.byref(device)) == 0
other = os.environ.pop("OTHER_DRIVER", None)
if other and os.read(0, 64):
    os.environ["LD_LIBRARY_PATH"] = other
    os.execv(sys.executable, [sys.executable, "-c", os.environ["SCRIPT"]])
"#;

#[test]
fn context_device_is_reported_again_after_exec() {
    let env = TestEnv::new();
    let other = env.dir.path().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::copy(&env.driver, other.join("libcuda.so.1")).unwrap();
    let mut command = env.command("python3");
    command.args(["-c", QUERIES]).env("SCRIPT", QUERIES).env("OTHER_DRIVER", &other);
    let mut workload = Workload::start(command.env("SIM_DEVICES", "2"));
    let pid = workload.pid();
    let create_context = |workload: &mut Workload| {
        workload.go();
        workload.wait_ready();
    };
    workload.wait_ready();
    create_context(&mut workload);
    let mut tracer = env.start_trace(&["--pid", &pid.to_string()]);
    workload.go();
    let runs_on_device_1 = |process: &serde_json::Value| {
        let devices = process["devices"].as_array().unwrap();
        process["exited"] == false && devices.iter().any(|device| device["device"] == 1)
    };
    tracer.wait_for_process(pid, runs_on_device_1);
    workload.go();
    tracer.wait_for_process(pid, |process| process["end_reason"] == "exec");
    workload.wait_ready();
    // The next program creates its context, of the same handle, before its driver is probed.
    send_signal(tracer.child.id(), 19);
    create_context(&mut workload);
    send_signal(tracer.child.id(), 18);
    workload.go();
    tracer.wait_for_process(pid, runs_on_device_1);
}
