//! Leaks of running programs are found, and similar patterns are not reported: a few scenarios of
//! the corpus that `./dev bench leaks` runs in full.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::harness::{TestEnv, simulator};

/// Returns the labels of a scenario, as the workload prints them.
fn labels(name: &str) -> Value {
    let env = TestEnv::new();
    let workload = simulator().join("workload");
    let output = env.command(workload).args(["leaks", "--list"]).output().unwrap();
    let scenarios: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let found = scenarios.into_iter().find(|scenario| scenario["name"] == name);
    found.unwrap_or_else(|| panic!("unknown scenario {name}"))
}

/// Returns the functions in a list of labels.
fn functions(labels: &Value) -> Vec<&str> {
    labels.as_array().unwrap().iter().map(|label| label["function"].as_str().unwrap()).collect()
}

/// Whether a function is on the stack of a suspect.
fn is_through(suspect: &Value, function: &str) -> bool {
    let ending = format!("::{function}");
    let frames = suspect["frames"].as_array().unwrap();
    frames.iter().any(|frame| frame["function"].as_str().unwrap().ends_with(&ending))
}

/// Runs a scenario for some seconds; the suspects must be exactly its leaks.
fn assert_suspects(name: &str, seconds: &str) {
    let labels = labels(name);
    let env = TestEnv::new();
    let run = ["leaks", name, "--seconds", seconds];
    // Each is called from one place, so it cannot be recognized as a wrapper.
    let wrappers = ["stream", "module"].map(|name| format!("--wrapper={name}"));
    let options: Vec<&str> =
        ["--stacks", "full"].into_iter().chain(wrappers.iter().map(String::as_str)).collect();
    let traced = env.trace(&options, &run);
    assert!(traced.status.success(), "{}", traced.messages);
    let suspects = traced.last()["suspects"].as_array().unwrap();
    for leak in labels["leaks"].as_array().unwrap() {
        let function = leak["function"].as_str().unwrap();
        let is_labeled = |suspect: &&Value| {
            is_through(suspect, function)
                && suspect["resource"] == leak["subject"]
                && suspect["kind"] == leak["kind"]
        };
        let named = suspects.iter().find(is_labeled);
        let named = named.unwrap_or_else(|| panic!("{leak} is not in {suspects:#?}"));
        let headline = named["location"].as_str().unwrap();
        assert!(headline.contains(&format!("::{function} ")), "{headline}");
        assert_eq!(named["verdict"], "leak");
        assert!(!named["cause"].as_str().unwrap().is_empty(), "{named}");
        let rate = ["growth_objects_per_hour", "growth_bytes_per_hour"];
        assert!(rate.iter().any(|rate| named[*rate].as_u64() > Some(0)), "{named}");
    }
    let leaking: BTreeSet<&str> = functions(&labels["leaks"]).into_iter().collect();
    let leaks = traced.last()["leaks"].as_array().unwrap();
    assert_eq!(leaks.len(), leaking.len(), "one leak per function: {leaks:#?}");
    for suspect in suspects {
        let right = leaking.iter().any(|function| is_through(suspect, function));
        assert!(right, "wrong suspect: {suspect}");
    }
}

#[test]
fn suspects_are_exactly_the_leaks_of_each_scenario() {
    // In parallel, because each scenario takes as long as its pattern needs.
    std::thread::scope(|scope| {
        for name in ["fast-leak", "lru-cache", "stream-leak", "destructor-leak", "plan-leak"] {
            scope.spawn(move || assert_suspects(name, "9"));
        }
    });
}
