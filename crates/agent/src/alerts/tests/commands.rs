use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::metrics::MetricSet;
use serde_json::Value;
use tempfile::TempDir;

use super::{TestWorker, at, count, leak, settings, until, worker};
use crate::AgentState;

/// A script, and the configuration that runs it.
struct Script {
    dir: TempDir,
    shared: Arc<AgentState>,
    worker: TestWorker,
}

fn script(text: &str, options: &str) -> Script {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("script");
    std::fs::write(&path, format!("#!/bin/sh\ncd \"$1\" || exit 9\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let shared = settings(&format!(
        "[alerts]\nleak_suspect = \"0s\"\nkeep_firing_for = \"0s\"\n[[alerts.receiver]]\ntype = \"command\"\n\
         command = [\"{}\", \"{}\"]\n{options}",
        path.display(),
        dir.path().display()
    ));
    let worker = worker(&shared);
    Script { dir, shared, worker }
}

impl Script {
    fn fire(&mut self, pid: &str, second: u64) {
        self.worker.evaluate(&leak(pid), at(second));
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn is_running(pid: &str) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A zombie has ended; its parent just has not reaped it.
    !state.is_empty() && !state.contains(") Z ")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn command_gets_the_alert_in_environment_and_stdin() {
    let text = "env > env.$VRAMSCOPE_STATE; cat > in.$VRAMSCOPE_STATE; : > done.$VRAMSCOPE_STATE";
    let mut script = script(text, "");
    script.fire("41", 0);
    until("the command", || script.file("done.firing").exists());
    script.worker.evaluate(&MetricSet::default(), at(1));
    until("the command", || script.file("done.resolved").exists());
    let env = read(&script.file("env.firing"));
    let mut names: Vec<&str> =
        env.lines().filter_map(|line| line.split_once('=')).map(|l| l.0).collect();
    names.retain(|name| !["PWD", "SHLVL", "_", "OLDPWD", "PATH", "HOME", "LANG"].contains(name));
    assert!(names.iter().all(|name| name.starts_with("VRAMSCOPE_")), "{names:?}");
    for variable in [
        "VRAMSCOPE_RULE=leak_suspect",
        "VRAMSCOPE_STATE=firing",
        "VRAMSCOPE_SEVERITY=warning",
        "VRAMSCOPE_VALUE=1048576",
        "VRAMSCOPE_HOST=node-1",
        "VRAMSCOPE_LABEL_PID=41",
        "VRAMSCOPE_LABEL_PROGRAM=tr<ain>\\u{1b}[2J",
        "VRAMSCOPE_SINCE=2023-11-14T22:13:20.000+00:00",
    ] {
        assert!(env.lines().any(|line| line == variable), "{variable} is not in {env}");
    }
    let input: Value = serde_json::from_str(&read(&script.file("in.resolved"))).unwrap();
    assert_eq!((&input["state"], &input["rule"]), (&"resolved".into(), &"leak_suspect".into()));
    until("its count", || count(&script.shared, "command", "sent") == 2);
    script.worker.finish();
}

#[test]
fn command_that_times_out_is_killed_with_its_children() {
    let mut script = script("sleep 300 & echo $! > child; wait", "timeout = \"500ms\"");
    script.fire("41", 0);
    until("its end", || count(&script.shared, "command", "failed") == 1);
    let child = read(&script.file("child"));
    assert!(!child.trim().is_empty());
    until("the end of its child", || !is_running(child.trim()));
    script.worker.finish();
}

#[test]
fn command_failures_are_counted() {
    let mut script = script("exit 3", "");
    script.fire("41", 0);
    until("its end", || count(&script.shared, "command", "failed") == 1);
    script.worker.finish();
}

#[test]
fn commands_run_one_after_the_other() {
    // Each logs when it begins and when it ends.
    let mut script = script("echo + >> log; sleep 0.1; echo - >> log", "");
    for (second, pid) in ["1", "2"].iter().enumerate() {
        script.fire(pid, second as u64);
    }
    // The first alert resolves when the second one fires.
    until("all of them", || count(&script.shared, "command", "sent") == 3);
    assert_eq!(read(&script.file("log")), "+\n-\n".repeat(3));
    script.worker.finish();
}

#[test]
fn running_command_does_not_delay_shutdown() {
    let mut script = script("echo $$ > pid.part; mv pid.part pid; exec sleep 300", "");
    script.fire("41", 0);
    until("the command", || script.file("pid").exists());
    let begin = Instant::now();
    script.worker.finish();
    assert!(begin.elapsed() < Duration::from_mins(1), "{:?}", begin.elapsed());
    assert!(!is_running(read(&script.dir.path().join("pid")).trim()));
}
