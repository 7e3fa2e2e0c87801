//! Targets of a trace: all processes, some, their children, and drivers that are loaded later.

use std::fs;

use crate::harness::{self, TestEnv, VRAMSCOPE, assert_same, compile, process, until};

#[test]
fn all_processes_are_traced_and_exited_ones_listed_once() {
    let env = TestEnv::new();
    let mut tracer = env.start_trace(&["--driver", env.driver.to_str().unwrap()]);
    tracer.next();
    let workload = env.workload(&["leak3", "--work-ms", "300", "--wait-ms", "300"]);
    let pid = workload.pid();
    tracer.wait_for_process(pid, |process| process["live_bytes"] == 24 << 20);
    workload.finish();
    let report = tracer.wait_for_process(pid, |process| process["exited"] == true);
    assert_same(process(&report, pid), &env.oracle(pid));
    let next = tracer.next();
    assert!(!next["processes"].as_array().unwrap().iter().any(|p| p["pid"] == pid));
    let traced = tracer.stop();
    assert!(traced.status.success());
    assert_same(process(traced.last(), pid), &env.oracle(pid));
}

#[test]
fn only_the_target_process_is_traced() {
    let env = TestEnv::new();
    let mut target = env.workload(&["--wait-start", "train", "--steps", "40", "--step-ms", "5"]);
    let mut other = env.workload(&["--wait-start", "train", "--steps", "40", "--step-ms", "5"]);
    target.wait_ready();
    other.wait_ready();
    let driver = env.driver.to_str().unwrap();
    let mut tracer = env.start_trace(&["-p", &target.pid().to_string(), "--driver", driver]);
    tracer.next();
    let (pid, other_pid) = (target.pid(), other.pid());
    target.go();
    other.go();
    other.finish();
    target.finish();
    // The trace ends when its process exits.
    let traced = tracer.stop();
    assert!(traced.status.success(), "{}", traced.messages);
    assert_same(process(traced.last(), pid), &env.oracle(pid));
    assert!(!traced.last()["processes"].as_array().unwrap().iter().any(|p| p["pid"] == other_pid));
}

#[test]
fn children_are_traced_with_follow_forks() {
    for follow in [false, true] {
        let env = TestEnv::new();
        let mut workload = env.workload(&["--wait-start", "fork"]);
        workload.wait_ready();
        let pid = workload.pid().to_string();
        let mut arguments = vec!["-p", &pid, "--driver", env.driver.to_str().unwrap()];
        arguments.extend(follow.then_some("--follow-forks"));
        let mut tracer = env.start_trace(&arguments);
        tracer.next();
        workload.go();
        let own = workload.pid();
        workload.finish();
        let traced = if follow {
            tracer.wait_for_process(own, |process| process["exited"] == true);
            tracer.stop()
        } else {
            tracer.stop()
        };
        let processes = traced.last()["processes"].as_array().unwrap();
        assert_eq!(processes.len(), if follow { 2 } else { 1 });
        for (pid, oracle) in env.oracles() {
            if follow || pid == own {
                assert_same(process(traced.last(), pid), &oracle);
            }
        }
    }
}

#[test]
fn late_loaded_driver_is_traced_from_its_first_call() {
    let env = TestEnv::new();
    let traced = env.trace(&[], &["dlopen-late", "--delay-ms", "500"]);
    traced.assert_matches_oracle(&env);
}

#[test]
fn second_driver_copy_is_attached_while_tracing() {
    let env = TestEnv::new().on_whole_host();
    let mut tracer = env.start_trace(&["--driver", env.driver.to_str().unwrap()]);
    tracer.next();
    // A copy elsewhere, as in a container.
    let elsewhere = tempfile::tempdir().unwrap();
    let copy = elsewhere.path().join("libcuda.so.1");
    fs::copy(&env.driver, &copy).unwrap();
    // The probes are attached within milliseconds of its loading, while it initializes as long as a
    // real one does.
    let second = TestEnv::with_driver(copy).env("SIM_INIT_MS", "300");
    let workload = second.workload(&["kinds"]);
    let pid = workload.pid();
    workload.finish();
    let report = tracer.wait_for_process(pid, |process| process["exited"] == true);
    assert_same(process(&report, pid), &second.oracle(pid));
    // It loaded the driver before the probes were attached, and the report says so.
    assert_eq!(process(&report, pid)["exact"], false);
    assert_eq!(process(&report, pid)["uncertainty"]["before_trace"], true);
}

