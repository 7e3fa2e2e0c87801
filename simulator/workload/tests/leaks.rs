//! The labels of `leaks --list` against the oracle.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

mod common;

use std::collections::BTreeSet;

use common::{TestEnv, list, number};
use serde_json::Value;

fn scenarios() -> Vec<Value> {
    let text = TestEnv::new().run(&["leaks", "--list"]);
    serde_json::from_str::<Vec<Value>>(&text).unwrap()
}

fn word<'a>(entry: &'a Value, name: &str) -> &'a str {
    entry[name].as_str().unwrap()
}

/// Returns the number of allocations that are left, of one kind or of all.
fn left(scenario: &Value, times: u64, seed: &str, kind: Option<&str>) -> usize {
    let stage = TestEnv::new();
    let seconds = (number(scenario, "seconds") * times).to_string();
    let name = word(scenario, "name");
    stage.run(&["leaks", name, "--no-wait", "--seconds", &seconds, "--seed", seed]);
    let account = stage.account();
    let live = list(&account, "live").iter();
    live.filter(|one| kind.is_none_or(|kind| word(one, "kind") == kind)).count()
}

fn can_run(scenario: &Value) -> bool {
    list(scenario, "missing").is_empty()
}

#[test]
fn leaks_grow_in_proportion_to_the_duration() {
    let mut tried = 0;
    for scenario in scenarios().iter().filter(|one| can_run(one)) {
        // The oracle lists live memory, but not objects.
        let leaks = list(scenario, "leaks").iter().filter(|leak| word(leak, "subject") == "memory");
        for leak in leaks {
            for seed in ["1", "2"] {
                let kind = Some(word(leak, "kind"));
                let [once, twice, thrice] =
                    [1, 2, 3].map(|times| left(scenario, times, seed, kind));
                let goes_on = twice >= once + 10 && thrice >= twice + 10;
                let at_its_pace = 2 * thrice + once >= 3 * twice;
                assert!(goes_on && at_its_pace, "{scenario}: {once}, {twice}, {thrice}");
                tried += 1;
            }
        }
    }
    assert!(tried > 40, "{tried}");
}

#[test]
fn healthy_scenarios_do_not_grow_in_longer_runs() {
    let mut tried = 0;
    for scenario in scenarios().iter().filter(|one| can_run(one)) {
        let leaks = list(scenario, "leaks");
        if leaks.iter().any(|leak| word(leak, "subject") == "memory") {
            continue;
        }
        for seed in ["1", "2"] {
            let (once, thrice) = (left(scenario, 1, seed, None), left(scenario, 3, seed, None));
            assert!(thrice <= once + once / 4 + 12, "{scenario}: {once}, then {thrice}");
            tried += 1;
        }
    }
    assert!(tried > 40, "{tried}");
}

#[test]
fn same_seed_makes_the_same_calls() {
    for name in ["noisy-leak", "random-walk", "emptied-cache", "one-thread-leak"] {
        let account = |seed: &str| {
            let stage = TestEnv::new();
            stage.run(&["leaks", name, "--no-wait", "--seed", seed]);
            let account = stage.account();
            ["allocations", "frees", "live_bytes"].map(|field| number(&account, field))
        };
        assert_eq!(account("7"), account("7"), "{name}");
        assert_ne!(account("7"), account("8"), "{name}");
    }
}

#[test]
fn labeled_functions_are_symbols_of_the_program() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_workload")).unwrap();
    let program = String::from_utf8_lossy(&program);
    let scenarios = scenarios();
    let labels =
        scenarios.iter().flat_map(|one| list(one, "leaks").iter().chain(list(one, "others")));
    let functions: BTreeSet<_> = labels.map(|label| word(label, "function")).collect();
    for function in functions {
        // Names are prefixed with their length in mangled symbols.
        let symbol = format!("{}{function}", function.len());
        assert!(program.contains(&symbol), "{function}");
    }
}

#[test]
fn unknown_scenario_is_rejected() {
    let output = TestEnv::new().command(&["leaks", "fast"]).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(message.contains("\"fast\"") && message.contains("--list"), "{message}");
}
