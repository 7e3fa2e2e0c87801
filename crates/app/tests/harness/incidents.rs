//! An agent that writes incidents.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{TestEnv, agent};

/// An agent and its incident directories.
pub struct Agent {
    pub agent: agent::Agent,
    pub state: PathBuf,
}

impl Agent {
    pub fn start(env: &TestEnv, settings: &str) -> Self {
        Self::start_in(env, env.dir.path().join("state"), settings)
    }

    pub fn start_in(env: &TestEnv, state: PathBuf, settings: &str) -> Self {
        let options = ["--state-dir", state.to_str().unwrap()];
        Self { agent: agent::Agent::start_with(env, settings, &options), state }
    }

    pub fn wait(&self, what: &str, condition: impl Fn() -> bool) {
        self.agent.until(what, |_| condition().then_some(()));
    }

    /// Returns the finished incident directories, the oldest first.
    pub fn dirs(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.state.join("incidents")).into_iter().flatten();
        let mut all: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        all.retain(|path| !path.file_name().unwrap().to_str().unwrap().starts_with('.'));
        all.sort();
        all
    }

    /// Returns those whose name contains `part`.
    pub fn named(&self, part: &str) -> Vec<PathBuf> {
        let mut all = self.dirs();
        all.retain(|path| format!("{}-", path.display()).contains(&format!("-{part}-")));
        all
    }

    pub fn wait_named(&self, part: &str, count: usize) -> Vec<PathBuf> {
        self.wait(&format!("{count} incidents {part}"), || self.named(part).len() >= count);
        self.named(part)
    }

    /// Waits for the incident directory of a process.
    pub fn wait_dir(&self, pid: u32) -> PathBuf {
        self.wait_named(&format!("pid{pid}"), 1).remove(0)
    }

    /// Waits for the HTML report, which is written last.
    pub fn wait_page(&self, dir: &Path) -> Value {
        self.wait("the page", || object(dir)["html_report"] != "pending");
        object(dir)
    }

    pub fn stop(self) {
        self.agent.end(15);
    }
}

/// Returns the content of `incident.json`.
pub fn object(dir: &Path) -> Value {
    serde_json::from_slice(&fs::read(dir.join("incident.json")).unwrap()).unwrap()
}