#[test]
fn drivers_loaded_one_by_one_predate_their_probes() {
    let env = TestEnv::new().on_whole_host();
    let mut tracer = env.start_trace(&["--driver", env.driver.to_str().unwrap()]);
    tracer.next();
    let elsewhere = tempfile::tempdir().unwrap();
    let copies = (0..12).map(|number| {
        let dir = elsewhere.path().join(number.to_string());
        fs::create_dir(&dir).unwrap();
        let copy = dir.join("libcuda.so.1");
        fs::copy(&env.driver, &copy).unwrap();
        copy
    });
    let others: Vec<_> =
        copies.map(|copy| TestEnv::with_driver(copy).env("SIM_INIT_MS", "2000")).collect();
    // While probes are attached to one copy, other processes load theirs: not all at the same time.
    let start = |other: &TestEnv| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        other.workload(&["kinds"])
    };
    let workloads: Vec<_> = others.iter().map(start).collect();
    let pids: Vec<_> = workloads.iter().map(|workload| workload.pid()).collect();
    for workload in workloads {
        workload.finish();
    }
    let traced = tracer.stop();
    for pid in pids {
        let process = process(traced.last(), pid);
        assert_eq!(process["exact"], false, "{process}");
        assert_eq!(process["uncertainty"]["before_trace"], true, "{process}");
    }
}

#[test]
fn one_driver_file_with_two_names_is_counted_once() {
    let env = TestEnv::new();
    let elsewhere = tempfile::tempdir().unwrap();
    let copy = elsewhere.path().join("libcuda.so.1");
    let link = elsewhere.path().join("libcuda.so.999");
    fs::copy(&env.driver, &copy).unwrap();
    fs::hard_link(&copy, &link).unwrap();
    let env = TestEnv::with_driver(copy.clone());
    let drivers = ["--driver", copy.to_str().unwrap(), "--driver", link.to_str().unwrap()];
    env.trace(&drivers, &["train", "--steps", "20", "--step-ms", "1"]).assert_matches_oracle(&env);
}

#[test]
fn one_driver_file_in_an_overlay_is_counted_once() {
    let env = TestEnv::new();
    let base = tempfile::tempdir().unwrap();
    let path = |name: &str| base.path().join(name);
    for name in ["lower", "upper", "work", "merged"] {
        fs::create_dir(path(name)).unwrap();
    }
    fs::copy(&env.driver, path("lower/libcuda.so.1")).unwrap();
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        path("lower").display(),
        path("upper").display(),
        path("work").display()
    );
    let mount = std::process::Command::new("mount")
        .args(["-t", "overlay", "overlay", "-o", &options])
        .arg(path("merged"))
        .status()
        .unwrap();
    assert!(mount.success(), "these tests need permission to mount");
    let inside = TestEnv::with_driver(path("merged/libcuda.so.1"));
    let lower = path("lower/libcuda.so.1");
    let traced = inside.trace(
        &["--driver", lower.to_str().unwrap()],
        &["train", "--steps", "20", "--step-ms", "1"],
    );
    // The kernel releases a link's file shortly after the link is closed, and a concurrent test
    // that traces all processes may also use it.
    until("the end of the use of the driver file", String::new, || {
        let mut umount = std::process::Command::new("umount");
        let umount = umount.arg(path("merged")).stderr(std::process::Stdio::null());
        umount.status().unwrap().success().then_some(())
    });
    traced.assert_matches_oracle(&inside);
}

