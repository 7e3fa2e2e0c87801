//! The agent over time: degradation steps to stay within its budget, capabilities of its threads,
//! and what remains after it is killed and restarted.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::harness::agent::{Agent, check, serve};
use crate::harness::environment::port_of;
use crate::harness::files::{blocks, root, stderr};
use crate::harness::http::{self, Response};
use crate::harness::{ScopedProcess, TestEnv, VRAMSCOPE, isolated, send_signal, until};

/// Programs, maps and links that a process has in the kernel, by id.
#[derive(Debug)]
struct KernelObjects(Value);

impl KernelObjects {
    fn of(pid: u32) -> Self {
        Self(query_kernel(&format!("{{s: sorted(ids) for s, ids in bpf.owned({pid}).items()}}")))
    }

    fn count(&self, kind: &str) -> usize {
        self.0[kind].as_array().map_or(0, Vec::len)
    }

    /// Returns those that still exist.
    fn left(&self) -> Vec<String> {
        let each = "[f'{s} {n}' for s, ids in owned.items() for n in ids if bpf.exists(s, n)]";
        let found = query_kernel(&format!("(lambda owned: {each})({})", self.0));
        found.as_array().unwrap().iter().map(|one| one.as_str().unwrap().to_owned()).collect()
    }
}

/// Evaluates a Python expression over the benchmarks' view of BPF objects.
fn query_kernel(expression: &str) -> Value {
    let script = format!("import json; from lib import bpf; print(json.dumps({expression}))");
    let mut python = Command::new("python3");
    python.args(["-B", "-c", &script]).current_dir(root().join("experiments"));
    let output = python.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn live(process: &Value) -> u64 {
    process["live_bytes"].as_u64().unwrap()
}

#[test]
fn degradation_drops_stacks_and_keeps_memory_exact() {
    let env = TestEnv::new();
    let agent = Agent::start(&env, &["--max-memory", "20M"]);
    // Allocates and frees constantly and keeps one in ten, while the degradation steps follow each
    // other.
    let spam = ["spam", "--throughput", "500", "--duration", "30", "--free-ratio", "0.9"];
    let mut workload = env.workload(&[&spam[..], &["--hold-ms", "15000"]].concat());
    let pid = workload.pid();
    let steps = |agent: &Agent| agent.api("status")["degraded"].clone();
    let names = ["frame_pointer_stacks", "no_stacks", "merged_sites"];
    agent.until("the last step", |agent| (steps(agent) == serde_json::json!(names)).then_some(()));
    let messages = agent.messages();
    for words in ["frame-pointer stacks only", "call stacks disabled", "merged per process"] {
        assert!(messages.contains(words), "{messages}");
    }
    assert_eq!(agent.metric("vramscope_degradation_level"), [(String::new(), 3.0)]);
    let sites = agent.process(pid, |process| live(process) > 0)["sites"].clone();
    assert!(sites.as_array().unwrap().len() <= 2, "{sites}");
    // Before its end it is idle: the agent's last values are those of the driver's oracle.
    let mut last = Value::Null;
    agent.until("its end", |agent| {
        let snapshot = agent.api("snapshot");
        let mut processes = snapshot["processes"].as_array().unwrap().iter();
        let running = |process: &&Value| process["pid"] == pid && process["exited"] == false;
        last = processes.find(running).cloned().unwrap_or_else(|| last.take());
        workload.child.try_wait().unwrap().map(|_| ())
    });
    assert!(workload.finish().0.success());
    let oracle = env.oracle(pid);
    assert_eq!(last["live_bytes"], oracle["live_bytes"]);
    assert_eq!(last["allocations_total"], oracle["allocations"]);
    assert_eq!(last["frees_total"], oracle["frees"]);
    assert_eq!(agent.metric("vramscope_exact"), [(String::new(), 1.0)]);
    agent.end(15);
}

#[test]
fn killed_agent_leaves_no_probes_and_restart_is_exact() {
    // The simulated NVML reports the usage of processes, as the real one does.
    let env = TestEnv::new().sharing();
    let agent = Agent::start(&env, &[]);
    let mut early = env.workload(&[
        "--wait-start",
        "--hold-ms",
        "60000",
        "hold",
        "--count",
        "100",
        "--size",
        "65536",
    ]);
    early.wait_ready();
    early.go();
    let pid = early.pid();
    let seen = agent.process(pid, |process| process["live_allocations"] == 100);
    assert_eq!((&seen["before_trace"], live(&seen)), (&Value::Bool(false), 6_553_600));
    // Its programs, maps and links end with it, and so do its probes in the driver's code.
    let objects = KernelObjects::of(agent.pid());
    assert!(objects.count("prog") > 0 && objects.count("map") > 0, "{objects:?}");
    assert!(objects.count("link") > 0, "{objects:?}");
    let id = agent.pid();
    agent.end(9);
    assert!(!Path::new(&format!("/proc/{id}")).exists());
    let remaining = || objects.left().join(", ");
    until("the end of its objects", remaining, || objects.left().is_empty().then_some(()));

    let next = Agent::start(&env, &[]);
    let known = next.process(pid, |_| true);
    assert_eq!((&known["before_trace"], live(&known)), (&Value::Bool(true), 0));
    assert_eq!(next.metric("vramscope_exact"), [(String::new(), 0.0)]);
    // The driver reports memory that the ledger cannot know.
    next.until("the driver report", |agent| {
        let samples = agent.metric("vramscope_process_untracked_bytes");
        let own = samples.iter().find(|(labels, _)| labels.contains(&format!("pid=\"{pid}\"")))?;
        (own.1 >= 6_553_600.0).then_some(())
    });
    // Memory allocated after the restart is exact again.
    let mut late = env.workload(&[
        "--wait-start",
        "--hold-ms",
        "60000",
        "hold",
        "--count",
        "7",
        "--size",
        "4096",
    ]);
    late.wait_ready();
    late.go();
    let new = next.process(late.pid(), |process| process["live_allocations"] == 7);
    assert_eq!((&new["before_trace"], live(&new)), (&Value::Bool(false), 7 * 4096));
    next.end(15);
}

/// Starts the agent from its own file.
fn installed(env: &TestEnv, binary: &std::path::Path) -> Agent {
    let usual = serve(env, &[]);
    let mut command = env.command(binary.to_str().unwrap());
    Agent::run(command.args(usual.get_args()), env.dir.path())
}

#[test]
fn upgraded_agent_keeps_incidents_and_fires_alerts_again() {
    let env = TestEnv::new();
    let devices = env.dir.path().join("devices").display().to_string();
    let env = env.env("SIM_STATE_FILE", &devices);
    let binary = env.dir.path().join("vramscope");
    std::fs::copy(VRAMSCOPE, &binary).unwrap();
    let agent = installed(&env, &binary);
    let holder = env.hold(0, 100, 65536);
    let run_out_of_memory = |agent: &Agent| {
        let workload = env.workload(&["--device", "1", "oom", "--chunk-mb", "700"]);
        let pid = workload.pid();
        workload.finish();
        agent.until("the alert", |agent| {
            agent.messages().contains("alert firing: out_of_memory").then_some(())
        });
        pid
    };
    let pid = run_out_of_memory(&agent);
    // Other tests on this machine have incidents too.
    let ids = |agent: &Agent| {
        let found = agent.api("incidents");
        let all = found["incidents"].as_array().unwrap();
        let ours = all.iter().filter(|one| one["pid"] == pid);
        ours.map(|one| one["id"].clone()).collect::<Vec<_>>()
    };
    agent.until("the incident", |agent| (ids(agent).len() == 1).then_some(()));
    let before = ids(&agent);

    // As a package manager does: a new file replaces the running one, which continues.
    let new = env.dir.path().join("vramscope.new");
    std::fs::copy(VRAMSCOPE, &new).unwrap();
    std::fs::rename(&new, &binary).unwrap();
    let exe = |agent: &Agent| std::fs::read_link(format!("/proc/{}/exe", agent.pid())).unwrap();
    assert!(exe(&agent).to_string_lossy().ends_with("(deleted)"));
    let more = env.workload(&["--hold-ms", "60000", "hold", "--count", "7", "--size", "4096"]);
    agent.process(more.pid(), |process| process["live_allocations"] == 7);
    agent.end(15);

    // Memory allocated in between was not traced, and is reported as such.
    let between = env.hold(0, 100, 65536);
    let next = installed(&env, &binary);
    assert_eq!(exe(&next), binary.canonicalize().unwrap());
    assert_eq!(ids(&next), before);
    run_out_of_memory(&next);
    for process in [&holder, &more, &between] {
        let known = next.process(process.pid(), |_| true);
        assert_eq!((&known["before_trace"], live(&known)), (&Value::Bool(true), 0));
    }
    next.end(15);
}

#[test]
fn agent_threads_drop_capabilities() {
    // DAC_READ_SEARCH, SYS_PTRACE, SYS_RESOURCE, PERFMON, BPF.
    const TRACING: u64 = 1 << 2 | 1 << 19 | 1 << 24 | 1 << 38 | 1 << 39;
    let env = TestEnv::new();
    let status_file = env.dir.path().join("status");
    let script =
        format!("grep Cap /proc/self/status > {0}.part; mv {0}.part {0}", status_file.display());
    let config = format!(
        "[[alerts.receiver]]\ntype = \"command\"\ncommand = [\"/bin/sh\", \"-c\", \"{script}\"]\n\
         [[alerts.receiver]]\ntype = \"webhook\"\nurl = \"http://127.0.0.1:9/\"\n"
    );
    let agent = Agent::start_with(&env, &config, &[]);
    env.workload(&["--device", "1", "oom", "--chunk-mb", "700"]).finish();
    let capabilities = agent.until("the command", |_| std::fs::read_to_string(&status_file).ok());
    let of_command = capabilities.lines().filter(|line| !line.starts_with("CapBnd"));
    for line in of_command {
        let set = line.split_whitespace().last().unwrap();
        assert_eq!(set.trim_start_matches('0'), "", "{capabilities}");
    }
    let tasks = std::fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap();
    let mut names = Vec::new();
    for task in tasks {
        let task = task.unwrap().path();
        let status = std::fs::read_to_string(task.join("status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().to_owned()
        };
        let name = field("Name:");
        let capabilities = u64::from_str_radix(&field("CapPrm:"), 16).unwrap();
        let allowed = match name.as_str() {
            "capture" | "symbolizer" | "gpu-usage" => TRACING,
            _ => 0,
        };
        assert_eq!(capabilities & !allowed, 0, "{name} has too many: {capabilities:x}");
        assert_eq!(field("NoNewPrivs:"), "1", "{name}");
        names.push(name);
    }
    for name in [
        "vramscope",
        "capture",
        "http",
        "alerts",
        "incidents",
        "log",
        "alert-webhook",
        "alert-command",
    ] {
        assert!(names.iter().any(|thread| thread == name), "{name} is not among {names:?}");
    }
    agent.end(2);
}

#[test]
fn stuck_log_reader_does_not_block_the_agent() {
    let env = TestEnv::new();
    // This pipe is never read, and is full already.
    let (reader, writer) = std::io::pipe().unwrap();
    let mut fill = writer.try_clone().unwrap();
    let filler = std::thread::spawn(move || while fill.write_all(&[b'x'; 4096]).is_ok() {});
    let mut command = serve(&env, &[]);
    let mut child = ScopedProcess::start(command.stderr(writer));
    drop(command);
    let port = until("where it listens", String::new, || port_of(child.id()));
    let address = format!("127.0.0.1:{port}");
    let ready = || http::get(&address, "/readyz", "").ok().filter(Response::is_good);
    until("that it traces", String::new, ready);
    let workload = env.workload(&["--device", "1", "oom", "--chunk-mb", "700"]);
    let pid = workload.pid();
    workload.finish();
    let listed = || {
        let incidents = http::get(&address, "/api/v1/incidents", "").ok()?.json();
        incidents["incidents"].as_array()?.iter().find(|one| one["pid"] == pid).map(drop)
    };
    until("the incident", String::new, listed);
    send_signal(child.id(), 15);
    until("its end", String::new, || (!child.is_running()).then_some(()));
    assert!(child.wait().unwrap().success());
    drop(reader);
    filler.join().unwrap();
}

#[test]
fn agent_without_a_driver_is_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = isolated(VRAMSCOPE);
    command.args(["serve", "--listen", "127.0.0.1:0", "--state-dir"]).arg(dir.path().join("state"));
    let mut agent = Agent::begin(&mut command, dir.path());
    agent.until("its metrics", |agent| agent.get("/metrics").is_good().then_some(()));
    assert_eq!(agent.get("/readyz").status, 503);
    assert_eq!(agent.get("/healthz").status, 200);
    assert_eq!(agent.metric("vramscope_ready"), [(String::new(), 0.0)]);
    // A second agent on the same directory fails, and this one continues.
    let mut second = Command::new(VRAMSCOPE);
    second.args(["serve", "--listen", "127.0.0.1:0", "--state-dir"]).arg(dir.path().join("state"));
    let output = second.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("is in use by another agent"), "{text}");
    // The agent is the child of the isolating process, which exits with it.
    let children = format!("/proc/{0}/task/{0}/children", agent.pid());
    let child = std::fs::read_to_string(children).unwrap();
    send_signal(child.trim().parse().unwrap(), 15);
    assert!(agent.child.wait().unwrap().success(), "{}", agent.messages());
}

