//! The capabilities of the systemd unit are exactly enough: another user, four capabilities, its
//! system calls.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::files::read;
use crate::harness::{
    self, ScopedProcess, TestEnv, Tracer, VRAMSCOPE, Workload, assert_same, process, simulator,
    until,
};

/// A user that owns nothing.
const NOBODY_UID: &str = "65534";

/// Returns the values of a setting of the unit, one per line.
fn setting(name: &str) -> Vec<String> {
    let unit = read("contrib/systemd/vramscope.service");
    let lines = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    lines.map(str::to_owned).collect()
}

/// Returns `+bpf,+perfmon`, as `setpriv` takes it.
fn capabilities() -> String {
    let [set] = &setting("AmbientCapabilities")[..] else { panic!("not one set of capabilities") };
    assert_eq!(setting("CapabilityBoundingSet"), std::slice::from_ref(set));
    let name = |word: &str| format!("+{}", word.strip_prefix("CAP_").unwrap().to_lowercase());
    set.split(' ').map(name).collect::<Vec<_>>().join(",")
}

/// The binary in a directory that every user can read, outside of any home directory.
struct Installed {
    dir: TempDir,
}

impl Installed {
    fn new() -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::copy(VRAMSCOPE, dir.path().join("vramscope")).unwrap();
        fs::copy(simulator().join("libnvidia-ml.so.1"), dir.path().join("libnvidia-ml.so.1"))
            .unwrap();
        Self { dir }
    }

    fn binary(&self) -> PathBuf {
        self.dir.path().join("vramscope")
    }

    /// Returns a command that runs the binary with only these capabilities.
    fn command(&self, capabilities: &str) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args([
                "--reuid",
                NOBODY_UID,
                "--regid",
                NOBODY_UID,
                "--clear-groups",
                "--no-new-privs",
            ])
            .arg(format!("--inh-caps=-all{capabilities}"))
            .arg(format!("--ambient-caps=-all{capabilities}"))
            .arg(format!("--bounding-set=-all{capabilities}"))
            .arg(self.binary())
            .env("LD_LIBRARY_PATH", self.dir.path());
        command
    }
}

/// Copies the driver to a directory that only root may enter, as in containers.
fn hidden_driver(env: &TestEnv) -> TempDir {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::copy(&env.driver, dir.path().join("libcuda.so.1")).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    dir
}

fn named_frames(report: &Value) -> usize {
    let sites = report["sites"].as_array().unwrap();
    let frames = sites.iter().flat_map(|site| site["frames"].as_array().unwrap());
    frames.filter(|frame| frame["unknown_reason"].is_null() && frame["file"].is_string()).count()
}

#[test]
fn unit_capabilities_trace_all_processes_exactly() {
    let installed = Installed::new();
    let capabilities = format!(",{}", capabilities());
    let env = TestEnv::new();
    let dir = hidden_driver(&env);
    let env = TestEnv::with_driver(dir.path().join("libcuda.so.1")).env("SIM_INIT_MS", "300");
    let mut command = installed.command(&capabilities);
    command.args(["trace", "--json", "--interval", "100ms", "--stacks", "full"]);
    let mut tracer = Tracer::start(env.limit(&mut command));
    tracer.next();
    // The first one is attached to while it loads; from then on everything is exact.
    let first = env.workload(&["hold", "--count", "1", "--size", "4096", "--wait-ms", "20000"]);
    let pid = first.pid();
    tracer.wait_for_process(pid, |process| process["live_allocations"] == 1);
    let program = env.dir.path().join("workload");
    fs::copy(simulator().join("workload"), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = env.command(&program);
    let second = Workload::start(command.args(["train", "--steps", "40", "--step-ms", "2"]));
    let pid = second.pid();
    second.finish();
    let report = tracer.wait_for_process(pid, |process| process["exited"] == true);
    let seen = process(&report, pid);
    assert_same(seen, &env.oracle(pid));
    assert_eq!((&seen["exact"], &seen["uid"]), (&Value::from(true), &Value::from(0)));
    drop(first);
    let traced = tracer.stop();
    assert!(traced.status.success(), "{}", traced.messages);
    assert!(named_frames(traced.last()) > 0, "no frame is named: {}", traced.last());
}

#[test]
fn driver_that_cannot_be_opened_is_reported() {
    let installed = Installed::new();
    let env = TestEnv::new();
    let dir = hidden_driver(&env);
    let driver = dir.path().join("libcuda.so.1");
    let env = TestEnv::with_driver(driver.clone());
    let mut workload = env.workload(&["hold", "--count", "1", "--size", "1", "--wait-ms", "30000"]);
    workload.wait_ready();
    fs::remove_file(&driver).unwrap();
    // A deleted file can be opened through its mapping only, which needs a capability more. A pipe
    // in its place, or with the name that the kernel shows for it, must not stop the trace.
    for pipe in [None, Some("libcuda.so.1"), Some("libcuda.so.1 (deleted)")] {
        if let Some(name) = pipe {
            let made = Command::new("mkfifo").arg(dir.path().join(name)).status();
            assert!(made.unwrap().success());
        }
        let mut command = installed.command(&format!(",{}", capabilities()));
        command.args(["trace", "--json", "--duration", "1s"]);
        let output = env.limit(&mut command).output().unwrap();
        let messages = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{messages}");
        let expected = format!("cannot read {}: deleted or replaced", driver.display());
        assert!(messages.contains(&expected), "{messages}");
    }
}

#[test]
fn each_capability_of_the_unit_is_needed() {
    let installed = Installed::new();
    let all = capabilities();
    let env = TestEnv::new();
    let dir = hidden_driver(&env);
    let env = TestEnv::with_driver(dir.path().join("libcuda.so.1"));
    let workload = env.workload(&["train", "--steps", "1000000", "--step-ms", "2"]);
    let maps = format!("/proc/{}/maps", workload.pid());
    until("the driver in the workload", String::new, || {
        fs::read_to_string(&maps).unwrap().contains("libcuda.so.1").then_some(())
    });
    let sees = |capabilities: &str| {
        let mut command = installed.command(capabilities);
        command.args(["trace", "--json", "--duration", "3s", "--stacks", "off"]);
        let output = env.limit(&mut command).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let last = text.lines().last().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let listed = |report: &Value| {
            let processes = report["processes"].as_array().unwrap();
            processes.iter().any(|process| process["pid"] == workload.pid())
        };
        (output.status.success() && last.is_some_and(|report| listed(&report)), output.stderr)
    };
    let (works, messages) = sees(&format!(",{all}"));
    assert!(works, "{}", String::from_utf8_lossy(&messages));
    for one in all.split(',') {
        let fewer: Vec<_> = all.split(',').filter(|other| *other != one).collect();
        assert!(!sees(&format!(",{}", fewer.join(","))).0, "{one} is not needed");
    }
}

#[test]
fn single_attach_mode_reports_missing_capabilities() {
    let installed = Installed::new();
    let trace = ["trace", "--duration", "500ms", "--attach-mode", "single"];
    let output = installed.command(&format!(",{}", capabilities())).args(trace).output().unwrap();
    assert!(!output.status.success());
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(messages.contains("CAP_SYS_ADMIN"), "{messages}");
    let admin = ",+sys_admin,+sys_ptrace,+dac_read_search";
    let output = installed.command(admin).args(trace).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn missing_capabilities_are_named_in_the_error() {
    let installed = Installed::new();
    let output = installed.command("").args(["trace", "--duration", "1s"]).output().unwrap();
    assert!(!output.status.success());
    let messages = String::from_utf8_lossy(&output.stderr);
    for word in ["CAP_BPF", "CAP_PERFMON", "65534"] {
        assert!(messages.contains(word), "{messages}");
    }
    // The binary works without any capability; `doctor` reports what is missing.
    let output = installed.command("").arg("doctor").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("CAP_BPF"), "{output:?}");
    let output = installed.command(",+bpf,+perfmon,+sys_ptrace").arg("doctor").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("CAP_DAC_READ_SEARCH"), "{output:?}");
}

