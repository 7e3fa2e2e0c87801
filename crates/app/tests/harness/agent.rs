//! An agent that runs, and how to ask it.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Stage, VRAMSCOPE, send_signal};

/// How long something may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// `vramscope serve`, on a port of its own.
pub struct Agent {
    pub child: Child,
    pub address: String,
    log: PathBuf,
}

impl Agent {
    /// Starts it on the stage's driver; its state and its messages are in the stage's folder.
    pub fn start(stage: &Stage, options: &[&str]) -> Self {
        let mut command = stage.command(VRAMSCOPE);
        command.args(["serve", "--listen", "127.0.0.1:0", "--driver"]).arg(&stage.driver);
        command.arg("--state").arg(stage.folder.path().join("state")).args(options);
        Self::run(&mut command, stage.folder.path())
    }

    /// Starts a command that is one; waits until it answers and traces.
    pub fn run(command: &mut Command, folder: &Path) -> Self {
        let log = (0..).map(|turn| folder.join(format!("agent-{turn}.log")));
        let log = log.into_iter().find(|log| !log.exists()).unwrap();
        let file = File::create(&log).unwrap();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn();
        let mut agent = Self { child: child.unwrap(), address: String::new(), log };
        agent.address = agent.until("its address", |agent| {
            let text = agent.messages();
            let line = text.lines().find_map(|line| line.split_once("listening on http://"));
            line.map(|(_, rest)| rest.split(['/', ' ']).next().unwrap().to_owned())
        });
        agent.until("that it traces", |agent| agent.get("/readyz"));
        agent
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it said so far.
    pub fn messages(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// The body of a good answer. HTTP 1.0, so that it comes in one piece.
    pub fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let request = format!("GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.address);
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.split(' ').nth(1)?.starts_with('2').then(|| body.to_owned())
    }

    /// The same as JSON.
    pub fn json(&self, path: &str) -> Option<Value> {
        Some(serde_json::from_str(&self.get(path)?).unwrap())
    }

    /// The samples of a metric: labels as they stand in the text, and values.
    pub fn metric(&self, name: &str) -> Vec<(String, f64)> {
        let text = self.get("/metrics").unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.strip_prefix(name));
        let samples = lines.filter(|rest| rest.starts_with(['{', ' ']));
        samples
            .map(|rest| {
                let (labels, value) = rest.rsplit_once(' ').unwrap();
                (labels.to_owned(), value.parse().unwrap())
            })
            .collect()
    }

    /// Waits for something, and gives it.
    pub fn until<T>(&self, what: &str, find: impl Fn(&Self) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = find(self) {
                return found;
            }
            assert!(Instant::now() < end, "{what} never came:\n{}", self.messages());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A process as the agent knows it, when a condition holds.
    pub fn process(&self, pid: u32, condition: impl Fn(&Value) -> bool) -> Value {
        self.until(&format!("process {pid}"), |agent| {
            let snapshot = agent.json("/api/v1/snapshot")?;
            let processes = snapshot["processes"].as_array().unwrap();
            let found = processes.iter().find(|process| process["pid"] == pid);
            found.filter(|process| condition(process)).cloned()
        })
    }

    /// Sends a signal and waits for the end; whether that was a good one.
    pub fn end(mut self, signal: i32) -> bool {
        send_signal(self.pid(), signal);
        self.child.wait().unwrap().success()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
