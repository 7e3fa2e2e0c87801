//! Runs programs on the simulated driver and reads the oracle.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

const WORKLOAD: &str = env!("CARGO_BIN_EXE_workload");

/// Returns the simulated driver that was built last.
fn driver() -> PathBuf {
    let dir = Path::new(WORKLOAD).parent().unwrap();
    let built = ["libcuda.so", "deps/libcuda.so"].map(|name| dir.join(name));
    let newest = built
        .into_iter()
        .filter(|path| path.is_file())
        .max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    newest.unwrap_or_else(|| {
        panic!(
            "{} has no simulated driver: `cargo build -p vramscope-sim-driver` builds it",
            dir.display()
        )
    })
}

/// A directory with the driver under its real name, and one for the oracles.
pub(crate) struct TestEnv(TempDir);

impl TestEnv {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        symlink(driver(), dir.path().join("libcuda.so.1")).unwrap();
        Self(dir)
    }

    /// Returns a command whose program finds the driver.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(WORKLOAD);
        command
            .args(arguments)
            .env("LD_LIBRARY_PATH", self.0.path())
            .env("SIM_ORACLE_DIR", self.0.path().join("oracle"))
            .stdin(Stdio::null());
        command
    }

    /// Runs a program that must succeed, and returns its output.
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the oracles of all processes that used the driver.
    pub(crate) fn oracles(&self) -> Vec<Value> {
        let files = std::fs::read_dir(self.0.path().join("oracle")).unwrap();
        let texts = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
        texts.map(|text| serde_json::from_str(&text).unwrap()).collect()
    }

    /// Returns the only oracle.
    pub(crate) fn oracle(&self) -> Value {
        let mut oracles = self.oracles();
        assert_eq!(oracles.len(), 1);
        oracles.remove(0)
    }
}

/// Returns the entries of a list of the oracle.
pub(crate) fn list<'a>(oracle: &'a Value, name: &str) -> &'a [Value] {
    oracle[name].as_array().unwrap()
}

/// Returns a number of an entry.
pub(crate) fn number(entry: &Value, name: &str) -> u64 {
    entry[name].as_u64().unwrap()
}
