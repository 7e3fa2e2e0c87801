//! Context stacks of threads under real probes: deep stacks, failed destroys, and stacks deeper
//! than the probes track.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests fail as tests do"
)]

mod harness;

use harness::Stage;

fn deep(depth: u32) -> (Stage, harness::Traced) {
    let stage = Stage::new();
    let depth = depth.to_string();
    let traced = stage.trace(&[], &["context-stack", "--depth", &depth]);
    println!("depth {depth}");
    (stage, traced)
}

#[test]
fn deep_context_stack_is_exact() {
    for depth in [1, 4, 8, 9, 16, 64, 200, 254] {
        let (stage, traced) = deep(depth);
        traced.assert_truth(&stage);
        let process = &traced.last()["processes"][0];
        assert_eq!(process["live_bytes"], 10_000);
        assert_eq!(process["released_total"], 2);
    }
}

#[test]
fn too_deep_context_stack_is_inexact_and_bounded() {
    for depth in [256, 300, 1000] {
        let (stage, traced) = deep(depth);
        assert!(traced.status.success(), "{}", traced.messages);
        let (pid, oracle) = stage.oracles().into_iter().next().unwrap();
        let process = harness::process(traced.last(), pid);
        assert_eq!(oracle["live_bytes"], 10_000);
        assert_eq!(process["exact"], false, "{process}");
        assert_eq!(process["uncertainty"]["unknown_context"], 1);
        assert_eq!(process["uncertainty"]["live_bytes_min"], 10_000);
        assert_eq!(process["uncertainty"]["live_bytes_max"], 14_000);
        // The top of the stack was always known.
        assert_eq!(process["released_total"], 1);
        assert_eq!(traced.last()["lost_events"], 0);
    }
}

#[test]
fn failed_context_destroy_keeps_the_stack() {
    for seed in ["1", "7", "8"] {
        let stage = Stage::new().env("SIM_INJECT_FAILURES", "cuCtxDestroy_v2:every2=1");
        let workload = ["--seed", seed, "random", "--ops", "8000", "--devices", "2"];
        println!("seed {seed}");
        stage.trace(&["--top", "1000000"], &workload).assert_truth(&stage);
    }
}
