//! Bad input and failures: each has its own message or is counted, and the target is never
//! affected.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use crate::harness::{
    self, TestEnv, VRAMSCOPE, assert_same, code_of, compile, isolated, process, send_signal,
    simulator, until,
};

/// Id of an unprivileged user.
const NOBODY_UID: u32 = 65534;

fn trace(arguments: &[&str]) -> Output {
    Command::new(VRAMSCOPE).arg("trace").args(arguments).output().unwrap()
}

fn assert_error(output: &Output, parts: &[&str]) {
    assert_code(output, 2, parts);
}

fn assert_code(output: &Output, code: i32, parts: &[&str]) {
    let messages = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{messages}");
    for part in parts {
        assert!(messages.contains(part), "`{part}` is not in: {messages}");
    }
    assert!(!messages.contains("panicked"), "{messages}");
}

#[test]
fn missing_capabilities_are_reported_with_advice() {
    // The build directory may not be accessible to other users; a copy is.
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    let copy = dir.path().join("vramscope");
    std::fs::copy(VRAMSCOPE, &copy).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).unwrap();
    let as_nobody = |verb: &str| Command::new(&copy).arg(verb).uid(NOBODY_UID).output().unwrap();
    assert_error(&as_nobody("trace"), &["needs root", "sudo", "65534"]);
    let doctor = as_nobody("doctor");
    let report = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert_eq!(doctor.status.code(), Some(1), "{report}");
    assert!(report.contains("cannot load BPF programs") && report.contains("sudo"), "{report}");
}

#[test]
fn missing_process_is_an_error() {
    assert_error(&trace(&["-p", "4194303"]), &["no such process: 4194303"]);
}

#[test]
fn invalid_driver_library_is_rejected() {
    assert_error(&trace(&["--driver", "/no/such/libcuda.so.1"]), &["/no/such", "permissions"]);
    assert_error(&trace(&["--driver", "/etc/passwd"]), &["/etc/passwd", "not a 64-bit ELF"]);
    assert_error(&trace(&["--driver", "/tmp"]), &["/tmp", "not a regular file"]);
    assert_error(&trace(&["--driver", VRAMSCOPE]), &["exports none", "libcuda.so.1"]);
}

#[test]
fn driver_of_another_processor_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let driver = dir.path().join("libcuda.so.1");
    let mut content = std::fs::read(simulator().join("libcuda.so.1")).unwrap();
    // The field `e_machine` of the header: EM_AARCH64.
    content[18..20].copy_from_slice(&183_u16.to_le_bytes());
    std::fs::write(&driver, content).unwrap();
    let driver = driver.to_str().unwrap();
    assert_error(
        &trace(&["--driver", driver, "--duration", "1s"]),
        &["Aarch64", "another processor"],
    );
}

/// Runs `vramscope trace --json` with more arguments, under a resource limit.
fn trace_limited(env: &TestEnv, limit: &str, arguments: &str) -> Output {
    let script = format!("{limit} && exec {VRAMSCOPE} trace --json {arguments}");
    env.command("bash").args(["-c", &script]).output().unwrap()
}

#[test]
fn too_low_limits_are_reported_with_advice() {
    let env = TestEnv::new();
    let files = trace_limited(&env, "ulimit -n 16", "-- true");
    assert_code(&files, 125, &["16 files", "ulimit -n"]);
    let space = trace_limited(&env, "ulimit -v 100000", "-- true");
    assert_code(&space, 125, &["97 MiB", "ulimit -v unlimited"]);
    // The limits that the messages suggest are enough.
    let messages = String::from_utf8(files.stderr).unwrap();
    let needed = messages.split("ulimit -n ").nth(1).unwrap().split('`').next().unwrap();
    for enough in [&format!("ulimit -n {needed}"), "ulimit -v 524288"] {
        let workload = env.workload(&["spam", "--throughput", "100", "--duration", "60"]);
        let options = format!("-p {} --duration 3s", workload.pid());
        let output = trace_limited(&env, enough, &options);
        let messages = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{enough}: {messages}");
        let last = String::from_utf8_lossy(&output.stdout).lines().last().unwrap().to_owned();
        let report = serde_json::from_str(&last).unwrap();
        assert!(
            process(&report, workload.pid())["allocations_total"].as_u64() > Some(10),
            "{last}"
        );
    }
}

#[test]
fn unwritable_output_fails_before_the_trace() {
    let output = trace(&["-o", "/no/such/dir/report", "--", "sleep", "60"]);
    assert_code(&output, 125, &["/no/such/dir/report", "choose another"]);
}

