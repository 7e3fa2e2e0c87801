//! With losses: received + lost = calls made, by class; the actual value is within the bounds;
//! processes without any received record are counted. These tests trace all processes and would
//! count the workloads of other tests, so they run alone.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::process::Command;
use std::time::{Duration, Instant};

use capture::hooks::{CallSemantics, HOOKS, Hook};
use serde_json::Value;

use crate::harness::{
    TestEnv, Tracer, Workload, assert_same, compile, send_signal, simulator, until,
};

const KILL: i32 = 9;
const STOP: i32 = 19;
const CONTINUE: i32 = 18;

/// Room for 30 records.
const TINY_RING: [&str; 2] = ["--ring-size", "4096"];

/// Every workload with options that make it end soon, and the device memory.
const WORKLOADS: &[&str] = &[
    "leak3 --work-ms 1 --wait-ms 1",
    "train --steps 40 --step-ms 1",
    "stressor --procs 3 --duration 0.4 --sleep-ms 1",
    "threads --duration 0.4",
    "torch-clean --steps 20",
    "torch-leak --steps 20",
    "torch-spam --pairs 2000",
    "anomaly --iter-ms 1",
    "spam --throughput max --free-ratio 0.7 --count 20000",
    "hold --count 500 --size 4096",
    "oom --chunk-mb 100 --wait-ms 1",
    "contexts",
    "context-stack --depth 300",
    "capture-end --how invalid",
    "open-captures --then destroy --wait-ms 1",
    "kinds",
    "fork",
    "exec",
    "launches --iterations 50 --graphs 5 --reloads 5",
    "launch-late --iterations 50 --wait-ms 1",
    "copies --iterations 3",
    "objects --count 100 --in-context --failing 5",
    "ipc",
    "leaks fast-leak --no-wait",
    "dlopen-late --delay-ms 1 --work-ms 1 --wait-ms 1",
    "random --ops 3000 --threads 2 --devices 2",
];

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// Starts a trace of all processes, with a ring buffer that fills quickly.
fn start_trace(env: &TestEnv) -> Tracer {
    let driver = env.driver.to_str().unwrap();
    let mut tracer = env.start_trace(&[&["--driver", driver][..], &TINY_RING].concat());
    tracer.next();
    tracer
}

/// Runs workloads one after the other while the tracer is stopped, and returns all reports.
fn trace_stopped(env: &TestEnv, workloads: &[&str]) -> Vec<Value> {
    trace_while_stopped(env, || {
        for workload in workloads {
            let arguments: Vec<_> = workload.split(' ').collect();
            let (status, _) = env.workload(&arguments).finish();
            assert!(status.success(), "{workload}");
        }
    })
}

/// Runs a function while the tracer is stopped, and returns all reports.
fn trace_while_stopped(env: &TestEnv, run: impl FnOnce()) -> Vec<Value> {
    let tracer = start_trace(env);
    send_signal(tracer.child.id(), STOP);
    run();
    send_signal(tracer.child.id(), CONTINUE);
    let traced = tracer.stop();
    assert!(traced.status.success(), "{}", traced.messages);
    traced.reports
}

/// Returns the last state of all processes by pid; programs that were replaced by exec are left
/// out.
fn processes(reports: &[Value]) -> BTreeMap<u32, &Value> {
    let all = reports.iter().flat_map(|report| report["processes"].as_array().unwrap());
    let remaining = all.filter(|process| process["end_reason"] != "exec");
    remaining.map(|process| (number(&process["pid"]) as u32, process)).collect()
}

/// Returns the number of failed calls that are always recorded, up to that number plus failed graph
/// launches, which are recorded only in some processes.
fn failures(oracle: &Value) -> RangeInclusive<u64> {
    let count = |is_wanted: fn(&Hook) -> bool| -> u64 {
        let errors = oracle["errors"].as_array().unwrap().iter();
        let is_counted = |error: &&Value| {
            HOOKS.iter().any(|hook| is_wanted(hook) && error["function"] == hook.symbol)
        };
        errors.filter(is_counted).map(|error| number(&error["count"])).sum()
    };
    let always = count(|hook| {
        !matches!(
            hook.semantics,
            // Tracked inside the probes.
            CallSemantics::ContextSet
                | CallSemantics::ContextPush
                | CallSemantics::ContextPop
                | CallSemantics::ContextGet
                | CallSemantics::ContextDevice { .. }
                | CallSemantics::GraphLaunch
                // Not probed without `--kernels`.
                | CallSemantics::KernelByName
                | CallSemantics::KernelName
                | CallSemantics::KernelFunction
                | CallSemantics::Launch { .. }
                | CallSemantics::Copy(_)
        )
    });
    always..=always + count(|hook| matches!(hook.semantics, CallSemantics::GraphLaunch))
}

