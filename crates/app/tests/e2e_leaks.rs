//! Leaks of running programs are named, and what only looks like one is not: a few scenarios of the
//! corpus that `./dev bench leaks` runs in full.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "fails as tests do")]

mod harness;

use harness::{Stage, simulator};
use serde_json::Value;

/// The truth about a scenario, as the program itself tells it.
fn truth(name: &str) -> Value {
    let stage = Stage::new();
    let workload = simulator().join("workload");
    let output = stage.command(workload).args(["leaks", "--list"]).output().unwrap();
    let scenarios: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let found = scenarios.into_iter().find(|scenario| scenario["name"] == name);
    found.unwrap_or_else(|| panic!("there is no scenario {name}"))
}

/// The functions that a list of labels names.
fn functions(labels: &Value) -> Vec<&str> {
    labels.as_array().unwrap().iter().map(|label| label["function"].as_str().unwrap()).collect()
}

/// Whether a function is on the stack of a suspect.
fn is_through(suspect: &Value, function: &str) -> bool {
    let ending = format!("::{function}");
    let frames = suspect["frames"].as_array().unwrap();
    frames.iter().any(|frame| frame["function"].as_str().unwrap().ends_with(&ending))
}

/// Runs a scenario for some seconds; exactly what leaks in it has to be among the suspects.
fn assert_suspects(name: &str, seconds: &str) {
    let truth = truth(name);
    let stage = Stage::new();
    let run = ["leaks", name, "--seconds", seconds];
    let traced = stage.trace(&["--stacks", "full"], &run);
    assert!(traced.status.success(), "{}", traced.messages);
    let suspects = traced.last()["suspects"].as_array().unwrap();
    for leak in truth["leaks"].as_array().unwrap() {
        let function = leak["function"].as_str().unwrap();
        let named = suspects.iter().find(|suspect| is_through(suspect, function));
        let named = named.unwrap_or_else(|| panic!("{function} is not in {suspects:#?}"));
        for (field, label) in [("resource", "subject"), ("kind", "kind")] {
            assert_eq!(named[field], leak[label], "{named}");
        }
        assert_eq!(named["verdict"], "leak");
        let rate = match leak["subject"].as_str() {
            Some("objects") => "growth_objects_per_hour",
            _ => "growth_bytes_per_hour",
        };
        assert!(named[rate].as_u64().unwrap() > 0, "{named}");
    }
    let guilty = functions(&truth["leaks"]);
    for suspect in suspects {
        let right = guilty.iter().any(|function| is_through(suspect, function));
        assert!(right, "accused wrongly: {suspect}");
    }
}

#[test]
fn what_leaks_is_named_and_what_only_looks_like_it_is_not() {
    // At the same time, for each takes as long as its truth needs to show.
    std::thread::scope(|scope| {
        for name in ["fast-leak", "lru-cache", "stream-leak"] {
            scope.spawn(move || assert_suspects(name, "8"));
        }
    });
}
