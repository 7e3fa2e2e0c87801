//! What stands around an agent that sends onward: receivers, a disk, other people's readers.
#![allow(unreachable_pub, reason = "a module of one test")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Stage, VRAMSCOPE, send_signal};

const PATIENCE: Duration = Duration::from_secs(90);

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn python() -> Command {
    let python = root().join("target/python/bin/python");
    assert!(python.exists(), "there is no {}: run contrib/python-env", python.display());
    Command::new(python)
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a script of the tests; the JSON that it prints.
pub fn read(script: &str, arguments: &[&str]) -> Value {
    let script = root().join("crates/app/tests").join(script);
    let output = python().arg(&script).args(arguments).output().unwrap();
    assert!(output.status.success(), "{script:?} {arguments:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Waits until something is there.
pub fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} never came");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Somebody who takes what is sent.
pub struct Receiver {
    pub child: Child,
    pub folder: PathBuf,
    pub port: u16,
}

impl Receiver {
    pub fn start(folder: PathBuf, more: &[&str]) -> Self {
        fs::create_dir(&folder).unwrap();
        let script = root().join("crates/app/tests/onward/receiver.py");
        let mut command = python();
        command.arg(script).arg(&folder).args(more);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, folder, port: line.trim().parse().unwrap() }
    }

    /// The path of a body that came, the first being 0.
    pub fn body(&self, number: usize) -> Option<String> {
        let path = self.folder.join(format!("{number}.body"));
        path.exists().then(|| path.to_str().unwrap().to_owned())
    }

    pub fn head(&self, number: usize) -> Value {
        let text = fs::read_to_string(self.folder.join(format!("{number}.json"))).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    pub fn count(&self) -> usize {
        (0..).take_while(|number| self.body(*number).is_some()).count()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An agent that runs.
pub struct Agent {
    pub child: Child,
    pub address: String,
}

impl Agent {
    pub fn start(stage: &Stage, settings: &str) -> Self {
        let path = stage.folder.path().join("settings.toml");
        fs::write(&path, settings).unwrap();
        // A port that nobody has.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let mut command = stage.command(VRAMSCOPE);
        command.args(["serve", "--listen", &address, "--driver"]).arg(&stage.driver);
        command.arg("--state").arg(stage.folder.path().join("state"));
        command.arg("--config").arg(path).stdout(Stdio::null()).stderr(Stdio::piped());
        Self { child: command.spawn().unwrap(), address }
    }

    /// Asks for a path; what is answered goes to a file.
    pub fn get(&self, path: &str, file: &Path) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let address = &self.address;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", text(&answer[..end]));
        fs::write(file, &answer[end + 4..]).unwrap();
    }

    /// Ends it with a signal; what it told.
    pub fn end(mut self, signal: i32) -> String {
        send_signal(self.child.id(), signal);
        let mut told = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        let status = self.child.wait().unwrap();
        assert!(signal == 9 || status.success(), "{status:?}: {told}");
        told
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

pub fn is_unfinished(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "unfinished")
}

/// A disk that is taken away at the end.
pub struct Disk(pub PathBuf);

impl Disk {
    pub fn new(folder: PathBuf, size: &str) -> Self {
        fs::create_dir(&folder).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "disk"]).arg(&folder);
        assert!(mount.status().unwrap().success());
        Self(folder)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