#[test]
fn pending_incident_is_written_at_shutdown() {
    let env = TestEnv::new();
    let agent = Agent::start(&env, &[]);
    let workload = env.workload(&["oom", "--chunk-mb", "700"]);
    let pid = workload.pid();
    workload.finish();
    agent.end(15);
    let dirs = std::fs::read_dir(env.dir.path().join("state/incidents")).unwrap();
    let names: Vec<_> = dirs.map(|one| one.unwrap().file_name()).collect();
    let of_it = |name: &&std::ffi::OsString| name.to_string_lossy().ends_with(&format!("pid{pid}"));
    assert_eq!(names.iter().filter(of_it).count(), 1, "{names:?}");
}

#[test]
fn all_config_errors_are_reported_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("agent.toml");
    let check = |text: &str, options: &[&str]| {
        std::fs::write(&file, text).unwrap();
        let output = check(&file).args(options).output().unwrap();
        (output.status.code().unwrap(), stderr(&output))
    };
    let wrong =
        "[http]\nlisten = \"0.0.0.0:9754\"\ntls_key_file = \"k.pem\"\n[trace]\nmax_cpu = -1.0\n";
    let (code, text) = check(wrong, &[]);
    assert_eq!(code, 2, "{text}");
    for part in [
        "reachable from other hosts",
        "set both tls_cert_file and tls_key_file",
        "percent of one core",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (code, text) = check("[http]\nlisten = \"127.0.0.1:9754\"\nlissten = 1\n", &[]);
    assert!(code == 2 && text.contains("lissten") && text.contains("line 3"), "{text}");
    let (code, text) = check("[trace]\nmax_memory = \"much\"\n", &[]);
    assert!(
        code == 2 && text.contains("max_memory") && text.contains("unknown size unit"),
        "{text}"
    );
    let (code, text) = check("", &["--listen", "192.0.2.1:80"]);
    assert!(code == 2 && text.contains("192.0.2.1:80 is reachable"), "{text}");
    assert_eq!(check("", &[]).0, 0);
}

