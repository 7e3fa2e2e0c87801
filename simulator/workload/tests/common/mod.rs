//! Runs programs on the simulated driver and reads what that wrote down.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so")]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

const WORKLOAD: &str = env!("CARGO_BIN_EXE_workload");

/// The simulated driver that was built last.
fn driver() -> PathBuf {
    let folder = Path::new(WORKLOAD).parent().unwrap();
    let built = ["libcuda.so", "deps/libcuda.so"].map(|name| folder.join(name));
    let newest = built
        .into_iter()
        .filter(|path| path.is_file())
        .max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    newest.unwrap_or_else(|| {
        panic!(
            "{} has no simulated driver: `cargo build -p vramscope-sim-driver` builds it",
            folder.display()
        )
    })
}

/// A folder with the driver as programs look for it, and one for the accounts.
pub(crate) struct Stage(TempDir);

impl Stage {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        symlink(driver(), folder.path().join("libcuda.so.1")).unwrap();
        Self(folder)
    }

    /// A program that finds the driver.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(WORKLOAD);
        command
            .args(arguments)
            .env("LD_LIBRARY_PATH", self.0.path())
            .env("SIM_ORACLE_DIR", self.0.path().join("truth"))
            .stdin(Stdio::null());
        command
    }

    /// Runs a program that must go well; gives what it said.
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The accounts of all processes that used the driver.
    pub(crate) fn accounts(&self) -> Vec<Value> {
        let files = std::fs::read_dir(self.0.path().join("truth")).unwrap();
        let texts = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
        texts.map(|text| serde_json::from_str(&text).unwrap()).collect()
    }

    /// The only account.
    pub(crate) fn account(&self) -> Value {
        let mut accounts = self.accounts();
        assert_eq!(accounts.len(), 1);
        accounts.remove(0)
    }
}

/// The entries of a list of an account.
pub(crate) fn list<'a>(account: &'a Value, name: &str) -> &'a [Value] {
    account[name].as_array().unwrap()
}

/// A number of an entry.
pub(crate) fn number(entry: &Value, name: &str) -> u64 {
    entry[name].as_u64().unwrap()
}