/// Fails unless received + lost = actual in each class, for a process with losses.
fn assert_process(process: &Value, oracle: &Value) {
    let (received, lost) = (&process["received_calls"], &process["uncertainty"]);
    let sum = |class: &str| number(&received[class]) + number(&lost[format!("lost_{class}")]);
    assert_eq!(sum("allocations"), number(&oracle["allocating_calls"]), "{process}\n{oracle}");
    assert_eq!(sum("frees"), number(&oracle["freeing_calls"]), "{process}\n{oracle}");
    let (found, actual) = (sum("failures"), failures(oracle));
    assert!(actual.contains(&found), "failures: {found} is not in {actual:?}: {process}\n{oracle}");
    let count = |value: &Value, fields: &[&str]| -> u64 {
        let objects = value["objects"].as_array().unwrap().iter();
        objects.flat_map(|kind| fields.iter().map(|field| number(&kind[field]))).sum()
    };
    let received = count(process, &["created", "destroyed", "unmatched_destroys"]);
    let lost_objects = process["lost_objects"].as_u64().unwrap_or(0);
    let actual = count(oracle, &["created", "destroyed"]);
    assert_eq!(received + lost_objects, actual, "objects: {process}\n{oracle}");
    let actual = number(&oracle["live_bytes"]);
    let bounds = number(&lost["live_bytes_min"])..=number(&lost["live_bytes_max"]);
    assert!(bounds.contains(&actual), "{actual} is not in {bounds:?}: {process}");
}

/// Fails unless the same holds for all processes together, listed or not.
fn assert_all(reports: &[Value], oracles: &BTreeMap<u32, Value>) {
    let lost = &reports.last().unwrap()["uncertainty"];
    assert!(lost.is_object(), "nothing was lost");
    let listed = processes(reports);
    for (pid, process) in &listed {
        match oracles.get(pid) {
            Some(oracle) if process["exact"] == true => assert_same(process, oracle),
            Some(oracle) => assert_process(process, oracle),
            None => {}
        }
    }
    let unlisted = || oracles.iter().filter(|(pid, _)| !listed.contains_key(pid));
    assert_eq!(number(&lost["lost_processes"]), unlisted().count() as u64);
    let replaced = |report: &Value| {
        let processes = report["processes"].as_array().unwrap();
        processes.iter().any(|process| process["end_reason"] == "exec")
    };
    // A program that was replaced by exec left no oracle.
    if reports.iter().any(replaced) {
        return;
    }
    for (class, calls) in [("allocations", "allocating_calls"), ("frees", "freeing_calls")] {
        // All calls of an exact process were received.
        let received = |(pid, process): (&u32, &&Value)| match &process["received_calls"][class] {
            Value::Null => oracles.get(pid).map_or(0, |oracle| number(&oracle[calls])),
            received => number(received),
        };
        let received: u64 = listed.iter().map(received).sum();
        let lost = number(&lost[format!("lost_{class}")]);
        let expected: u64 = oracles.values().map(|oracle| number(&oracle[calls])).sum();
        assert_eq!(received + lost, expected, "{class}");
    }
}

#[test]
fn received_and_lost_calls_add_up_for_every_workload() {
    for workload in WORKLOADS {
        println!("{workload}");
        let env = TestEnv::new().env("SIM_MEMORY", "8G");
        // The second workload finds the ring full.
        let reports = trace_stopped(&env, &[workload, "hold --count 100 --size 4096", workload]);
        assert_all(&reports, &env.oracles());
    }
}

/// Traces a workload in-process.
fn in_process(options: &[&str], workload: &str) -> (TestEnv, Vec<Value>) {
    let env = TestEnv::new().env("SIM_MEMORY", "8G");
    let arguments: Vec<_> = workload.split(' ').collect();
    let options = [options, &["--top", "1000000"]].concat();
    let traced = env.in_process(&options, &arguments);
    assert!(traced.status.success(), "{workload}: {}", traced.messages);
    (env, traced.reports)
}

