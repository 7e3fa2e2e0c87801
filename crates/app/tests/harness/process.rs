//! Processes that run during a test, and end with it.

use std::io::{BufRead, BufReader, Read, Write};
use std::ops::{Deref, DerefMut};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::TraceResult;

/// A process that is killed when dropped.
pub struct ScopedProcess(Child);

impl ScopedProcess {
    pub fn start(command: &mut Command) -> Self {
        let child = command.spawn();
        Self(child.unwrap_or_else(|error| panic!("{command:?}: {error}; run ./dev test")))
    }

    pub fn is_running(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id()));
        stat.is_ok_and(|stat| {
            stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
        })
    }
}

impl Deref for ScopedProcess {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for ScopedProcess {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for ScopedProcess {
    fn drop(&mut self) {
        let _ = self.kill();
        let _ = self.wait();
    }
}

/// A running workload.
pub struct Workload {
    pub child: ScopedProcess,
    pub input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Workload {
    pub fn start(command: &mut Command) -> Self {
        let mut child = ScopedProcess::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let output = BufReader::new(child.stdout.take().unwrap());
        let input = child.stdin.take();
        Self { child, input, output }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it prints that it is ready.
    pub fn wait_ready(&mut self) {
        let mut line = String::new();
        while line.trim() != "ready" {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the workload ended early");
        }
    }

    /// Starts the work of a workload that was started with `--wait-start`.
    pub fn go(&mut self) {
        self.input.as_mut().unwrap().write_all(b"go\n").unwrap();
    }

    /// Waits for its end, and returns the rest of its output.
    pub fn finish(mut self) -> (ExitStatus, String) {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap(), rest)
    }

    pub fn signal(&self, signal: i32) {
        send_signal(self.pid(), signal);
    }
}

/// A running trace, whose reports are read as they arrive.
pub struct Tracer {
    pub child: ScopedProcess,
    output: BufReader<ChildStdout>,
}

impl Tracer {
    pub fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = ScopedProcess::start(command);
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// Returns the next report.
    pub fn next(&mut self) -> Value {
        let mut line = String::new();
        if self.output.read_line(&mut line).unwrap() == 0 {
            let mut messages = String::new();
            let _ = self.child.stderr.take().unwrap().read_to_string(&mut messages);
            panic!("the trace ended: {messages}");
        }
        serde_json::from_str(&line).unwrap()
    }

    /// Reads reports until one satisfies the condition.
    pub fn wait_for(&mut self, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            let report = self.next();
            if condition(&report) {
                return report;
            }
            assert!(Instant::now() < deadline, "{what} never came; last: {report}");
        }
    }

    /// Waits until a process appears in the reports.
    pub fn wait_for_process(&mut self, pid: u32, condition: impl Fn(&Value) -> bool) -> Value {
        self.wait_for(&format!("process {pid}"), |report| {
            let processes = report["processes"].as_array().unwrap();
            processes.iter().any(|process| process["pid"] == pid && condition(process))
        })
    }

    /// Ends it with Ctrl-C, and returns all remaining reports.
    pub fn stop(mut self) -> TraceResult {
        send_signal(self.child.id(), 2);
        let mut text = String::new();
        self.output.read_to_string(&mut text).unwrap();
        let mut messages = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut messages).unwrap();
        TraceResult {
            status: self.child.wait().unwrap(),
            reports: text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
            messages,
        }
    }
}

/// Sends a signal by number.
pub fn send_signal(pid: u32, signal: i32) {
    let status =
        Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()).status().unwrap();
    assert!(status.success());
}
