//! An agent that runs, and how to ask it.

use std::fs::File;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::http::{self, Answer};
use super::{Bound, Stage, VRAMSCOPE, send_signal, until};

/// `vramscope serve`, on a port of its own.
pub struct Agent {
    pub child: Bound,
    pub address: String,
    /// Sent with every request.
    pub headers: String,
    log: PathBuf,
}

/// The command of an agent: on the stage's driver, with its state in the stage's folder and a port of
/// its own, unless the options say otherwise.
pub fn serve(stage: &Stage, options: &[&str]) -> Command {
    let mut command = stage.command(VRAMSCOPE);
    command.arg("serve").arg("--driver").arg(&stage.driver);
    if !options.contains(&"--state-dir") {
        command.arg("--state-dir").arg(stage.folder.path().join("state"));
    }
    if !options.contains(&"--listen") {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    command.args(options);
    command
}

/// `vramscope serve --check-config`: whether it takes these settings.
pub fn check(file: &Path) -> Command {
    let mut command = Command::new(VRAMSCOPE);
    command.args(["serve", "--check-config", "--config"]).arg(file);
    command
}

/// Writes settings into the stage's folder; gives where.
pub fn settings(stage: &Stage, text: &str) -> String {
    let file = stage.folder.path().join("settings.toml");
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

impl Agent {
    /// Starts one; waits until it answers and traces.
    pub fn start(stage: &Stage, options: &[&str]) -> Self {
        Self::run(&mut serve(stage, options), stage.folder.path())
    }

    /// The same with settings in a file.
    pub fn start_with(stage: &Stage, text: &str, options: &[&str]) -> Self {
        Self::start(stage, &[&["--config", &settings(stage, text)], options].concat())
    }

    /// Starts a command that is one; waits until it answers and traces. Its messages go into the folder.
    pub fn run(command: &mut Command, folder: &Path) -> Self {
        let agent = Self::begin(command, folder);
        agent.until("that it traces", |agent| agent.get("/readyz").is_good().then_some(()));
        agent
    }

    /// The same; waits only until it listens.
    pub fn begin(command: &mut Command, folder: &Path) -> Self {
        let log = (0..).map(|turn| folder.join(format!("agent-{turn}.log")));
        let log = log.into_iter().find(|log| !log.exists()).unwrap();
        let file = File::create(&log).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let child = Bound::start(command);
        let mut agent = Self { child, address: String::new(), headers: String::new(), log };
        agent.address = agent.until("where it listens", |agent| {
            let messages = agent.messages();
            let (_, rest) = messages.split_once("listening on http")?;
            let (_, rest) = rest.split_once("://")?;
            rest.split_once(['/', ' ', '\n']).map(|(address, _)| address.to_owned())
        });
        agent
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it said so far.
    pub fn messages(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    pub fn connect(&self) -> TcpStream {
        http::connect(&self.address).unwrap()
    }

    /// Sends a request as it is.
    pub fn raw(&self, request: &str) -> Answer {
        self.answered(http::send(&self.address, request))
    }

    /// Asks for a path, with these headers instead of its own.
    pub fn get_with(&self, path: &str, headers: &str) -> Answer {
        self.answered(http::get(&self.address, path, headers))
    }

    pub fn get(&self, path: &str) -> Answer {
        self.get_with(path, &self.headers)
    }

    fn answered(&self, answer: std::io::Result<Answer>) -> Answer {
        answer.unwrap_or_else(|error| panic!("it does not answer: {error}\n{}", self.messages()))
    }

    /// What a path of the API tells.
    pub fn api(&self, path: &str) -> Value {
        let answer = self.get(&format!("/api/v1/{path}"));
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    pub fn metrics(&self) -> Metrics {
        let answer = self.get("/metrics");
        assert_eq!(answer.status, 200, "{answer:?}");
        Metrics(answer.text())
    }

    /// The samples of a metric: labels as they stand in the text, and values.
    pub fn metric(&self, name: &str) -> Vec<(String, f64)> {
        let metrics = self.metrics();
        let lines = metrics.lines(name, &[]);
        lines.map(|line| (labels(line, name).to_owned(), value(line))).collect()
    }

    /// Waits for something, and gives it.
    pub fn until<T>(&self, what: &str, mut look: impl FnMut(&Self) -> Option<T>) -> T {
        let messages = || self.messages();
        until(what, messages, || {
            let found = look(self);
            assert!(found.is_some() || self.child.is_running(), "it ended:\n{}", messages());
            found
        })
    }

    /// A process as the agent knows it, when a condition holds.
    pub fn process(&self, pid: u32, condition: impl Fn(&Value) -> bool) -> Value {
        self.until(&format!("process {pid}"), |agent| {
            let snapshot = agent.api("snapshot");
            let processes = snapshot["processes"].as_array().unwrap();
            let found = processes.iter().find(|process| process["pid"] == pid);
            found.filter(|process| condition(process)).cloned()
        })
    }

    /// Ends it with a signal, which must go well unless it is killed; what it said.
    pub fn end(mut self, signal: i32) -> String {
        send_signal(self.pid(), signal);
        let status = self.child.wait().unwrap();
        assert_eq!(status.success(), signal != 9, "{status:?}\n{}", self.messages());
        self.messages()
    }
}

/// What `/metrics` told.
pub struct Metrics(pub String);

impl Metrics {
    /// The sum of the samples whose line has all of these parts.
    pub fn sum(&self, name: &str, parts: &[&str]) -> f64 {
        self.lines(name, parts).map(value).sum()
    }

    pub fn lines<'a>(&'a self, name: &str, parts: &[&str]) -> impl Iterator<Item = &'a str> {
        self.0.lines().filter(move |line| {
            let rest = line.strip_prefix(name);
            let ours = rest.is_some_and(|rest| rest.starts_with(['{', ' ']));
            ours && parts.iter().all(|part| line.contains(part))
        })
    }
}

fn value(line: &str) -> f64 {
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn labels<'a>(line: &'a str, name: &str) -> &'a str {
    line[name.len()..].rsplit_once(' ').unwrap().0
}
