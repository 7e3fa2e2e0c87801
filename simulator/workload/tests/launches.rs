//! The programs that launch kernels against the oracle.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::common::{TestEnv, list, number};

const MATMUL: &str = "_ZN6linalg12matmul_tiledIfLi16ELi16EEEvPKT_S3_PS1_iii";
const ADD: &str = "_Z10vector_addPKfS0_Pfi";

/// Returns the launches of each kernel, of all of its handles.
fn by_name(oracle: &Value) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for entry in list(oracle, "launches") {
        let name = entry["name"].as_str().unwrap().to_owned();
        *sums.entry(name).or_default() += number(entry, "launches");
    }
    sums
}

fn expected(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
    pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[test]
fn each_iteration_launches_both_kernels() {
    let env = TestEnv::new();
    env.run(&["launches", "--iterations", "1000"]);
    let oracle = env.oracle();
    assert_eq!(by_name(&oracle), expected(&[(MATMUL, 1000), (ADD, 1000)]));
    let entries = list(&oracle, "launches");
    let types: BTreeSet<_> = entries.iter().map(|entry| entry["type"].as_str().unwrap()).collect();
    assert_eq!((entries.len(), types.len()), (2, 2), "a function and a kernel");
    let matmul = entries.iter().find(|entry| entry["name"] == MATMUL).unwrap();
    let shapes = json!([
        {"grid": [1, 2, 1], "block": [32, 2, 1], "shared": 0, "count": 100},
        {"grid": [2, 1, 1], "block": [64, 1, 1], "shared": 0, "count": 800},
        {"grid": [2, 1, 1], "block": [128, 1, 1], "shared": 1024, "count": 100},
    ]);
    assert_eq!(matmul["shapes"], shapes);
    assert!(list(&oracle, "errors").is_empty(), "{}", oracle["errors"]);
}

#[test]
fn every_thread_of_every_process_launches_every_kernel() {
    let env = TestEnv::new();
    let options = "--iterations 5 --kernels 200 --threads 16 --processes 4 --failing 7";
    let mut arguments = vec!["launches"];
    arguments.extend(options.split(' '));
    env.run(&arguments);
    let oracles = env.oracles();
    assert_eq!(oracles.len(), 4);
    for oracle in &oracles {
        let names = by_name(oracle);
        assert_eq!(names.len(), 200);
        assert!(names.values().all(|count| *count == 5 * 16), "{names:?}");
        assert!(names.contains_key("_ZN5model8step_199EPfi"));
        let entries = list(oracle, "launches");
        let kernels = entries.iter().filter(|entry| entry["type"] == "kernel").count();
        assert_eq!((entries.len(), kernels), (200, 100), "half by each type of handle");
        let failed: u64 = entries.iter().map(|entry| number(entry, "failed")).sum();
        assert_eq!(failed, 7);
        let errors: u64 = list(oracle, "errors").iter().map(|e| number(e, "count")).sum();
        assert_eq!(errors, 7, "{}", oracle["errors"]);
        assert_eq!(list(oracle, "errors").len(), 6, "each way to launch failed");
        assert!(list(oracle, "errors").iter().all(|error| error["code"] == 1));
    }
}

#[test]
fn launch_late_continues_after_the_wait() {
    let env = TestEnv::new();
    let arguments = ["launch-late", "--before", "3", "--iterations", "40"];
    let mut child =
        env.command(&arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(by_name(&env.oracle()), expected(&[(MATMUL, 43), (ADD, 43)]));
}

#[test]
fn launch_late_can_wait_for_a_time() {
    let env = TestEnv::new();
    let options = ["--before", "0", "--iterations", "2", "--kernels", "1", "--wait-ms", "1"];
    let mut arguments = vec!["launch-late"];
    arguments.extend(options);
    let output = env.run(&arguments);
    assert!(output.starts_with("ready"), "{output}");
    assert_eq!(by_name(&env.oracle()), expected(&[(MATMUL, 2)]));
}
