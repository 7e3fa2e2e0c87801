//! Random programs over the complete memory API, under real probes and in-process: the ledger
//! matches the driver's oracle for every call. Every seed that ever failed stays in the list; another one is fresh in
//! each run.

#[path = "../../engine/tests/random/run.rs"]
mod random;

use random::seeds;

use crate::harness::{self, TestEnv, trace_both};

fn check(ops: &str, threads: &str, devices: &str, failed: &[u64]) {
    for seed in seeds(failed) {
        let seed = seed.to_string();
        let workload =
            ["--seed", &seed, "random", "--ops", ops, "--threads", threads, "--devices", devices];
        println!("VRAMSCOPE_SEED={seed}, {threads} threads");
        let env = || TestEnv::new().env("SIM_DEVICES", devices);
        trace_both(env, &["--top", "1000000"], &workload);
    }
}

#[test]
fn random_program_with_one_thread_matches_the_driver() {
    check("5000", "1", "2", &[1, 2, 3, 21, 25]);
}

#[test]
fn random_program_with_three_threads_matches_the_driver() {
    // 34 and 38: an address was reused while its context was being destroyed.
    check("5000", "3", "2", &[31, 34, 38, 40]);
}

#[test]
fn random_program_with_eight_threads_matches_the_driver() {
    // 11 to 16: a graph handle was reused while being destroyed; overlapping calls at the peak.
    check("10000", "8", "3", &[11, 13, 14, 15, 16]);
}

#[test]
fn every_api_area_alone_matches_the_driver() {
    let parts = [
        "pitched,managed,pinned,registered",
        "async,pool",
        "physical,mapped,share,multicast",
        "array,mipmapped,external",
        "context,green",
        "graph,capture",
    ];
    let seed = random::seed().to_string();
    for part in parts {
        let workload = [
            "--seed",
            &seed,
            "random",
            "--ops",
            "3000",
            "--threads",
            "4",
            "--devices",
            "2",
            "--only",
            part,
        ];
        println!("VRAMSCOPE_SEED={seed}, only {part}");
        trace_both(TestEnv::new, &["--top", "1000000"], &workload);
    }
}

#[test]
fn random_programs_match_the_older_driver_build() {
    let env = || TestEnv::with_copy_of(&harness::simulator().join("cmpl"));
    let seed = random::seed().to_string();
    let workload = ["--seed", &seed, "random", "--ops", "5000", "--threads", "2", "--devices", "2"];
    println!("VRAMSCOPE_SEED={seed}");
    trace_both(env, &["--top", "1000000"], &workload);
}

#[test]
fn imported_memory_is_counted_once() {
    for (env, traced) in trace_both(TestEnv::new, &[], &["ipc"]) {
        assert_eq!(env.oracles().len(), 2);
        let processes = traced.last()["processes"].as_array().unwrap();
        let imported =
            processes.iter().filter(|p| p["live_bytes_by_kind"].get("imported").is_some()).count();
        assert_eq!(imported, 1, "the importer lists it, and no total counts it twice");
    }
}
