//! The recovery policy of `contrib/recovery`, started by the agent for real incidents on the
//! simulated driver.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::harness::files::{blocks, root, stderr};
use crate::harness::incidents::Agent;
use crate::harness::{TestEnv, Workload, agent, until};

/// Signal that stops a process.
const SIGSTOP: i32 = 19;

/// An environment whose devices exist: a first process creates them.
fn shared(memory: &str) -> TestEnv {
    let env = TestEnv::new().sharing();
    let env = env.env("SIM_CONTEXT_OVERHEAD", "100M").env("SIM_MEMORY", memory);
    env.workload(&["leak3", "--work-ms", "1", "--wait-ms", "1"]).finish();
    env
}

fn policy_program() -> PathBuf {
    root().join("contrib/recovery/vramscope-recover")
}

/// Calls the driver from Python, after creating a context. On SIGUSR2 it frees its cache.
const CALLS: &str = r#"
import ctypes, os, signal, sys, time
cu = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert cu.cuInit(0) == 0
assert cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cu.cuCtxSetCurrent(context) == 0
MIB = 1 << 20
def allocate(mib):
    return cu.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mib * MIB))
signal.signal(signal.SIGUSR2, lambda *_: cu.cuMemFree_v2(pointer))
def hold(mib):
    assert allocate(mib) == 0
    print("ready", flush=True)
    while True: time.sleep(0.05)
def fail(mib):
    assert allocate(mib) == 2
    time.sleep(120)
"#;

/// Starts a program with a name that no other process of this machine has.
fn python(env: &TestEnv, name: &str, calls: &str) -> Workload {
    let interpreter = env.dir.path().join(name);
    if !interpreter.exists() {
        std::os::unix::fs::symlink("/usr/bin/python3", &interpreter).unwrap();
    }
    let mut command = env.command(&interpreter);
    let mut workload = Workload::start(command.arg("-c").arg(format!("{CALLS}\n{calls}")));
    if calls.starts_with("hold") {
        workload.wait_ready();
    }
    workload
}

/// Returns names that no other process of this machine has; the kernel keeps 15 characters.
fn own_name(env: &TestEnv, kind: &str) -> String {
    let dir = env.dir.path().file_name().unwrap().to_str().unwrap();
    let unique = dir.trim_start_matches('.');
    format!("{kind}{}", &unique[unique.len().saturating_sub(8)..])
}

/// An agent with a policy.
struct Recovery<'e> {
    env: &'e TestEnv,
    agent: Agent,
    log: PathBuf,
}

impl<'e> Recovery<'e> {
    fn start(env: &'e TestEnv, apply: &str, rules: &str) -> Self {
        let base = env.dir.path();
        let (policy, log) = (base.join("recovery.ini"), base.join("recovery.log"));
        let port_file = base.join("agent-address");
        // The agent chooses its port: a wrapper fills it in.
        let wrapper = base.join("recover");
        let text = format!(
            "#!/bin/sh\nsed \"s|AGENT|$(cat {address})|\" {policy} > {policy}.$$\n\
             exec {program} --config {policy}.$$\n",
            address = port_file.display(),
            policy = policy.display(),
            program = policy_program().display()
        );
        fs::write(&wrapper, text).unwrap();
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
        let text = format!(
            "[recovery]\napply = {apply}\nlog = {}\nwait = 5\nagent = AGENT\n{rules}",
            log.display()
        );
        fs::write(&policy, text).unwrap();
        let settings = format!(
            "[incidents]\nhtml_report = false\ngroup_window = \"1s\"\n\
             [[alerts.receiver]]\ntype = \"command\"\nrules = [\"incident\"]\n\
             command = [\"{}\"]\ntimeout = \"1m\"\n",
            wrapper.display()
        );
        let agent = Agent::start(env, &settings);
        fs::write(&port_file, format!("http://{}", agent.agent.address)).unwrap();
        Self { env, agent, log }
    }

