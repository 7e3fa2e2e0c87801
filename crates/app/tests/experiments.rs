//! The published experiments can be repeated and detect errors, and their page is generated from
//! the results.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::harness::files::root;
use crate::harness::{ONLY_LIBRARIES_IN, VRAMSCOPE, simulator};

/// Time limit for the runner, in seconds.
const RUNNER_TIMEOUT_SECONDS: &str = "180";

/// Runs `experiments/published/run ARGUMENTS`.
fn run(arguments: &[&str]) -> Output {
    let runner = root().join("experiments/published/run");
    Command::new("timeout")
        .env(ONLY_LIBRARIES_IN, simulator())
        .args([RUNNER_TIMEOUT_SECONDS.as_ref(), runner.as_os_str()])
        .args(arguments)
        .output()
        .unwrap()
}

/// Runs the named experiments in short form on the simulated driver; results go to a directory.
fn simulate(vramscope: &Path, only: &str, dir: &Path) -> Output {
    run(&[
        "--driver",
        "simulated",
        "--quick",
        "--only",
        only,
        "--vramscope",
        vramscope.to_str().unwrap(),
        "--simulator",
        simulator().to_str().unwrap(),
        "--out",
        dir.to_str().unwrap(),
    ])
}

fn result(dir: &Path, name: &str) -> Value {
    let path = dir.join(format!("{name}-this-machine.json"));
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// Returns the comparisons of an experiment: name, expected, reported.
fn comparisons(result: &Value) -> Vec<(String, Value, Value)> {
    let cases = result["cases"].as_array().unwrap().iter();
    let checks = cases.flat_map(|case| case["checks"].as_array().unwrap());
    checks
        .map(|row| {
            (
                row["value"].as_str().unwrap().to_owned(),
                row["expected"].clone(),
                row["reported"].clone(),
            )
        })
        .collect()
}

#[test]
fn experiments_run_on_the_simulated_driver() {
    let dir = tempfile::tempdir().unwrap();
    let output = simulate(Path::new(VRAMSCOPE), "correctness,threads", dir.path());
    let messages = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{messages}");

    // Sixty steps of four allocations each, of which every twentieth keeps one of 8 MiB.
    let found = comparisons(&result(dir.path(), "correctness"));
    for (name, value) in [("allocations", 240), ("frees", 237), ("live bytes", 3 << 23)] {
        let row = found.iter().find(|(metric, ..)| metric == name).unwrap();
        assert_eq!((&row.1, &row.2), (&value.into(), &value.into()), "{name}");
    }
    let found = comparisons(&result(dir.path(), "threads"));
    let threads = found.iter().filter(|(metric, ..)| metric.starts_with("live bytes of worker-"));
    assert_eq!(threads.count(), 5, "{found:?}");
}

#[test]
fn wrong_value_fails_the_experiment() {
    let dir = tempfile::tempdir().unwrap();
    let wrapper = dir.path().join("vramscope");
    let script = format!(
        "#!/bin/sh\n{VRAMSCOPE} \"$@\" || exit $?\nfor word; do case $word in *.jsonl) \
         sed -i 's/\"frees_total\":237/\"frees_total\":236/' \"$word\";; esac; done\n"
    );
    fs::write(&wrapper, script).unwrap();
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
    let output = simulate(&wrapper, "correctness", dir.path());
    let messages = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{messages}");
    assert!(messages.contains("frees: expected 237, reported 236"), "{messages}");
    assert_eq!(result(dir.path(), "correctness")["verdict"], "off");
}

#[test]
fn experiments_page_is_generated_from_results() {
    let output = run(&["--report", "--page", "-"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = fs::read_to_string(root().join("docs/internals/experiments.md")).unwrap();
    assert!(page.contains("### Correctness on build-machine: exact"));
    assert!(
        String::from_utf8(output.stdout).unwrap() == page,
        "docs/internals/experiments.md is stale: run experiments/published/run --report"
    );
}

/// Returns the long options in a help text.
fn options(mut command: Command) -> BTreeSet<String> {
    let output = command.arg("--help").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let help = String::from_utf8(output.stdout).unwrap();
    let words = help.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    words.filter(|word| word.starts_with("--")).map(str::to_owned).collect()
}

#[test]
fn python_programs_take_the_workload_options() {
    for program in ["train", "stressor", "threads", "anomaly", "spam"] {
        let mut workload = Command::new(simulator().join("workload"));
        workload.arg(program);
        let mut python = Command::new("python3");
        python.arg("-B").arg(root().join(format!("experiments/published/workloads/{program}.py")));
        let (theirs, ours) = (options(workload), options(python));
        assert!(theirs.len() > 4, "{theirs:?}");
        assert!(ours.is_superset(&theirs), "{program}.py lacks {:?}", theirs.difference(&ours));
    }
}