#[test]
fn every_workload_in_process_matches_the_driver() {
    for workload in WORKLOADS {
        println!("{workload}");
        let (env, reports) = in_process(&["--ring-size", "64M"], workload);
        let last = reports.last().unwrap();
        // As with probes, 256 levels of a context stack are kept.
        let is_exact = !workload.starts_with("context-stack");
        assert_eq!(last["exact"], is_exact, "{workload}: {last}");
        let listed = processes(&reports);
        let oracles = env.oracles();
        assert!(!oracles.is_empty(), "{workload}");
        for (pid, oracle) in oracles {
            let process = listed.get(&pid).unwrap_or_else(|| panic!("{workload}: {pid} {last}"));
            if is_exact { assert_same(process, &oracle) } else { assert_process(process, &oracle) }
        }
    }
}

#[test]
fn received_and_lost_calls_add_up_in_process() {
    let mut lossy = 0;
    for workload in WORKLOADS {
        println!("{workload}");
        let (env, reports) = in_process(&TINY_RING, workload);
        for (pid, process) in processes(&reports) {
            match env.oracles().get(&pid) {
                Some(oracle) if process["exact"] == true => assert_same(process, oracle),
                Some(oracle) => {
                    assert_process(process, oracle);
                    lossy += 1;
                }
                None => {}
            }
        }
    }
    assert!(lossy > 5, "only {lossy} processes lost records");
}

#[test]
fn test_covers_all_simulator_workloads() {
    let help = Command::new(simulator().join("workload")).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let commands = help.split("Commands:").nth(1).unwrap().split("Options:").next().unwrap();
    let names: BTreeSet<_> = commands
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    let tested = WORKLOADS.iter().filter_map(|workload| workload.split(' ').next()).collect();
    assert_eq!(names, tested);
}

#[test]
fn received_and_lost_calls_add_up_for_random_programs() {
    for (seed, threads) in [(1, 1), (2, 1), (3, 1), (21, 1), (31, 3), (34, 3), (11, 8), (13, 8)] {
        println!("seed {seed}, {threads} threads");
        let env = TestEnv::new();
        let (seed, threads) = (seed.to_string(), threads.to_string());
        let workload =
            ["--seed", &seed, "random", "--ops", "5000", "--threads", &threads, "--devices", "2"];
        let traced = env.trace(&TINY_RING, &workload);
        assert!(traced.status.success(), "{}", traced.messages);
        assert_all(&traced.reports, &env.oracles());
    }
}

#[test]
fn processes_without_received_records_are_counted() {
    let env = TestEnv::new();
    let reports = trace_stopped(&env, &["leak3 --work-ms 1 --wait-ms 1"; 40]);
    let oracles = env.oracles();
    let lost = number(&reports.last().unwrap()["uncertainty"]["lost_processes"]);
    assert!(lost > 30, "only {lost} of 40 processes were lost");
    assert_eq!(oracles.len() as u64, processes(&reports).len() as u64 + lost);
    assert_all(&reports, &oracles);
}

#[test]
fn call_in_which_a_process_is_killed_is_counted_as_lost() {
    // Each call takes 400 ms, and the program does nothing else: it is killed inside of one.
    let env = TestEnv::new().env("SIM_LATENCY_US", "400000");
    let mut tracer = env.start_trace(&["--driver", env.driver.to_str().unwrap()]);
    tracer.next();
    let workload = env.workload(&["spam", "--count", "1000", "--free-ratio", "0"]);
    let pid = workload.pid();
    tracer.wait_for_process(pid, |own| own["live_allocations"].as_u64() > Some(1));
    send_signal(pid, KILL);
    let report = tracer.wait_for("the end of the process", |report| {
        let mut all = report["processes"].as_array().unwrap().iter();
        all.any(|own| own["pid"] == pid && own["exited"] == true)
    });
    let process = processes(std::slice::from_ref(&report))[&pid];
    assert_eq!(process["exact"], false, "{process}");
    let uncertainty = &process["uncertainty"];
    assert_eq!(uncertainty["lost_allocations"], 1, "{process}");
    assert!(number(&uncertainty["lost_allocated_bytes"]) > 0, "{process}");
    drop(workload);
}

