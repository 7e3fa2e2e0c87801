//! In-process tracing: stacks, other tools on the same functions, and a program that is not affected.
//! Other test files compare its results with the oracle, next to those of the probes.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::harness::{self, TestEnv, TraceResult, VRAMSCOPE, process, simulator, until};

/// Traces a workload in-process and compares the last report with the oracle.
fn trace_exact(env: &TestEnv, options: &[&str], workload: &[&str]) -> TraceResult {
    let traced = env.in_process(options, workload);
    traced.assert_matches_oracle(env);
    traced
}

#[test]
fn call_sites_in_process_have_frames() {
    for stacks in ["fp", "full"] {
        let env = TestEnv::new();
        let traced = trace_exact(&env, &["--stacks", stacks], &["leak3"]);
        let last = traced.last();
        assert_eq!(
            (&last["allocations_without_stack"], &last["lost_stacks"]),
            (&0.into(), &0.into())
        );
        let frames = last["sites"][0]["frames"].to_string();
        assert!(stacks == "fp" || frames.contains("leak3"), "{frames}");
    }
}

#[test]
fn known_stacks_in_process_are_sent_once() {
    let env = TestEnv::new();
    // 40,000 calls from two lines: a copy per call would overflow the ring for stacks.
    let workload = ["spam", "--throughput", "20000", "--duration", "1"];
    let traced = trace_exact(&env, &["--stack-ring-size", "2M"], &workload);
    assert_eq!(traced.last()["lost_stacks"], 0);
}

