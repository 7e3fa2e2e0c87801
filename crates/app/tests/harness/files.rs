//! Project files, the binary on files, and the Python scripts that read its output.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use super::VRAMSCOPE;

/// Returns the root directory of the project.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Reads a file of the project.
pub fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the blocks of a page with this mark.
pub fn blocks(page: &str, mark: &str) -> Vec<String> {
    let (page, fence) = (read(page), format!("```{mark}\n"));
    let rest = page.split(&fence).skip(1);
    rest.map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// Returns the path of a file in `tests/fixtures`.
pub fn fixture(name: &str) -> String {
    root().join("crates/app/tests/fixtures").join(name).to_str().unwrap().to_owned()
}

/// Returns the path of a recording from a real GPU.
pub fn recording(program: &str) -> String {
    fixture(&format!("h200/{program}/events.arrows"))
}

/// Runs `vramscope ARGUMENTS`.
pub fn run(arguments: &[&str]) -> Output {
    Command::new(VRAMSCOPE).args(arguments).output().unwrap()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Returns the JSON report of a file.
pub fn report(file: &str, analysis: &str, more: &[&str]) -> Value {
    let arguments = ["report", file, analysis, "--format", "json"];
    let output = run(&[&arguments, more].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns a program of the environment that `tools/python-env` creates. Tests fail without it: a
/// format must be readable by other tools.
pub fn tool(name: &str) -> Command {
    let tool = root().join("target/python/bin").join(name);
    assert!(tool.exists(), "{} not found: run tools/python-env", tool.display());
    Command::new(tool)
}

/// Runs a script of `tests/`, and returns its JSON output.
pub fn script(name: &str, arguments: &[&str]) -> Value {
    let path = root().join("crates/app/tests").join(name);
    let output = tool("python").arg(path).args(arguments).output().unwrap();
    assert!(output.status.success(), "{name} {arguments:?}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}