    /// Returns the logged steps of the incident of a process, once the last one is there. Other
    /// processes of this machine are skipped by the policy.
    fn steps(&self, requester: u32, last: &str) -> Vec<(String, String)> {
        let incident = format!("-pid{requester}");
        let unique = own_name(self.env, "");
        let is_own = |line: &Value| {
            let process = line["process"].as_str().unwrap_or(&unique);
            line["incident"].as_str().unwrap().ends_with(&incident)
                && process.ends_with(&unique)
                && line["step"] != "find"
        };
        let read = || -> Vec<Value> {
            let text = fs::read_to_string(&self.log).unwrap_or_default();
            let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            lines.filter(is_own).collect()
        };
        self.agent.wait("the last step", || read().iter().any(|line| line["step"] == last));
        let text = |line: &Value, key: &str| line[key].as_str().unwrap().to_owned();
        read().iter().map(|line| (text(line, "step"), text(line, "outcome"))).collect()
    }

    fn program(&self, kind: &str, calls: &str) -> Workload {
        python(self.env, &own_name(self.env, kind), calls)
    }
}

fn step(name: &str, outcome: &str) -> (String, String) {
    (name.to_owned(), outcome.to_owned())
}

fn rule(env: &TestEnv, phase: &str, kind: &str, signal: &str) -> String {
    let name = own_name(env, kind);
    format!("[{phase} {kind}]\nprocess = {name}\nmin_bytes = 100M\nsignal = {signal}\n")
}

/// Whether no signal was sent to a stopped process: it would be pending.
fn was_left_alone(workload: &Workload) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", workload.pid())).unwrap();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    assert!(field("State:").contains("T (stopped)"), "{status}");
    let pending = |name| u64::from_str_radix(field(name).trim(), 16).unwrap();
    pending("SigPnd:") == 0 && pending("ShdPnd:") == 0
}

fn is_running(workload: &mut Workload) -> bool {
    workload.child.try_wait().unwrap().is_none()
}

#[test]
fn recovery_releases_caches_before_it_stops_anything() {
    let env = shared("1G");
    let rules =
        [rule(&env, "release", "keeps", "USR2"), rule(&env, "stop", "keeps", "TERM")].concat();
    let recovery = Recovery::start(&env, "yes", &rules);
    let mut cooperates = recovery.program("keeps", "hold(500)");
    let mut requester = recovery.program("wants", "fail(600)");
    let steps = recovery.steps(requester.pid(), "result");
    assert_eq!(steps, [step("release", "done"), step("result", "done")]);
    assert!(is_running(&mut cooperates), "it was asked, not stopped");
    assert!(is_running(&mut requester));
    recovery.agent.stop();
}

#[test]
fn recovery_stops_an_allowed_process_if_releasing_did_not_help() {
    let env = shared("1G");
    let rules =
        [rule(&env, "release", "stays", "WINCH"), rule(&env, "stop", "stays", "TERM")].concat();
    let recovery = Recovery::start(&env, "yes", &rules);
    let mut ignores = recovery.program("stays", "hold(500)");
    let other = recovery.program("other", "hold(100)");
    other.signal(SIGSTOP);
    let mut requester = recovery.program("wants", "fail(600)");
    let steps = recovery.steps(requester.pid(), "result");
    assert!(steps.contains(&step("release", "done")), "{steps:?}");
    assert!(steps.contains(&step("stop", "done")), "{steps:?}");
    assert_eq!(steps.last(), Some(&step("result", "done")));
    until("its end", String::new, || ignores.child.try_wait().unwrap());
    assert!(was_left_alone(&other) && is_running(&mut requester));
    recovery.agent.stop();
}

#[test]
fn recovery_without_apply_only_logs() {
    let env = shared("1G");
    let rules =
        [rule(&env, "release", "holds", "USR2"), rule(&env, "stop", "holds", "TERM")].concat();
    let recovery = Recovery::start(&env, "no", &rules);
    let holder = recovery.program("holds", "hold(500)");
    holder.signal(SIGSTOP);
    let requester = recovery.program("wants", "fail(600)");
    let steps = recovery.steps(requester.pid(), "result");
    let dry_run = ["release", "stop", "result"].map(|name| step(name, "dry_run"));
    assert_eq!(steps, dry_run);
    assert!(was_left_alone(&holder));
    recovery.agent.stop();
}

