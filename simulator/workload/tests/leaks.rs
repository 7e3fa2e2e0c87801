//! The truth that `leaks --list` tells, against the simulated driver's own account.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so")]

mod common;

use std::collections::BTreeSet;

use common::{Stage, list, number};
use serde_json::Value;

fn scenarios() -> Vec<Value> {
    let text = Stage::new().run(&["leaks", "--list"]);
    serde_json::from_str::<Vec<Value>>(&text).unwrap()
}

fn word<'a>(entry: &'a Value, name: &str) -> &'a str {
    entry[name].as_str().unwrap()
}

/// How much is left of a kind of memory, or of all: how many allocations.
fn left(scenario: &Value, times: u64, seed: &str, kind: Option<&str>) -> usize {
    let stage = Stage::new();
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
fn what_leaks_grows_on_at_its_pace_in_longer_runs() {
    let mut tried = 0;
    for scenario in scenarios().iter().filter(|one| can_run(one)) {
        // The account tells memory, and no objects.
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
fn what_does_not_leak_is_as_much_after_three_times_as_long() {
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
fn the_same_seed_makes_the_same_calls() {
    for name in ["noisy-leak", "random-walk", "emptied-cache", "one-thread-leak"] {
        let account = |seed: &str| {
            let stage = Stage::new();
            stage.run(&["leaks", name, "--no-wait", "--seed", seed]);
            let account = stage.account();
            ["allocations", "frees", "live_bytes"].map(|field| number(&account, field))
        };
        assert_eq!(account("7"), account("7"), "{name}");
        assert_ne!(account("7"), account("8"), "{name}");
    }
}

#[test]
fn a_function_of_a_label_is_a_symbol_of_the_program() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_workload")).unwrap();
    let program = String::from_utf8_lossy(&program);
    let scenarios = scenarios();
    let labels =
        scenarios.iter().flat_map(|one| list(one, "leaks").iter().chain(list(one, "others")));
    let functions: BTreeSet<_> = labels.map(|label| word(label, "function")).collect();
    for function in functions {
        // As names stand in mangled ones.
        let symbol = format!("{}{function}", function.len());
        assert!(program.contains(&symbol), "{function}");
    }
}

#[test]
fn an_unknown_scenario_is_an_error() {
    let output = Stage::new().command(&["leaks", "fast"]).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(message.contains("\"fast\"") && message.contains("--list"), "{message}");
}