#[test]
fn probes_and_library_work_on_the_same_functions() {
    // A separate driver file and tracer: the probes would hide the stacks of other tests.
    let dir = tempfile::tempdir().unwrap();
    let driver = dir.path().join("libcuda.so.1");
    std::fs::copy(simulator().join("libcuda.so.1"), &driver).unwrap();
    let env = TestEnv::with_driver(driver.clone());
    for first in ["probes", "library"] {
        let mut tracer = None;
        let mut probe = || {
            let mut command = harness::isolated(VRAMSCOPE);
            command.args(["trace", "--json", "--interval", "100ms", "--driver"]).arg(&driver);
            let mut probes = harness::Tracer::start(&mut command);
            probes.next();
            tracer = Some(probes);
        };
        if first == "probes" {
            probe();
        }
        let mut command = env.command(VRAMSCOPE);
        command.args(["run", "--json", "--", simulator().join("workload").to_str().unwrap()]);
        command.args(["threads", "--threads", "3", "--duration", "3"]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        if first == "library" {
            std::thread::sleep(Duration::from_millis(700));
            probe();
        }
        let output = child.wait_with_output().unwrap();
        drop(tracer.take());
        assert!(output.status.success(), "{first}: {output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        let pid = last["processes"][0]["pid"].as_u64().unwrap() as u32;
        harness::assert_same(process(&last, pid), &env.oracle(pid));
    }
}

#[test]
fn program_continues_when_the_collector_is_killed() {
    let env = TestEnv::new();
    let mut command = env.command(VRAMSCOPE);
    command.args(["run", "-v", "--json", "--ring-size", "4096", "--"]);
    command.arg(simulator().join("workload"));
    command.args(["threads", "--threads", "3", "--duration", "2"]);
    let errors = env.dir.path().join("errors");
    command.stderr(std::fs::File::create(&errors).unwrap());
    let mut collector = command.stdout(Stdio::null()).spawn().unwrap();
    let messages = || std::fs::read_to_string(&errors).unwrap();
    until("a traced process", messages, || messages().contains("in-process").then_some(()));
    collector.kill().unwrap();
    collector.wait().unwrap();
    // The program writes its oracle when it exits.
    let oracle = until("the oracle", String::new, || env.oracles().into_values().next());
    assert!(oracle["allocations"].as_u64() > Some(100), "{oracle}");
}

#[test]
fn child_of_a_killed_collector_is_not_traced() {
    let env = TestEnv::new();
    let (started, killed) = (env.dir.path().join("started"), env.dir.path().join("killed"));
    let script = format!(
        "touch {}; until [ -e {} ]; do sleep 0.1; done; exec {} leak3",
        started.display(),
        killed.display(),
        simulator().join("workload").display()
    );
    let mut command = env.command(VRAMSCOPE);
    command.args(["run", "--", "sh", "-c", &script]);
    let mut collector = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the shell", String::new, || started.exists().then_some(()));
    collector.kill().unwrap();
    collector.wait().unwrap();
    std::fs::write(&killed, "").unwrap();
    let oracle = until("the oracle", String::new, || env.oracles().into_values().next());
    assert_eq!((&oracle["allocations"], &oracle["frees"]), (&3.into(), &2.into()));
}

#[test]
fn python_program_waits_only_briefly_for_the_collector() {
    let env = TestEnv::new();
    let program = harness::files::fixture("stacks/chain.py");
    // The parent of the shell is the collector. Without an answer from it, calls have no Python
    // frames, and are still recorded.
    let script = format!(
        "kill -STOP $PPID; timeout 60 python3 {program}; code=$?; kill -CONT $PPID; exit $code"
    );
    let (last, output) = run(&env, &[], &["sh", "-c", &script]);
    assert!(output.status.success(), "{output:?}");
    let (pid, oracle) = env.oracles().into_iter().next().unwrap();
    assert_eq!(last["exact"], true, "{last}");
    harness::assert_same(process(&last, pid), &oracle);
}

#[test]
fn directory_of_a_killed_collector_is_removed() {
    let env = TestEnv::new();
    let run = |command: &[&str]| {
        let mut run = env.command(VRAMSCOPE);
        run.args(["run", "--"]).args(command).stdout(Stdio::null()).stderr(Stdio::null());
        run.spawn().unwrap()
    };
    let mut collector = run(&["sleep", "5"]);
    let dir = Path::new("/dev/shm").join(format!("vramscope-{}-0", collector.id()));
    until("its directory", String::new, || dir.join("control").exists().then_some(()));
    assert!(run(&["true"]).wait().unwrap().success());
    assert!(dir.exists(), "the directory of a running collector stays");
    collector.kill().unwrap();
    collector.wait().unwrap();
    assert!(run(&["true"]).wait().unwrap().success());
    assert!(!dir.exists());
}

#[test]
fn configured_injection_library_is_also_started() {
    let dir = tempfile::tempdir().unwrap();
    let (library, proof) = (dir.path().join("libother.so"), dir.path().join("proof"));
    harness::compile("inject/chained.c", &library, &["-shared", "-fPIC"]);
    let env = TestEnv::new()
        .env("CUDA_INJECTION64_PATH", library.to_str().unwrap())
        .env("INJECTION_PROOF", proof.to_str().unwrap());
    trace_exact(&env, &[], &["leak3"]);
    assert_eq!(std::fs::read_to_string(&proof).unwrap(), "started\n");
}

#[test]
fn command_without_cuda_is_reported() {
    let env = TestEnv::new();
    let output = env.command(VRAMSCOPE).args(["run", "--json", "--", "true"]).output().unwrap();
    assert!(output.status.success());
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(messages.contains("no process called cuInit"), "{messages}");
}

#[test]
fn library_of_another_build_is_named() {
    let env = TestEnv::new();
    let library = Path::new(VRAMSCOPE).with_file_name("libvramscope_inject.so");
    let mut other = std::fs::read(&library).unwrap();
    let mark = b"vramscope layout is ";
    let at = other.windows(mark.len()).position(|part| part == mark).unwrap() + mark.len();
    other[at] ^= 1;
    let copy = env.dir.path().join("libvramscope_inject.so");
    std::fs::write(&copy, &other).unwrap();
    let env = env.env("VRAMSCOPE_INJECT_LIBRARY", copy.to_str().unwrap());
    let mut command = env.command(VRAMSCOPE);
    let output = command.args(["run", "--", "true"]).output().unwrap();
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(messages.contains("not of the same build as this vramscope"), "{messages}");
    assert_eq!(output.status.code(), Some(125));
    // Replaced while the command runs.
    let other = env.dir.path().join("other");
    std::fs::rename(&copy, &other).unwrap();
    std::fs::copy(&library, &copy).unwrap();
    let workload = simulator().join("workload");
    let script =
        format!("mv {} {}; exec {} leak3", other.display(), copy.display(), workload.display());
    let (last, output) = run(&env, &[], &["sh", "-c", &script]);
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(messages.contains("it loaded a library of another build"), "{messages}");
    assert_untraced(&last);
}

#[test]
fn unprivileged_user_can_trace_in_process() {
    let env = TestEnv::new();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(env.dir.path(), open).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs"])
        .arg(VRAMSCOPE)
        .args(["run", "--json", "--", simulator().join("workload").to_str().unwrap(), "kinds"])
        .env("LD_LIBRARY_PATH", env.driver.parent().unwrap())
        .env("SIM_ORACLE_DIR", env.dir.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(last["exact"], true, "{last}");
    let (pid, oracle) = env.oracles().into_iter().next().unwrap();
    harness::assert_same(process(&last, pid), &oracle);
}

/// Runs `vramscope run --json … -- PROGRAM`. Returns the last report and the output.
fn run(env: &TestEnv, options: &[&str], program: &[&str]) -> (Value, Output) {
    let mut command = env.command(VRAMSCOPE);
    let output =
        command.args(["run", "--json"]).args(options).arg("--").args(program).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_else(|| panic!("no report: {output:?}"));
    (serde_json::from_str(last).unwrap(), output)
}

/// Checks that a report counts one process that was not traced.
fn assert_untraced(report: &Value) {
    assert_eq!(
        (&report["exact"], &report["uncertainty"]["lost_processes"]),
        (&false.into(), &1.into())
    );
}

#[test]
fn threads_signals_forks_and_exit_inside_calls_are_safe() {
    for mode in ["threads", "signals", "exit", "fork", "filtered"] {
        let env = TestEnv::new();
        let program = env.dir.path().join("stress");
        harness::compile("inject/stress.c", &program, &["-ldl", "-pthread"]);
        let (last, output) = run(&env, &["--ring-size", "64M"], &[program.to_str().unwrap(), mode]);
        assert!(output.status.success(), "{mode}: {output:?}");
        let (pid, oracle) = env.oracles().into_iter().next().unwrap();
        let process = process(&last, pid);
        assert_eq!(process["end_reason"], "exit", "{mode}");
        // At the exit, threads may be inside calls that the oracle already has.
        if mode != "exit" {
            assert_eq!(last["exact"], true, "{mode}: {last}");
            harness::assert_same(process, &oracle);
        }
    }
}

/// Builds a program that calls the driver under unusual conditions.
fn unusual(env: &TestEnv) -> String {
    let program = env.dir.path().join("unusual");
    harness::compile("inject/unusual.c", &program, &["-ldl"]);
    program.to_str().unwrap().to_owned()
}

#[test]
fn process_that_cannot_be_patched_runs_untraced() {
    for (mode, reason) in [
        ("seccomp", "the code of its CUDA driver cannot be made writable"),
        ("no-room", "no free addresses near its CUDA driver"),
    ] {
        let env = TestEnv::new();
        let (last, output) = run(&env, &[], &[&unusual(&env), mode]);
        assert!(output.status.success(), "{mode}: {output:?}");
        let messages = String::from_utf8_lossy(&output.stderr);
        assert!(messages.contains(reason), "{mode}: {messages}");
        assert_untraced(&last);
        let oracle = env.oracles().into_values().next().unwrap();
        assert_eq!((&oracle["allocations"], &oracle["frees"]), (&3.into(), &3.into()), "{mode}");
    }
}

#[test]
fn driver_that_the_program_unloads_stays_traced() {
    let env = TestEnv::new();
    let (last, output) = run(&env, &[], &[&unusual(&env), "dlclose"]);
    assert!(output.status.success(), "{output:?}");
    let (pid, oracle) = env.oracles().into_iter().next().unwrap();
    assert_eq!((&last["exact"], &oracle["allocations"]), (&true.into(), &3.into()));
    harness::assert_same(process(&last, pid), &oracle);
}

#[test]
fn unpatchable_function_is_named_and_inexact() {
    let dir = tempfile::tempdir().unwrap();
    let (driver, program) = (dir.path().join("libcuda.so.1"), dir.path().join("call"));
    let options = ["-shared", "-fPIC", "-fcf-protection=none", "-Wl,-soname,libcuda.so.1"];
    harness::compile("inject/odd_driver.c", &driver, &options);
    harness::compile("inject/call.c", &program, &["-ldl"]);
    let env = TestEnv::with_driver(driver);
    let (last, output) = run(&env, &[], &[program.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(messages.contains("not recognized: cuMemAlloc_v2"), "{messages}");
    assert_eq!(last["exact"], false, "{last}");
}

/// Returns the file offset of a function.
fn file_offset(library: &Path, function: &str) -> u64 {
    use object::{Object, ObjectSegment, ObjectSymbol};
    let data = std::fs::read(library).unwrap();
    let elf = object::File::parse(&*data).unwrap();
    let symbol = elf.dynamic_symbols().find(|symbol| symbol.name() == Ok(function)).unwrap();
    let address = symbol.address();
    let holds = |part: &object::Segment<'_, '_>| {
        (part.address()..part.address() + part.size()).contains(&address)
    };
    let segment = elf.segments().find(holds).unwrap();
    address - segment.address() + segment.file_range().0
}

#[test]
fn foreign_probe_at_the_entry_is_harmless_or_reported() {
    for (driver, hides) in [(".", false), ("cmpl", true)] {
        let env = TestEnv::with_copy_of(&simulator().join(driver));
        let prober = env.dir.path().join("probe");
        harness::compile("stacks/probe.c", &prober, &[]);
        let offset = format!("{:x}", file_offset(&env.driver, "cuMemAlloc_v2"));
        let mut command = env.command(VRAMSCOPE);
        command.args(["run", "-v", "--json", "--", simulator().join("workload").to_str().unwrap()]);
        command.args(["threads", "--threads", "3", "--duration", "12"]);
        let errors = env.dir.path().join("errors");
        command.stderr(std::fs::File::create(&errors).unwrap());
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        let messages = || std::fs::read_to_string(&errors).unwrap();
        until("the library in the process", messages, || {
            messages().contains("in-process").then_some(())
        });
        let mut command = env.command(prober);
        let mut probes = harness::Workload::start(command.arg(&env.driver).arg(offset));
        probes.wait_ready();
        let output = child.wait_with_output().unwrap();
        drop(probes);
        assert!(output.status.success(), "{driver}: {output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        let messages = messages();
        assert_eq!(messages.contains("hide calls of cuMemAlloc_v2"), hides, "{messages}");
        assert_eq!(last["exact"], !hides, "{driver}");
        if !hides {
            let (pid, oracle) = env.oracles().into_iter().next().unwrap();
            harness::assert_same(process(&last, pid), &oracle);
        }
    }
}

#[test]
fn recording_of_run_replays_to_the_same_report() {
    let env = TestEnv::new();
    let file = env.dir.path().join("run.arrows");
    let options = ["--record", file.to_str().unwrap()];
    let (last, _) = run(&env, &options, &[simulator().join("workload").to_str().unwrap(), "kinds"]);
    let replay = Command::new(VRAMSCOPE)
        .args(["replay", "--format", "json", file.to_str().unwrap()])
        .output()
        .unwrap();
    let replayed: Value = serde_json::from_slice(&replay.stdout).unwrap();
    assert_eq!((&last["source"], &replayed), (&"in_process".into(), &last));
}

#[test]
fn full_shared_memory_leaves_the_program_untraced() {
    let env = TestEnv::new();
    let script = format!(
        "mount -t tmpfs -o size=1M tmpfs /dev/shm && exec {VRAMSCOPE} run --json -- {} leak3",
        simulator().join("workload").display()
    );
    let mut command = env.command("unshare");
    let output = command.args(["--mount", "sh", "-c", &script]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(messages.contains("no shared memory for its records"), "{messages}");
    let text = String::from_utf8(output.stdout).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_untraced(&last);
    let oracle = env.oracles().into_values().next().unwrap();
    assert_eq!((&oracle["allocations"], &oracle["frees"]), (&3.into(), &2.into()));
}

#[test]
fn program_continues_after_the_trace_has_ended() {
    let env = TestEnv::new();
    let workload = simulator().join("workload");
    let program = [workload.to_str().unwrap(), "threads", "--threads", "3", "--duration", "2"];
    let (last, output) = run(&env, &["--duration", "700ms", "--ring-size", "64K"], &program);
    assert!(output.status.success(), "{output:?}");
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(messages.contains("no longer traced"), "{messages}");
    assert_eq!(last["processes"][0]["exited"], false);
    let oracle = until("the oracle", String::new, || env.oracles().into_values().next());
    assert!(oracle["allocations"].as_u64() > Some(100), "{oracle}");
}