#[test]
fn recovery_touches_no_process_if_it_cannot_help() {
    for (fails, calls) in [
        ("", "fail(9000)"),
        ("cuMemAlloc_v2:1=2", "fail(20)"),
        // It retries with success, as PyTorch does after emptying its cache.
        (
            "cuMemAlloc_v2:1=2",
            "assert allocate(20) == 2; assert allocate(20) == 0; time.sleep(120)",
        ),
    ] {
        let mut env = shared("1G");
        let rules =
            [rule(&env, "release", "holds", "USR2"), rule(&env, "stop", "holds", "TERM")].concat();
        let holder_name = own_name(&env, "holds");
        let holder = python(&env, &holder_name, "hold(500)");
        holder.signal(SIGSTOP);
        if !fails.is_empty() {
            env = env.env("SIM_INJECT_FAILURES", fails);
        }
        let recovery = Recovery::start(&env, "yes", &rules);
        let requester = recovery.program("wants", calls);
        let steps = recovery.steps(requester.pid(), "check");
        assert_eq!(steps, [step("check", "skipped")], "{calls}");
        assert!(was_left_alone(&holder), "{calls}");
        recovery.agent.stop();
    }
}

#[test]
fn recovery_handles_stored_messages_once() {
    let dir = tempfile::tempdir().unwrap();
    let (spool, log) = (dir.path().join("spool"), dir.path().join("log"));
    let policy = dir.path().join("recovery.ini");
    fs::write(&policy, format!("[recovery]\nlog = {}\n", log.display())).unwrap();
    let run = |arguments: &[&str], input: &str| {
        let file = dir.path().join("message");
        fs::write(&file, input).unwrap();
        let mut command = Command::new(policy_program());
        let output =
            command.args(arguments).stdin(fs::File::open(&file).unwrap()).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    };
    let incident = r#"{"rule": "incident", "incident": {"id": "1", "recovered": true}}"#;
    run(&["--enqueue", spool.to_str().unwrap()], incident);
    assert_eq!(fs::read_dir(&spool).unwrap().count(), 1);
    for _ in 0..2 {
        let policy = policy.to_str().unwrap();
        run(&["--config", policy, "--spool", spool.to_str().unwrap()], "");
    }
    assert_eq!(fs::read_dir(&spool).unwrap().count(), 0);
    let log = fs::read_to_string(&log).unwrap();
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.contains("\"outcome\": \"skipped\""), "{log}");
}

/// Returns the error of the policy program about a policy.
fn policy_error(dir: &Path, text: &str) -> String {
    let policy = dir.join("wrong.ini");
    fs::write(&policy, text).unwrap();
    let mut command = Command::new(policy_program());
    let output = command.arg("--check").arg("--config").arg(&policy).output().unwrap();
    assert!(!output.status.success(), "{text}");
    stderr(&output)
}

#[test]
fn invalid_recovery_policies_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    for (text, expected) in [
        ("[stop all]\nsignal = TERM\n", "matches every process"),
        ("[release all]\nprocess = *\n", "needs command or signal"),
        ("[halt x]\nprocess = x\n", "unknown section"),
        ("[stop x]\nprocess = x\n", "[recovery] is missing"),
        ("[recovery]\napply = yes\n", "apply needs log"),
    ] {
        let error = policy_error(dir.path(), text);
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn recovery_config_in_the_docs_is_valid() {
    let env = TestEnv::new();
    for page in ["docs/operations/recovery.md", "docs/operations/incidents.md"] {
        for block in blocks(page, "toml") {
            // The program is not installed here.
            let block = block.replace("/usr/local/bin/vramscope-recover", "/bin/true");
            let state = env.dir.path().join("state");
            let block = block.replace("/var/lib/vramscope\"", &format!("{}\"", state.display()));
            let output = agent::check(Path::new(&agent::settings(&env, &block))).output().unwrap();
            assert!(output.status.success(), "{page}: {}", stderr(&output));
        }
    }
}
