//! Threads that die: every command and the agent detect it, name the thread, and exit with an
//! error.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::agent::{Agent, serve, settings};
use crate::harness::files::stderr;
use crate::harness::{
    self, ScopedProcess, TestEnv, VRAMSCOPE, Workload, send_signal, simulator, until,
};

/// Time limit for the exit of a process with a dead thread.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A fault that the test triggers.
struct Fault {
    file: PathBuf,
    value: String,
}

impl Fault {
    fn new(env: &TestEnv, kind: &str, thread: &str) -> Self {
        let file = env.dir.path().join("fault");
        let value = format!("{kind}:{thread}:{}", file.display());
        Self { file, value }
    }

    fn happen(&self) {
        std::fs::write(&self.file, "").unwrap();
    }
}

/// A running vramscope command, with its output in files.
struct Running {
    child: ScopedProcess,
    out: PathBuf,
    messages: PathBuf,
}

impl Running {
    fn start(env: &TestEnv, fault: &Fault, command: &mut Command) -> Self {
        let path = |name: &str| env.dir.path().join(name);
        let (out, messages) = (path("out"), path("messages"));
        env.limit(command).env("VRAMSCOPE_FAULT", &fault.value).stdin(Stdio::null());
        command.stdout(std::fs::File::create(&out).unwrap());
        command.stderr(std::fs::File::create(&messages).unwrap());
        Self { child: ScopedProcess::start(command), out, messages }
    }

    fn messages(&self) -> String {
        std::fs::read_to_string(&self.messages).unwrap()
    }

    /// Returns the complete lines of its output so far.
    fn reports(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.out).unwrap();
        let complete = text.rsplit_once('\n').map_or("", |(complete, _)| complete);
        complete.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn until<T>(&self, what: &str, poll: impl FnMut() -> Option<T>) -> T {
        until(what, || self.messages(), poll)
    }