#[test]
fn trace_waits_for_a_driver_to_be_loaded() {
    let output = isolated(VRAMSCOPE)
        .args(["trace", "-v", "--duration", "300ms", "--", "sleep", "5"])
        .env_remove("LD_LIBRARY_PATH")
        .output()
        .unwrap();
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(messages.contains("waiting for a process that loads it"), "{messages}");
    assert!(!messages.contains("attached to"), "{messages}");
    assert!(messages.contains("is still running, no longer traced"), "{messages}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("No GPU memory activity."));
    assert!(output.status.success());
}

#[test]
fn invalid_option_values_are_usage_errors() {
    for arguments in [
        &["--interval", "soon"][..],
        &["--interval", "0"],
        &["--min-size", "10X"],
        &["--min-age", "-3s"],
        &["--fail-on-leak=lots"],
        &["-p", "minus"],
        &["--sort", "color"],
        &["--ring-size", "5000"],
        &["--no-such-option"],
        &["-p", "1", "--", "sleep", "1"],
        &["--follow-forks"],
    ] {
        let output = trace(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty());
    }
}

#[test]
fn ring_overflow_is_counted_and_bounded() {
    let env = TestEnv::new();
    let workload = ["spam", "--throughput", "max", "--free-ratio", "0.7", "--count", "200000"];
    let traced = env.trace(&["--ring-size", "4096", "--top", "5"], &workload);
    assert!(traced.status.success(), "{}", traced.messages);
    let (pid, oracle) = env.oracles().into_iter().next().unwrap();
    let last = traced.last();
    let process = process(last, pid);
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    let lost = &process["uncertainty"];
    assert!(number(&last["lost_events"]) > 0, "the ring was too large to overflow");
    assert_eq!(last["exact"], false);
    // received + lost = actual
    let received = number(&process["allocations_total"]);
    assert_eq!(received + number(&lost["lost_allocations"]), number(&oracle["allocations"]));
    let freed = number(&process["frees_total"]) + number(&process["unmatched_frees"]);
    assert_eq!(freed + number(&lost["lost_frees"]), number(&oracle["frees"]));
    let actual = number(&oracle["live_bytes"]);
    let bounds = number(&lost["live_bytes_min"])..=number(&lost["live_bytes_max"]);
    assert!(bounds.contains(&actual), "{actual} is not in {bounds:?}");
}

#[test]
fn full_process_map_is_counted() {
    // Room for the command itself, and for none of the children that should be traced.
    let env = TestEnv::new();
    let arguments = ["stressor", "--procs", "3", "--duration", "1"];
    let traced = env.trace(&["--process-table-size", "1"], &arguments);
    let last = traced.last();
    assert_eq!(last["exact"], false, "{last}");
    assert_eq!(last["uncertainty"]["lost_other"], 3, "each child that could not be followed");
    assert_eq!(env.oracles().len(), 3, "the children did not notice");

    // Without an entry in the process map, their calls are still traced.
    let env = TestEnv::new();
    let driver = env.driver.to_str().unwrap();
    let mut tracer = env.start_trace(&["--driver", driver, "--process-table-size", "1"]);
    tracer.next();
    let workloads: Vec<_> =
        (0..3).map(|_| env.workload(&["leak3", "--work-ms", "600", "--wait-ms", "1"])).collect();
    for workload in &workloads {
        tracer.wait_for_process(workload.pid(), |process| process["live_bytes"] == 24 << 20);
    }
}

#[test]
fn killed_target_is_reported_as_exited() {
    let env = TestEnv::new();
    let mut workload =
        env.workload(&["--wait-start", "spam", "--throughput", "max", "--duration", "60"]);
    workload.wait_ready();
    let driver = env.driver.to_str().unwrap();
    let mut tracer = env.start_trace(&["-p", &workload.pid().to_string(), "--driver", driver]);
    tracer.next();
    workload.go();
    let pid = workload.pid();
    tracer.wait_for_process(pid, |process| process["allocations_total"].as_u64() > Some(1000));
    workload.signal(9);
    let (status, _) = workload.finish();
    assert!(!status.success());
    let traced = tracer.stop();
    assert!(traced.status.success(), "{}", traced.messages);
    assert_eq!(process(traced.last(), pid)["exited"], true);
}

#[test]
fn terminated_target_is_exact() {
    let env = TestEnv::new();
    let mut workload = env.workload(&["--wait-start", "threads", "--duration", "60"]);
    workload.wait_ready();
    let driver = env.driver.to_str().unwrap();
    let mut tracer = env.start_trace(&["-p", &workload.pid().to_string(), "--driver", driver]);
    tracer.next();
    workload.go();
    let pid = workload.pid();
    tracer.wait_for_process(pid, |process| process["allocations_total"].as_u64() > Some(100));
    workload.signal(15);
    workload.finish();
    let traced = tracer.stop();
    assert_same(process(traced.last(), pid), &env.oracle(pid));
}

#[test]
fn killed_tracer_leaves_no_probes() {
    let dir = tempfile::tempdir().unwrap();
    let driver = dir.path().join("libcuda.so.1");
    // A separate copy: no probes of other tests are on it.
    std::fs::copy(simulator().join("libcuda.so.1"), &driver).unwrap();
    let env = TestEnv::with_driver(driver.clone());
    let mut workload =
        env.workload(&["--wait-start", "spam", "--throughput", "max", "--duration", "120"]);
    workload.wait_ready();
    let mut tracer =
        env.start_trace(&["-p", &workload.pid().to_string(), "--driver", driver.to_str().unwrap()]);
    tracer.next();
    workload.go();
    let pid = workload.pid();
    tracer.wait_for_process(pid, |process| process["allocations_total"].as_u64() > Some(1000));
    let probed = code_of(pid, &driver, "cuMemAlloc_v2");
    assert_eq!(probed[0], 0xcc, "the probe is a breakpoint on the first instruction");
    send_signal(tracer.child.id(), 9);
    tracer.child.wait().unwrap();
    // The kernel removes the breakpoints shortly after the last descriptor is closed.
    until("the code without a breakpoint", String::new, || {
        (code_of(pid, &driver, "cuMemAlloc_v2")[0] == 0x55).then_some(())
    });
    send_signal(pid, 15);
    let (status, _) = workload.finish();
    assert!(status.success(), "the target did not finish");

    // A second tracer starts after the first one was killed.
    env.trace(&[], &["train", "--steps", "20", "--step-ms", "1"])
        .assert_processes_match_oracles(&env);
}

#[test]
fn target_with_a_strict_seccomp_filter_survives() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    compile("seccomp.c", &program, &["-ldl"]);
    let env = TestEnv::new();
    let output =
        env.command(VRAMSCOPE).args(["trace", "--json", "--"]).arg(&program).output().unwrap();
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{messages}");
    let text = String::from_utf8(output.stdout).unwrap();
    let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(last["processes"][0]["allocations_total"], 100, "{last}");
    assert_eq!(last["processes"][0]["frees_total"], 99);
}