#[test]
fn functions_at_one_address_are_counted_once() {
    let dir = tempfile::tempdir().unwrap();
    let driver = dir.path().join("libcuda.so.1");
    compile("alias.c", &driver, &["-shared", "-fPIC"]);
    let program = dir.path().join("program");
    compile("calls.c", &program, &["-ldl"]);
    let output = std::process::Command::new(VRAMSCOPE)
        .args(["trace", "--json", "--driver"])
        .arg(&driver)
        .arg("--")
        .arg(&program)
        .arg(&driver)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let process = &last["processes"][0];
    // Two contexts were created and one destroyed, through either name; nested calls count once.
    assert_eq!(process["allocations_total"], 3, "{last}");
    assert_eq!(process["frees_total"], 1);
    assert_eq!(process["live_bytes"], 3000);
    assert_eq!(process["released_total"], 0);
}

/// Starts a program on the second device, and traces it while it runs.
fn late(mode: &str) -> (TestEnv, harness::Workload, harness::Tracer) {
    let env = TestEnv::new();
    let program = env.dir.path().join("program");
    compile("late.c", &program, &["-ldl"]);
    let mut workload = harness::Workload::start(env.command(&program).arg(mode));
    workload.wait_ready();
    let tracer = env.start_trace(&["-p", &workload.pid().to_string()]);
    (env, workload, tracer)
}

#[test]
fn device_is_learned_from_context_queries() {
    let (_env, workload, mut tracer) = late("queries");
    let report = tracer.wait_for_process(workload.pid(), |process| {
        let devices = process["devices"].as_array().unwrap();
        devices.iter().any(|device| device["device"] == 1 && device["peak_bytes"] == 4096)
    });
    assert_eq!(process(&report, workload.pid())["before_trace"], true);
}

#[test]
fn device_without_context_queries_is_unknown() {
    let (_env, workload, mut tracer) = late("silent");
    let report = tracer.wait_for_process(workload.pid(), |process| {
        let devices = process["devices"].as_array().unwrap();
        devices.iter().any(|device| device["live_bytes"].as_u64() > Some(0))
    });
    let device = &process(&report, workload.pid())["devices"][0];
    assert_eq!(device["device"], serde_json::Value::Null);
    assert_eq!(device["unknown_reason"], "context_before_trace", "{device}");
}

#[test]
fn late_attach_reports_missing_memory() {
    let env = TestEnv::new();
    let mut workload =
        env.workload(&["hold", "--count", "5", "--size", "1048576", "--wait-ms", "4000"]);
    workload.wait_ready();
    let pid = workload.pid();
    let mut tracer = env.start_trace(&["-p", &pid.to_string()]);
    let report = tracer.next();
    // It made no call since: nothing is known or claimed about it.
    assert_eq!((&report["live_bytes"], &report["processes"]), (&0.into(), &serde_json::json!([])));
    drop(workload);
    let traced = tracer.stop();
    assert!(traced.status.success(), "{}", traced.messages);

    // For a process that continues, every report says that its earlier memory is missing, also as
    // text.
    let (env, workload, mut tracer) = late("silent");
    let pid = workload.pid();
    let called = |process: &serde_json::Value| process["allocations_total"].as_u64() > Some(0);
    let report = tracer.wait_for_process(pid, called);
    let known = process(&report, pid);
    assert_eq!((&report["exact"], &known["exact"]), (&false.into(), &false.into()), "{known}");
    assert_eq!(known["before_trace"], true);
    assert!(known["traced_since"].is_string(), "{known}");
    assert_eq!(known["uncertainty"]["before_trace"], true);
    assert_eq!(report["uncertainty"]["before_trace"], true);
    let mut words = std::process::Command::new(VRAMSCOPE);
    words.args(["trace", "--duration", "1s", "-p", &pid.to_string()]);
    let output = env.limit(&mut words).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("before the trace"), "{text}");
}