/// Returns the system calls that the unit allows, with groups resolved by systemd.
fn allowed() -> BTreeSet<String> {
    let mut allowed = BTreeSet::new();
    for line in setting("SystemCallFilter") {
        let (take, words) = line.strip_prefix('~').map_or((false, &*line), |words| (true, words));
        for call in words.split(' ').flat_map(resolve) {
            if take {
                allowed.remove(&call);
            } else {
                allowed.insert(call);
            }
        }
    }
    allowed
}

fn resolve(word: &str) -> Vec<String> {
    if !word.starts_with('@') {
        return vec![word.to_owned()];
    }
    let output = Command::new("systemd-analyze")
        .args(["syscall-filter", "--no-pager", word])
        .output()
        .expect("these tests need systemd-analyze");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("    ")).map(str::trim);
    lines.filter(|line| !line.starts_with('#')).flat_map(resolve).collect()
}

#[test]
fn agent_makes_only_system_calls_that_the_unit_allows() {
    let env = TestEnv::new();
    let log = env.dir.path().join("calls");
    let state = env.dir.path().join("state");
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o"]).arg(&log).arg(VRAMSCOPE);
    command.args(["serve", "--listen", "127.0.0.1:0", "--state-dir"]).arg(&state);
    let mut agent = ScopedProcess::start(env.limit(&mut command));
    let written = |words: &str| {
        let calls = || fs::read_to_string(&log).unwrap_or_default();
        until(&format!("a call with {words}"), String::new, || {
            calls().contains(words).then_some(())
        });
    };
    // It scans for processes with a driver once it is attached.
    written("/maps\"");
    // The workload runs until it is detected, which takes long under strace.
    let workload = env.workload(&["train", "--steps", "20000", "--step-ms", "5"]);
    written(&format!("/proc/{}/cgroup", workload.pid()));
    drop(workload);
    // The agent is the child of strace.
    let children = format!("/proc/{0}/task/{0}/children", agent.id());
    let child = fs::read_to_string(children).unwrap();
    harness::send_signal(child.trim().parse().unwrap(), 15);
    agent.wait().unwrap();
    let calls = calls(&fs::read_to_string(&log).unwrap());
    assert!(calls.contains("bpf") && calls.contains("mmap"), "{calls:?}");
    let allowed = allowed();
    let forbidden: Vec<_> = calls.difference(&allowed).collect();
    assert!(forbidden.is_empty(), "{forbidden:?}");
}

/// Returns the names of the calls in a log of `strace -f`: `PID name(…`.
fn calls(log: &str) -> BTreeSet<String> {
    let name = |line: &str| {
        let rest = line.split_once(' ')?.1.trim_start();
        Some(rest.split_once('(')?.0.to_owned())
    };
    let is_name =
        |name: &String| name.bytes().all(|c| c.is_ascii_lowercase() || b"_0123456789".contains(&c));
    // The call of a return probe in the self-test: filters do not apply to it since Linux 6.14.
    let own = |name: &String| name != "uretprobe" && name != "syscall_0x14f";
    log.lines().filter_map(name).filter(is_name).filter(own).collect()
}
