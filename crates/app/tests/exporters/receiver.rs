//! A server that receives exported data.
#![allow(unreachable_pub, reason = "a module of one test")]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;

use crate::harness::ScopedProcess;
use crate::harness::files::{root, tool};

/// A running `receiver.py`.
pub struct Receiver {
    _child: ScopedProcess,
    pub dir: PathBuf,
    pub port: u16,
}

impl Receiver {
    pub fn start(dir: PathBuf, more: &[&str]) -> Self {
        std::fs::create_dir(&dir).unwrap();
        let mut command = tool("python");
        command.arg(root().join("crates/app/tests/exporters/receiver.py")).arg(&dir).args(more);
        let mut child = ScopedProcess::start(command.stdout(Stdio::piped()));
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { _child: child, dir, port: line.trim().parse().unwrap() }
    }

    /// Returns the path of a received body; the first one is 0.
    pub fn body(&self, number: usize) -> Option<String> {
        let path = self.dir.join(format!("{number}.body"));
        path.exists().then(|| path.to_str().unwrap().to_owned())
    }

    pub fn head(&self, number: usize) -> Value {
        let text = std::fs::read_to_string(self.dir.join(format!("{number}.json"))).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    pub fn count(&self) -> usize {
        (0..).take_while(|number| self.body(*number).is_some()).count()
    }
}
