//! A process is identified by pid and start time: a process that reuses the pid inherits nothing.

use std::os::unix::fs::PermissionsExt;

use crate::harness::{TestEnv, VRAMSCOPE, Workload, assert_same, compile, process, simulator};

/// Small, and running long enough to be seen.
const LEAK: [&str; 5] = ["leak3", "--work-ms", "300", "--wait-ms", "300"];

/// Kills `first` and starts a workload; returns it if it got the same pid.
fn reuse_pid(env: &TestEnv, first: Workload, workload: &[&str]) -> Option<Workload> {
    let pid = first.pid();
    first.signal(9);
    first.finish();
    // The next process gets the pid after the last one, unless another process is faster.
    std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
    let second = env.workload(workload);
    (second.pid() == pid).then_some(second)
}

#[test]
fn reused_pid_is_not_from_before_the_trace() {
    let env = TestEnv::new();
    let driver = env.driver.to_str().unwrap();
    let (mut tracer, second) = (0..100)
        .find_map(|_| {
            // Has the driver mapped when the trace begins, and does not call it again.
            let first = env.hold(0, 1, 4096);
            let mut tracer = env.start_trace(&["--driver", driver]);
            tracer.next();
            let second = reuse_pid(&env, first, &LEAK)?;
            Some((tracer, second))
        })
        .expect("other processes cannot take the pid every time");
    let pid = second.pid();
    tracer.wait_for_process(pid, |process| process["live_bytes"] == 24 << 20);
    second.finish();
    let traced = tracer.stop();
    let process = process(traced.last(), pid);
    assert_eq!(process["before_trace"], false, "{process}");
    assert_same(process, &env.oracle(pid));
    assert_eq!(process["exact"], true, "{process}");
}

#[test]
fn reused_pid_of_a_target_is_not_traced() {
    let env = TestEnv::new();
    let driver = env.driver.to_str().unwrap();
    let (tracer, second) = (0..100)
        .find_map(|_| {
            let first = env.hold(0, 1, 4096);
            let pid = first.pid().to_string();
            // The kernel does not limit links of this kind to a process.
            let options = ["-p", &pid, "--driver", driver, "--attach-mode", "single"];
            let mut tracer = env.start_trace(&options);
            tracer.next();
            let second = reuse_pid(&env, first, &LEAK)?;
            Some((tracer, second))
        })
        .expect("other processes cannot take the pid every time");
    let pid = second.pid();
    second.finish();
    let traced = tracer.stop();
    for report in &traced.reports {
        for process in report["processes"].as_array().unwrap() {
            assert!(process["pid"] != pid || process["allocations_total"] == 0, "{process}");
        }
    }
}

#[test]
fn failed_driver_attachment_is_retried() {
    let dir = tempfile::tempdir().unwrap();
    let driver = dir.path().join("libcuda.so.1");
    let program = dir.path().join("map");
    compile("map.c", &program, &[]);
    std::fs::write(&driver, [0; 8192]).unwrap();
    let env = TestEnv::with_driver(driver.clone());
    let mut tracer = env.start_trace(&[]);
    tracer.next();
    let mut holder = Workload::start(env.command(&program).arg(&driver));
    holder.wait_ready();
    // The file was checked two reports later.
    tracer.next();
    tracer.next();
    holder.go();
    holder.finish();
    // The same path with other content.
    std::fs::copy(simulator().join("libcuda.so.1"), &driver).unwrap();
    let workload = env.workload(&["spam", "--throughput", "100", "--duration", "60"]);
    let report =
        tracer.wait_for_process(workload.pid(), |p| p["allocations_total"].as_u64() > Some(10));
    let process = process(&report, workload.pid());
    // It may have called the driver before the probes were attached.
    assert_ne!(process["before_trace"], process["exact"]);
}

#[test]
fn programs_and_users_are_named() {
    // Like real drivers, this one takes time to initialize; the process is identified meanwhile.
    let env = TestEnv::new().env("SIM_INIT_MS", "300");
    let traced = env.trace(&[], &["leak3", "--work-ms", "1", "--wait-ms", "1"]);
    let process = &traced.last()["processes"][0];
    assert_eq!((&process["program"], &process["user"]), (&"workload".into(), &"root".into()));
    let script = env.dir.path().join("allocate.py");
    let code = "import ctypes\ncuda = ctypes.CDLL('libcuda.so.1')\ncuda.cuInit(0)\n";
    std::fs::write(&script, code).unwrap();
    let output = env
        .command(VRAMSCOPE)
        .args(["trace", "--json", "--", "python3", "-B"])
        .arg(&script)
        .args(["--secret", "1"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(last["processes"][0]["program"], "allocate.py", "{text}");
    assert!(!text.contains("--secret"), "{text}");
}

/// Runs a line in a shell that is called `sudo`, as the user `nobody` would call it.
fn as_called_by_nobody(line: &str) -> (Option<i32>, String, String) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let sudo = dir.path().join("sudo");
    std::fs::copy("/bin/sh", &sudo).unwrap();
    let caller = "SUDO_UID=65534 SUDO_GID=65534 SUDO_USER=nobody HOME=/root";
    let output = std::process::Command::new(&sudo)
        .arg("-c")
        .arg(format!("unset MARK; {caller} {line}; exit $?"))
        .env("MARK", "of the caller")
        .env("HOME", "/nonexistent")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn command_runs_as_the_user_who_called_sudo() {
    let script = "id -u; id -g; echo $HOME $MARK; exit 7";
    let (code, printed, messages) =
        as_called_by_nobody(&format!("{VRAMSCOPE} trace -- sh -c '{script}'"));
    assert!(printed.starts_with("65534\n65534\n/nonexistent of the caller\n"), "{printed}");
    assert_eq!(code, Some(7), "{messages}");
    assert!(messages.contains("running the command as nobody"), "{messages}");
    let (_, printed, _) =
        as_called_by_nobody(&format!("{VRAMSCOPE} trace --user root -- sh -c 'id -u; echo $HOME'"));
    assert!(printed.starts_with("0\n/root\n"), "{printed}");
    let (code, _, messages) = as_called_by_nobody(&format!("{VRAMSCOPE} trace --user eve -- id"));
    assert_eq!(code, Some(125), "{messages}");
    assert!(messages.contains("unknown user `eve`"), "{messages}");
}