#[test]
fn agent_runs_without_alerts_and_incidents() {
    let env = TestEnv::new();
    let text = "[alerts]\nenabled = false\n[incidents]\nenabled = false\n";
    let agent = Agent::start_with(&env, text, &[]);
    agent.until("the third snapshot", |agent| {
        (agent.api("status")["snapshots_total"].as_u64() >= Some(3)).then_some(())
    });
    agent.end(15);
}

#[test]
fn config_in_the_docs_is_valid() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("agent.toml");
    std::fs::write(&file, &blocks("docs/operations/agent.md", "toml")[0]).unwrap();
    let output = check(&file).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn gpus_are_reported_when_nvml_appears_late() {
    // The NVML library appears while the agent is running, as on a booting host.
    let env = TestEnv::new().sharing();
    let dir = env.dir.path().join("late");
    std::fs::create_dir(&dir).unwrap();
    let mut command = serve(&env, &[]);
    let agent = Agent::run(command.env("LD_LIBRARY_PATH", &dir), env.dir.path());
    let mut workload = env.workload(&[
        "--wait-start",
        "--hold-ms",
        "60000",
        "hold",
        "--count",
        "3",
        "--size",
        "4096",
    ]);
    workload.wait_ready();
    workload.go();
    let pid = workload.pid();
    agent.process(pid, |process| process["live_allocations"] == 3);
    assert_eq!(agent.metric("vramscope_gpu_total_bytes"), []);
    let nvml = env.driver.parent().unwrap().join("libnvidia-ml.so.1");
    std::fs::copy(nvml, dir.join("libnvidia-ml.so.1")).unwrap();
    agent.until("the GPUs", |agent| {
        let total = agent.metric("vramscope_gpu_total_bytes");
        (!total.is_empty()).then_some(())
    });
    agent.until("the GPU of the process", |agent| {
        let live = agent.metric("vramscope_process_live_bytes");
        let own = live.iter().find(|(labels, _)| labels.contains(&format!("pid=\"{pid}\"")))?;
        (own.0.contains("gpu=\"0\"") && own.1 == 12_288.0).then_some(())
    });
    agent.end(15);
}
