//! A running agent and requests to it.

use std::fs::File;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::http::{self, Response};
use super::{ScopedProcess, TestEnv, VRAMSCOPE, send_signal, until};

/// `vramscope serve`, on its own port.
pub struct Agent {
    pub child: ScopedProcess,
    pub address: String,
    /// Sent with every request.
    pub headers: String,
    log: PathBuf,
}

/// Returns the command of an agent: with the driver of `env`, its state in the directory of
/// `env`, and its own port, unless the options override that.
pub fn serve(env: &TestEnv, options: &[&str]) -> Command {
    let mut command = env.command(VRAMSCOPE);
    command.arg("serve").arg("--driver").arg(&env.driver);
    if !options.contains(&"--state-dir") {
        command.arg("--state-dir").arg(env.dir.path().join("state"));
    }
    if !options.contains(&"--listen") {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    command.args(options);
    command
}

/// Returns `vramscope serve --check-config` for a file.
pub fn check(file: &Path) -> Command {
    let mut command = Command::new(VRAMSCOPE);
    command.args(["serve", "--check-config", "--config"]).arg(file);
    command
}

/// Writes a configuration into the directory of `env`, and returns its path.
pub fn settings(env: &TestEnv, text: &str) -> String {
    let file = env.dir.path().join("settings.toml");
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

impl Agent {
    /// Starts an agent, and waits until it responds and traces.
    pub fn start(env: &TestEnv, options: &[&str]) -> Self {
        Self::run(&mut serve(env, options), env.dir.path())
    }

    /// Starts an agent with a configuration file.
    pub fn start_with(env: &TestEnv, text: &str, options: &[&str]) -> Self {
        Self::start(env, &[&["--config", &settings(env, text)], options].concat())
    }

    /// Starts an agent from a command, and waits until it responds and traces. Its messages go into
    /// the directory.
    pub fn run(command: &mut Command, dir: &Path) -> Self {
        let agent = Self::begin(command, dir);
        agent.until("that it traces", |agent| agent.get("/readyz").is_good().then_some(()));
        agent
    }

    /// Starts an agent from a command, and waits until it listens.
    pub fn begin(command: &mut Command, dir: &Path) -> Self {
        let log = (0..).map(|number| dir.join(format!("agent-{number}.log")));
        let log = log.into_iter().find(|log| !log.exists()).unwrap();
        let file = File::create(&log).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let child = ScopedProcess::start(command);
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

    /// Returns its messages so far.
    pub fn messages(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    pub fn connect(&self) -> TcpStream {
        http::connect(&self.address).unwrap()
    }

    /// Sends a raw request.
    pub fn raw(&self, request: &str) -> Response {
        self.expect_response(http::send(&self.address, request))
    }

    /// Requests a path, with these headers instead of its own.
    pub fn get_with(&self, path: &str, headers: &str) -> Response {
        self.expect_response(http::get(&self.address, path, headers))
    }

    pub fn get(&self, path: &str) -> Response {
        self.get_with(path, &self.headers)
    }

    fn expect_response(&self, response: std::io::Result<Response>) -> Response {
        response.unwrap_or_else(|error| panic!("no response: {error}\n{}", self.messages()))
    }

    /// Returns the response of an API path.
    pub fn api(&self, path: &str) -> Value {
        let response = self.get(&format!("/api/v1/{path}"));
        assert_eq!(response.status, 200, "{response:?}");
        response.json()
    }

    pub fn metrics(&self) -> Metrics {
        let response = self.get("/metrics");
        assert_eq!(response.status, 200, "{response:?}");
        Metrics(response.text())
    }

    /// Returns the samples of a metric: labels as text, and values.
    pub fn metric(&self, name: &str) -> Vec<(String, f64)> {
        let metrics = self.metrics();
        let lines = metrics.lines(name, &[]);
        lines.map(|line| (labels(line, name).to_owned(), value(line))).collect()
    }

    /// Waits until `poll` returns a value.
    pub fn until<T>(&self, what: &str, mut poll: impl FnMut(&Self) -> Option<T>) -> T {
        let messages = || self.messages();
        until(what, messages, || {
            let found = poll(self);
            assert!(found.is_some() || self.child.is_running(), "it ended:\n{}", messages());
            found
        })
    }

    /// Returns a process in the API, once a condition holds.
    pub fn process(&self, pid: u32, condition: impl Fn(&Value) -> bool) -> Value {
        self.until(&format!("process {pid}"), |agent| {
            let snapshot = agent.api("snapshot");
            let processes = snapshot["processes"].as_array().unwrap();
            let found = processes.iter().find(|process| process["pid"] == pid);
            found.filter(|process| condition(process)).cloned()
        })
    }

    /// Ends it with a signal, and returns its messages. It must exit successfully unless it is
    /// killed.
    pub fn end(mut self, signal: i32) -> String {
        send_signal(self.pid(), signal);
        let status = self.child.wait().unwrap();
        assert_eq!(status.success(), signal != 9, "{status:?}\n{}", self.messages());
        self.messages()
    }
}

/// The content of `/metrics`.
pub struct Metrics(pub String);

impl Metrics {
    /// Returns the sum of the samples whose line has all of these parts.
    pub fn sum(&self, name: &str, parts: &[&str]) -> f64 {
        self.lines(name, parts).map(value).sum()
    }

    pub fn lines<'a>(&'a self, name: &str, parts: &[&str]) -> impl Iterator<Item = &'a str> {
        self.0.lines().filter(move |line| {
            let rest = line.strip_prefix(name);
            let is_named = rest.is_some_and(|rest| rest.starts_with(['{', ' ']));
            is_named && parts.iter().all(|part| line.contains(part))
        })
    }
}

fn value(line: &str) -> f64 {
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn labels<'a>(line: &'a str, name: &str) -> &'a str {
    line[name.len()..].rsplit_once(' ').unwrap().0
}
