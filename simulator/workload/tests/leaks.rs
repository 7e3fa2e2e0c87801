//! The labels of `leaks --list` against the oracle.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::common::{TestEnv, list, number};

fn scenarios() -> Vec<Value> {
    let text = TestEnv::new().run(&["leaks", "--list"]);
    serde_json::from_str::<Vec<Value>>(&text).unwrap()
}

fn text<'a>(entry: &'a Value, name: &str) -> &'a str {
    entry[name].as_str().unwrap()
}

/// Returns the number of allocations that are left, of one kind or of all.
fn live_count(scenario: &Value, times: u64, seed: &str, kind: Option<&str>) -> usize {
    let env = TestEnv::new();
    let seconds = (number(scenario, "seconds") * times).to_string();
    let name = text(scenario, "name");
    env.run(&["leaks", name, "--no-wait", "--seconds", &seconds, "--seed", seed]);
    // A scenario may have a child process.
    let oracles = env.oracles();
    // Everything is freed at the end.
    if text(scenario, "group") == "exit" || name == "communicator-leak" {
        let allocations: u64 = oracles.iter().map(|oracle| number(oracle, "allocations")).sum();
        return usize::try_from(allocations).unwrap();
    }
    let live = oracles.iter().flat_map(|oracle| list(oracle, "live"));
    live.filter(|entry| kind.is_none_or(|kind| text(entry, "kind") == kind)).count()
}

fn can_run(scenario: &Value) -> bool {
    list(scenario, "missing").is_empty()
}

#[test]
fn leaks_grow_in_proportion_to_the_duration() {
    let mut runs = 0;
    for scenario in scenarios().iter().filter(|scenario| can_run(scenario)) {
        // The oracle lists live memory, but not objects.
        let leaks = list(scenario, "leaks").iter().filter(|leak| text(leak, "subject") == "memory");
        for leak in leaks {
            for seed in ["1", "2"] {
                let kind = Some(text(leak, "kind"));
                let [once, twice, thrice] =
                    [1, 2, 3].map(|times| live_count(scenario, times, seed, kind));
                let keeps_growing = twice >= once + 10 && thrice >= twice + 10;
                let keeps_its_rate = 2 * thrice + once >= 3 * twice;
                assert!(keeps_growing && keeps_its_rate, "{scenario}: {once}, {twice}, {thrice}");
                runs += 1;
            }
        }
    }
    assert!(runs > 40, "{runs}");
}

#[test]
fn healthy_scenarios_do_not_grow_in_longer_runs() {
    let mut runs = 0;
    for scenario in scenarios().iter().filter(|scenario| can_run(scenario)) {
        let leaks = list(scenario, "leaks");
        if leaks.iter().any(|leak| text(leak, "subject") == "memory") {
            continue;
        }
        for seed in ["1", "2"] {
            let (once, thrice) =
                (live_count(scenario, 1, seed, None), live_count(scenario, 3, seed, None));
            assert!(thrice <= once + once / 4 + 12, "{scenario}: {once}, then {thrice}");
            runs += 1;
        }
    }
    assert!(runs > 40, "{runs}");
}

#[test]
fn same_seed_makes_the_same_calls() {
    for name in ["noisy-leak", "random-walk", "emptied-cache", "one-thread-leak"] {
        let oracle = |seed: &str| {
            let env = TestEnv::new();
            env.run(&["leaks", name, "--no-wait", "--seed", seed]);
            let oracle = env.oracle();
            ["allocations", "frees", "live_bytes"].map(|field| number(&oracle, field))
        };
        assert_eq!(oracle("7"), oracle("7"), "{name}");
        assert_ne!(oracle("7"), oracle("8"), "{name}");
    }
}

#[test]
fn labeled_functions_are_symbols_of_the_program() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_workload")).unwrap();
    let program = String::from_utf8_lossy(&program);
    let scenarios = scenarios();
    let labels = scenarios
        .iter()
        .flat_map(|scenario| list(scenario, "leaks").iter().chain(list(scenario, "others")));
    let functions: BTreeSet<_> = labels.map(|label| text(label, "function")).collect();
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