/// Returns the oracle of a process that exited, and another process with the same pid.
fn twice_the_same_pid(env: &TestEnv) -> Option<(serde_json::Value, harness::Workload)> {
    let first = env.workload(&["leak3", "--work-ms", "1", "--wait-ms", "1"]);
    let pid = first.pid();
    first.finish();
    let first = env.oracle(pid);
    // The next process gets the pid after the last one, unless another process is faster.
    std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
    let again = env.workload(&["leak3", "--work-ms", "300", "--wait-ms", "300"]);
    (again.pid() == pid).then_some((first, again))
}

#[test]
fn reused_pid_is_another_process() {
    let env = TestEnv::new();
    let mut tracer = env.start_trace(&["--driver", env.driver.to_str().unwrap()]);
    tracer.next();
    let (first, again) =
        (0..100).find_map(|_| twice_the_same_pid(&env)).expect("no pid was reused");
    let pid = again.pid();
    tracer.wait_for_process(pid, |p| p["live_bytes"] == 24 << 20 && p["exited"] == false);
    again.finish();
    let traced = tracer.stop();
    let same_pid = traced.last()["processes"].as_array().unwrap().iter();
    let same_pid: Vec<_> = same_pid.filter(|process| process["pid"] == pid).collect();
    assert_eq!(same_pid.len(), 2);
    // The newer one comes first.
    assert_same(same_pid[0], &env.oracle(pid));
    assert_same(same_pid[1], &first);
}

#[test]
fn fail_on_leak_exits_with_3() {
    let env = TestEnv::new();
    let leak3 = ["leak3", "--work-ms", "1", "--wait-ms", "1"];
    let code = |option: &str| env.trace(&[option], &leak3).status.code();
    assert_eq!(code("--fail-on-leak"), Some(3));
    assert_eq!(code("--fail-on-leak=8M"), Some(0));
    assert_eq!(code("--fail-on-leak=7M"), Some(3));
    assert_eq!(code("--top=1"), Some(0));
    let traced = env.trace(&["--fail-on-leak"], &leak3);
    assert!(traced.messages.contains("exited with 8.00 MiB"), "{}", traced.messages);
}

#[test]
fn closed_output_pipe_is_not_an_error() {
    let env = TestEnv::new();
    let script = format!(
        "{VRAMSCOPE} trace --interval 50ms -- {} train --steps 100 --step-ms 5 | head -n 1; \
         test ${{PIPESTATUS[0]}} -eq 0",
        simulator().join("workload").display()
    );
    let output = env.command("bash").args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn process_names_are_escaped() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("a\x1b[31m\u{202e}b");
    compile("seccomp.c", &program, &["-ldl"]);
    let env = TestEnv::new();
    let output = env.command(VRAMSCOPE).args(["trace", "--"]).arg(&program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains('\x1b') && !text.contains('\u{202e}'), "{text:?}");
    assert!(text.contains("\\u{1b}"), "{text}");
}
