//! A running agent, and requests to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Stage, VRAMSCOPE, send_signal};

/// How long anything is waited for.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// `vramscope serve` on a port of its own.
pub struct Agent {
    pub child: Child,
    pub address: String,
    messages: Arc<Mutex<String>>,
    /// Sent with every request.
    pub headers: String,
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// The command with what every agent of the tests has.
pub fn serve(stage: &Stage, arguments: &[&str]) -> Command {
    let mut command = stage.command(VRAMSCOPE);
    command.arg("serve").arg("--driver").arg(&stage.driver);
    command.arg("--state").arg(stage.folder.path().join("state"));
    if !arguments.contains(&"--listen") {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    command.args(arguments);
    command
}

impl Agent {
    /// Starts it and waits until it traces.
    pub fn start(stage: &Stage, arguments: &[&str]) -> Self {
        let mut child = serve(stage, arguments).stderr(Stdio::piped()).spawn().unwrap();
        let messages = Arc::new(Mutex::new(String::new()));
        let (stderr, kept) = (child.stderr.take().unwrap(), Arc::clone(&messages));
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut all = kept.lock().unwrap();
                all.push_str(&line);
                all.push('\n');
            }
        });
        let mut agent = Self { child, address: String::new(), messages, headers: String::new() };
        agent.wait("where it listens", |agent| {
            let messages = agent.messages();
            let (_, rest) = messages.split_once("listening on ")?;
            let (_, address) = rest.lines().next()?.split_once("://")?;
            address.clone_into(&mut agent.address);
            Some(())
        });
        agent
    }

    pub fn wait_ready(&mut self) {
        self.wait("readiness", |agent| (agent.get("/readyz").status == 200).then_some(()));
    }

    pub fn messages(&self) -> String {
        self.messages.lock().unwrap().clone()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks until there is what is waited for.
    pub fn wait<T>(&mut self, what: &str, mut look: impl FnMut(&mut Self) -> Option<T>) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "the agent ended: {ended:?}\n{}", self.messages());
            assert!(Instant::now() < until, "no {what}\n{}", self.messages());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends bytes as they are; what comes back until the connection ends.
    pub fn raw(&self, request: &str) -> Answer {
        let mut stream = self.connect();
        // Who is refused early may find the connection closed while it still writes.
        let _ = stream.write_all(request.as_bytes());
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Answer { status, head: head.to_lowercase(), body: body.to_owned() }
    }

    pub fn get_with(&self, path: &str, headers: &str) -> Answer {
        self.raw(&format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n"
        ))
    }

    pub fn get(&self, path: &str) -> Answer {
        self.get_with(path, &self.headers)
    }

    pub fn api(&self, path: &str) -> Value {
        let answer = self.get(&format!("/api/v1/{path}"));
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    pub fn metrics(&self) -> Metrics {
        let answer = self.get("/metrics");
        assert_eq!(answer.status, 200, "{answer:?}");
        Metrics(answer.body)
    }

    /// Ends it, which must go well; what it said.
    pub fn stop(mut self) -> String {
        send_signal(self.child.id(), 15);
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status:?}\n{}", self.messages());
        self.messages()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What `/metrics` told.
pub struct Metrics(pub String);

impl Metrics {
    /// The sum of the samples whose line has all of these parts.
    pub fn sum(&self, name: &str, parts: &[&str]) -> f64 {
        self.lines(name, parts)
            .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
            .sum()
    }

    pub fn lines<'a>(&'a self, name: &str, parts: &[&str]) -> impl Iterator<Item = &'a str> {
        self.0.lines().filter(move |line| {
            let rest = line.strip_prefix(name);
            let ours = rest.is_some_and(|rest| rest.starts_with(['{', ' ']));
            ours && parts.iter().all(|part| line.contains(part))
        })
    }
}

/// A file for its owner alone.
pub fn secret(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}
