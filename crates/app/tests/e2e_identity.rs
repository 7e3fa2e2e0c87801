//! A process is a pid and a start time: another process that gets the pid inherits nothing.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod harness;

use harness::{Player, Stage, assert_same, compile, process, simulator};

/// Small, and long enough to be seen while it runs.
const LEAK: [&str; 5] = ["leak3", "--work-ms", "300", "--wait-ms", "300"];

/// Ends `first` by SIGKILL and starts a workload; `Some` if it got the same pid.
fn reuse_pid(stage: &Stage, first: Player, workload: &[&str]) -> Option<Player> {
    let pid = first.pid();
    first.signal(9);
    first.finish();
    // The next process gets the pid after the last one, unless another process is quicker.
    std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
    let second = stage.workload(workload);
    (second.pid() == pid).then_some(second)
}

#[test]
fn reused_pid_is_not_from_before_the_trace() {
    let stage = Stage::new();
    let driver = stage.driver.to_str().unwrap();
    let (mut tracer, second) = (0..100)
        .find_map(|_| {
            // Has the driver mapped when the trace begins, and does not call it again.
            let first = stage.hold(0, 1, 4096);
            let mut tracer = stage.start_trace(&["--driver", driver]);
            tracer.next();
            let second = reuse_pid(&stage, first, &LEAK)?;
            Some((tracer, second))
        })
        .expect("other processes cannot take the pid every time");
    let pid = second.pid();
    tracer.wait_for_process(pid, |process| process["live_bytes"] == 24 << 20);
    second.finish();
    let traced = tracer.stop();
    let process = process(traced.last(), pid);
    assert_eq!(process["before_trace"], false, "{process}");
    assert_same(process, &stage.oracle(pid));
    assert_eq!(process["exact"], true, "{process}");
}

#[test]
fn reused_pid_of_a_target_is_not_traced() {
    let stage = Stage::new();
    let driver = stage.driver.to_str().unwrap();
    let (tracer, second) = (0..100)
        .find_map(|_| {
            let first = stage.hold(0, 1, 4096);
            let pid = first.pid().to_string();
            // Links of this kind are not limited to a process by the kernel.
            let options = ["-p", &pid, "--driver", driver, "--attach-mode", "single"];
            let mut tracer = stage.start_trace(&options);
            tracer.next();
            let second = reuse_pid(&stage, first, &LEAK)?;
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
fn driver_that_could_not_be_attached_is_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let driver = folder.path().join("libcuda.so.1");
    let program = folder.path().join("map");
    compile("map.c", &program, &[]);
    std::fs::write(&driver, [0; 8192]).unwrap();
    let stage = Stage::with_driver(driver.clone());
    let mut tracer = stage.start_trace(&[]);
    tracer.next();
    let mut holder = Player::start(stage.command(&program).arg(&driver));
    holder.wait_ready();
    // Two reports later the file was looked at.
    tracer.next();
    tracer.next();
    holder.go();
    holder.finish();
    // The same file, with other content.
    std::fs::copy(simulator().join("libcuda.so.1"), &driver).unwrap();
    let player = stage.workload(&["spam", "--throughput", "100", "--duration", "60"]);
    let report =
        tracer.wait_for_process(player.pid(), |p| p["allocations_total"].as_u64() > Some(10));
    let process = process(&report, player.pid());
    // It called the driver before the probes were there.
    assert_eq!((&process["before_trace"], &process["exact"]), (&true.into(), &false.into()));
}