    /// Waits for its end and returns the exit code.
    fn code(&mut self) -> i32 {
        let end = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            assert!(Instant::now() < end, "still running:\n{}", self.messages());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Starts a workload that allocates and frees forever.
fn spam(env: &TestEnv) -> Workload {
    env.workload(&["spam", "--throughput", "500", "--duration", "120", "--free-ratio", "0.9"])
}

#[test]
fn trace_exits_with_2_when_capture_panics() {
    let env = TestEnv::new();
    let recording = env.dir.path().join("run.arrows");
    let workload = spam(&env);
    let fault = Fault::new(&env, "panic", "capture");
    let mut command = Command::new(VRAMSCOPE);
    command.args(["trace", "--json", "--interval", "100ms", "--record", text(&recording)]);
    command.arg("--driver").arg(&env.driver).args(["-p", &workload.pid().to_string()]);
    let mut trace = Running::start(&env, &fault, &mut command);
    let seen = |report: &Value| report["processes"][0]["allocations_total"].as_u64() > Some(100);
    trace.until("reports", || trace.reports().last().is_some_and(seen).then_some(()));
    assert!(trace.messages().contains("VRAMSCOPE_FAULT is set"), "{}", trace.messages());
    fault.happen();
    assert_eq!(trace.code(), 2, "{}", trace.messages());
    let messages = trace.messages();
    assert!(
        messages.contains("error: the thread `capture` panicked: injected fault"),
        "{messages}"
    );
    let reports = trace.reports();
    let last = reports.last().unwrap();
    assert_eq!(last["exact"], false, "{last}");
    assert!(last["uncertainty"]["capture_end_time"].is_string(), "{last}");
    assert_eq!(last["uncertainty"]["capture_end_time"], last["time"]);
    assert_eq!(last["processes"][0]["exact"], false);
    // The recording has the state of the reports, and ends there.
    let mut replay = Command::new(VRAMSCOPE);
    replay.arg("replay").arg(&recording).args(["--format", "json"]);
    let replay = replay.output().unwrap();
    assert!(replay.status.success(), "{}", stderr(&replay));
    assert!(stderr(&replay).contains("truncated at byte"), "{}", stderr(&replay));
    let replayed: Value = serde_json::from_slice(&replay.stdout).unwrap();
    let total = |report: &Value| report["processes"][0]["allocations_total"].as_u64().unwrap();
    assert_eq!(total(&replayed), total(last), "{messages}");
    assert!(workload.child.is_running(), "the traced program noticed");
}

#[test]
fn record_and_kernels_exit_with_2_when_capture_panics() {
    let env = TestEnv::new();
    let workload = spam(&env);
    let recording = env.dir.path().join("run.arrows");
    for verb in [&["record", "-v", "-o", text(&recording)][..], &["kernels", "-v", "--json"]] {
        let fault = Fault::new(&env, "panic", "capture");
        let mut command = Command::new(VRAMSCOPE);
        command.args(verb).arg("--driver").arg(&env.driver);
        command.args(["-p", &workload.pid().to_string()]);
        let mut running = Running::start(&env, &fault, &mut command);
        running.until("the probes", || running.messages().contains("attached to").then_some(()));
        fault.happen();
        assert_eq!(running.code(), 2, "{verb:?}: {}", running.messages());
        let messages = running.messages();
        assert!(messages.contains("the thread `capture` panicked: injected fault"), "{messages}");
        std::fs::remove_file(&fault.file).unwrap();
    }
    let replay = Command::new(VRAMSCOPE).arg("report").arg(&recording).output().unwrap();
    assert!(replay.status.success(), "{}", stderr(&replay));
}

#[test]
fn command_survives_a_capture_panic() {
    let env = TestEnv::new();
    let fault = Fault::new(&env, "panic", "capture");
    let mut command = env.command(VRAMSCOPE);
    command.args(["trace", "-v", "--interval", "100ms", "--driver"]).arg(&env.driver).arg("--");
    command.arg(simulator().join("workload"));
    command.args(["hold", "--count", "3", "--size", "4096", "--wait-ms", "120000"]);
    let mut trace = Running::start(&env, &fault, &mut command);
    trace.until("the command", || trace.messages().contains("attached to").then_some(()));
    fault.happen();
    assert_eq!(trace.code(), 125, "{}", trace.messages());
    let messages = trace.messages();
    let (_, rest) = messages.split_once("the command (pid ").expect(&messages);
    let (pid, rest) = rest.split_once(')').unwrap();
    assert!(rest.starts_with(" is still running, no longer traced"), "{messages}");
    send_signal(pid.parse().unwrap(), 15);
    let mut report = String::new();
    std::fs::File::open(&trace.out).unwrap().read_to_string(&mut report).unwrap();
    assert!(report.contains("NOT EXACT: capture ended at"), "{report}");
    // The driver writes its oracle when the command exits normally.
    until("the end of the command", || messages.clone(), || env.oracles().into_values().next());
}

/// Fails unless the agent is never ready again, and exits with code 2.
fn ends_with_2(agent: &mut Agent) -> String {
    let end = Instant::now() + TIMEOUT;
    loop {
        if let Some(status) = agent.child.try_wait().unwrap() {
            assert_eq!(status.code(), Some(2), "{}", agent.messages());
            return agent.messages();
        }
        let was_noticed = agent.messages().contains(" ERROR ");
        let response = harness::http::get(&agent.address, "/readyz", "");
        let is_ready = response.is_ok_and(|response| response.status == 200);
        assert!(!(was_noticed && is_ready), "ready after the error:\n{}", agent.messages());
        assert!(Instant::now() < end, "still running:\n{}", agent.messages());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn agent_exits_with_2_when_capture_panics() {
    let env = TestEnv::new();
    let workload = spam(&env);
    let fault = Fault::new(&env, "panic", "capture");
    let mut command = serve(&env, &[]);
    command.env("VRAMSCOPE_FAULT", &fault.value);
    let mut agent = Agent::run(&mut command, env.dir.path());
    agent.process(workload.pid(), |process| process["allocations_total"].as_u64() > Some(100));
    fault.happen();
    agent.until("the reason", |agent| {
        agent.messages().contains(" ERROR the thread `capture` panicked").then_some(())
    });
    let messages = ends_with_2(&mut agent);
    assert!(messages.contains("panicked: injected fault; the agent exits"), "{messages}");
    assert!(workload.child.is_running(), "the traced program noticed");
}

/// Returns a configuration that starts every thread of the agent. Nothing listens on port 9.
fn everything(env: &TestEnv) -> String {
    format!(
        "[[alerts.receiver]]\ntype = 'webhook'\nurl = 'http://127.0.0.1:9/'\n\
         [[alerts.receiver]]\ntype = 'command'\ncommand = ['/bin/true']\n\
         [kubernetes]\nkubelet_url = 'http://127.0.0.1:9/'\n\
         [exporters.otlp]\nendpoint = 'http://127.0.0.1:9/'\ninterval = '1s'\n\
         [exporters.parquet]\ndir = '{}'\ninterval = '1s'\n",
        env.dir.path().join("tables").display()
    )
}

/// Starts an agent with every thread, one of which fails on request.
fn agent_with(env: &TestEnv, fault: &Fault) -> Agent {
    let config = settings(env, &everything(env));
    let mut command = serve(env, &["--config", &config]);
    command.env("VRAMSCOPE_FAULT", &fault.value);
    Agent::run(&mut command, env.dir.path())
}

#[test]
fn agent_exits_with_2_when_any_of_its_threads_panics() {
    let threads = [
        "http",
        "alerts",
        "alert-webhook",
        "alert-command",
        "incidents",
        "kubelet",
        "export-otlp",
        "send-otlp",
        "export-parquet",
        "log",
    ];
    for batch in threads.chunks(4) {
        std::thread::scope(|scope| {
            for thread in batch {
                scope.spawn(move || agent_exits_when_thread_panics(thread));
            }
        });
    }
}

fn agent_exits_when_thread_panics(thread: &str) {
    let env = TestEnv::new();
    let fault = Fault::new(&env, "panic", thread);
    let mut agent = agent_with(&env, &fault);
    let names = threads(&agent);
    assert!(names.iter().any(|name| thread.starts_with(name)), "{thread}: {names:?}");
    fault.happen();
    let reason = format!("the thread `{thread}` panicked: injected fault");
    let is_noticed = |line: &str| line.contains(" ERROR ") && line.contains(&reason);
    let poll = || agent.messages().lines().any(is_noticed).then_some(());
    until(&reason, || agent.messages(), poll);
    ends_with_2(&mut agent);
}

/// Returns the names of its threads; the kernel keeps 15 characters.
fn threads(agent: &Agent) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap();
    // Threads may exit meanwhile.
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        let name = std::fs::read_to_string(task.ok()?.path().join("comm")).ok()?;
        Some(name.trim_end().to_owned())
    };
    tasks.filter_map(name).collect()
}

#[test]
fn agent_exits_despite_a_hanging_thread() {
    let env = TestEnv::new();
    let fault = Fault::new(&env, "hang", "export-parquet");
    let mut agent = agent_with(&env, &fault);
    fault.happen();
    // It hangs now, or when it checks whether the agent is shutting down.
    send_signal(agent.pid(), 15);
    let messages = ends_with_2(&mut agent);
    assert!(messages.contains("thread `export-parquet` did not stop"), "{messages}");
}

#[test]
fn html_report_panic_is_reported_and_agent_continues() {
    let env = TestEnv::new();
    let fault = Fault::new(&env, "panic", "page");
    let agent = agent_with(&env, &fault);
    fault.happen();
    send_signal(agent.pid(), 10);
    let reason = "could not be written: the thread `page` panicked: injected fault";
    agent.until("the message", |agent| agent.messages().contains(reason).then_some(()));
    let incidents = env.dir.path().join("state/incidents");
    agent.until("the incident", |_| {
        let incident = std::fs::read_dir(&incidents).ok()?.next()?.ok()?.path();
        let object = std::fs::read_to_string(incident.join("incident.json")).ok()?;
        let object: Value = serde_json::from_str(&object).ok()?;
        (object["html_report"] == reason).then_some(())
    });
    assert_eq!(agent.get("/readyz").status, 200);
    agent.end(15);
}

#[test]
fn symbolizer_panic_loses_names_and_keeps_memory_exact() {
    let env = TestEnv::new();
    let fault = Fault::new(&env, "panic", "symbolizer");
    fault.happen();
    let env = env.env("VRAMSCOPE_FAULT", &fault.value);
    let traced = env.trace(&["--stacks", "full"], &["kinds"]);
    traced.assert_matches_oracle(&env);
    let why = "function names are missing: the thread `symbolizer` panicked: injected fault";
    assert_eq!(traced.messages.matches(why).count(), 1, "{}", traced.messages);
    let sites = traced.last()["sites"].as_array().unwrap();
    assert!(!sites.is_empty());
    for site in sites {
        assert_eq!(site["frames"][0]["unknown_reason"], "unreadable_file", "{site}");
    }
}

/// Returns the driver-reported usage of a process in the last report.
fn driver_bytes(report: &Value) -> Option<u64> {
    report["processes"][0]["devices"][0]["driver_bytes"].as_u64()
}

#[test]
fn driver_reported_usage_that_fails_becomes_unknown() {
    for kind in ["panic", "hang"] {
        let env = TestEnv::new().sharing();
        let holder = env.hold(0, 3, 1 << 20);
        let fault = Fault::new(&env, kind, "gpu-usage");
        let mut command = env.command(VRAMSCOPE);
        command.args(["trace", "--json", "--interval", "200ms", "--driver"]).arg(&env.driver);
        command.args(["-p", &holder.pid().to_string()]);
        let trace = Running::start(&env, &fault, &mut command);
        let is_known = || trace.reports().last().is_some_and(|last| driver_bytes(last).is_some());
        trace.until("the driver-reported usage", || is_known().then_some(()));
        fault.happen();
        trace.until("its end", || (!is_known()).then_some(()));
        let why = match kind {
            "panic" => "is unavailable: the thread `gpu-usage` panicked: injected fault",
            _ => "is unavailable: no response for 10 seconds",
        };
        trace.until("the message", || trace.messages().contains(why).then_some(()));
        if kind == "panic" {
            std::fs::remove_file(&fault.file).unwrap();
            trace.until("the value again", || is_known().then_some(()));
        }
    }
}