#[test]
fn bytes_of_lost_arrays_and_pitched_memory_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("arrays");
    compile("arrays.c", &program, &["-ldl"]);
    let env = TestEnv::new();
    let reports = trace_while_stopped(&env, || {
        assert!(env.command(&program).status().unwrap().success());
    });
    let lost = number(&reports.last().unwrap()["uncertainty"]["lost_allocated_bytes"]);
    let live: u64 =
        processes(&reports).values().map(|process| number(&process["live_bytes"])).sum();
    let actual: u64 = env.oracles().values().map(|oracle| number(&oracle["live_bytes"])).sum();
    assert!(lost > 0 && live > 0, "{lost} bytes lost, {live} bytes live");
    assert_eq!(live + lost, actual);
}

#[test]
fn losses_of_a_process_that_execs_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("become");
    compile("become.c", &program, &["-ldl"]);
    let env = TestEnv::new();
    let tracer = start_trace(&env);
    let spam = ["spam", "--throughput", "max", "--count", "400000"];
    let mut workload =
        Workload::start(env.command(&program).arg(simulator().join("workload")).args(spam));
    workload.wait_ready();
    let pid = workload.pid();
    // The exec is among the records that fit, and calls are lost while they are read.
    send_signal(tracer.child.id(), STOP);
    workload.go();
    until("calls", String::new, || (processor_ticks(pid) > 10).then_some(()));
    send_signal(tracer.child.id(), CONTINUE);
    workload.finish();
    let traced = tracer.stop();
    let listed = processes(&traced.reports);
    assert_process(listed[&pid], &env.oracle(pid));
}

#[test]
fn lost_exec_is_implied_by_the_next_program() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("become");
    compile("become.c", &program, &["-ldl"]);
    let env = TestEnv::new();
    let mut tracer = start_trace(&env);
    let leak3 = ["leak3", "--work-ms", "3000", "--wait-ms", "1"];
    let mut workload =
        Workload::start(env.command(&program).arg(simulator().join("workload")).args(leak3));
    workload.wait_ready();
    let pid = workload.pid();
    tracer.wait_for("the first program", |report| {
        report["processes"].as_array().unwrap().iter().any(|process| process["pid"] == pid)
    });
    send_signal(tracer.child.id(), STOP);
    let (status, _) = env.workload(&["spam", "--throughput", "max", "--count", "200"]).finish();
    assert!(status.success(), "the workload that fills the ring failed");
    workload.go();
    let exe = format!("/proc/{pid}/exe");
    until("the exec", String::new, || {
        std::fs::read_link(&exe).ok().filter(|exe| exe.ends_with("workload"))
    });
    send_signal(tracer.child.id(), CONTINUE);
    workload.finish();
    let traced = tracer.stop();
    let mut ended =
        traced.reports.iter().flat_map(|report| report["processes"].as_array().unwrap());
    assert!(ended.any(|process| process["pid"] == pid && process["end_reason"] == "exec"));
    assert_process(processes(&traced.reports)[&pid], &env.oracle(pid));
}

/// Returns the processor time of a process, in hundredths of a second.
fn processor_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
    fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

/// Returns the anonymous memory of a process, in bytes.
fn anonymous_memory(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

#[test]
fn backlog_is_read_in_batches_of_bounded_size() {
    let env = TestEnv::new();
    let driver = env.driver.to_str().unwrap();
    let options = ["--driver", driver, "--ring-size", "134217728", "--stacks", "off"];
    let mut tracer = env.start_trace(&options);
    tracer.next();
    let pid = tracer.child.id();
    let before = anonymous_memory(pid).unwrap();
    send_signal(pid, STOP);
    let spam = ["spam", "--throughput", "max", "--free-ratio", "1", "--count", "800000"];
    let workload = env.workload(&spam);
    let target = workload.pid();
    workload.finish();
    send_signal(pid, CONTINUE);
    let end = Instant::now() + Duration::from_mins(1);
    let mut most = 0;
    let oracle = env.oracle(target);
    // The backlog is drained while this thread watches.
    let watcher = std::thread::spawn(move || {
        while Instant::now() < end {
            let Some(now) = anonymous_memory(pid) else { break };
            most = most.max(now);
            std::thread::sleep(Duration::from_millis(1));
        }
        most
    });
    tracer.wait_for_process(target, |process| process["exited"] == true);
    let traced = tracer.stop();
    assert!(traced.status.success(), "{}", traced.messages);
    let used = watcher.join().unwrap().saturating_sub(before) >> 20;
    assert!(used < 100, "{used} MiB for {} calls", oracle["allocating_calls"]);
}
