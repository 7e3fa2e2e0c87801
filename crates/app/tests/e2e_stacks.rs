//! Where allocations come from: real programs with known chains of calls, by name and line.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "fails as tests do")]

mod harness;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Stage, VRAMSCOPE};
use serde_json::Value;

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/stacks").join(name)
}

/// The lines that marks stand on.
fn marks(name: &str) -> BTreeMap<String, u64> {
    let text = std::fs::read_to_string(source(name)).unwrap();
    let mark = |(line, text): (usize, &str)| {
        let (_, mark) = text.split_once("mark: ")?;
        let word: String = mark.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        Some((word, line as u64 + 1))
    };
    text.lines().enumerate().filter_map(mark).collect()
}

/// One frame: what the function is called (its last part), and the line.
type Step = (String, u64);

fn steps(site: &Value) -> Vec<Step> {
    let frames = site["frames"].as_array().unwrap();
    frames
        .iter()
        .map(|frame| {
            let function = frame["function"].as_str().unwrap_or("").to_owned();
            (function, frame["line"].as_u64().unwrap_or(0))
        })
        .collect()
}

/// Whether a site goes through these functions at these lines, in this order, innermost first.
fn goes_through(site: &Value, chain: &[(&str, u64)]) -> bool {
    let steps = steps(site);
    let mut at = steps.iter();
    chain.iter().all(|(name, line)| {
        at.any(|(function, found)| function.contains(name) && (*line == 0 || found == line))
    })
}

fn site<'a>(report: &'a Value, chain: &[(&str, u64)]) -> &'a Value {
    let sites = report["sites"].as_array().unwrap();
    let found: Vec<_> = sites.iter().filter(|site| goes_through(site, chain)).collect();
    let shown: Vec<_> = sites.iter().map(steps).collect();
    assert_eq!(found.len(), 1, "{chain:?} in {shown:#?}");
    found[0]
}

struct Traced {
    last: Value,
    messages: String,
}

/// `vramscope trace --json … -- PROGRAM`, to its end.
fn trace(stage: &Stage, options: &[&str], program: &[&str]) -> Traced {
    let output = stage
        .command(VRAMSCOPE)
        .args(["trace", "--json", "--interval", "200ms", "--top", "1000"])
        .args(options)
        .arg("--")
        .args(program)
        .output()
        .unwrap();
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{messages}");
    let text = String::from_utf8(output.stdout).unwrap();
    let last = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    Traced { last, messages }
}

fn build(stage: &Stage, compiler: &str, file: &str, options: &[&str]) -> String {
    let output = stage.folder.path().join(format!("{file}.out"));
    let status = Command::new(compiler)
        .args(options)
        .arg("-o")
        .arg(&output)
        .arg(source(file))
        .args(if compiler == "rustc" { &["-C", "link-arg=-l:libcuda.so.1", "-L"][..] } else { &["-pthread"] })
        .arg(if compiler == "rustc" { stage.driver.parent().unwrap() } else { &stage.driver })
        .status()
        .unwrap();
    assert!(status.success());
    output.to_str().unwrap().to_owned()
}

/// The chain of chain.c: ten allocations, half of them freed.
fn assert_chain(report: &Value, with_lines: bool) {
    let marks = marks("chain.c");
    let line = |mark: &str| if with_lines { marks[mark] } else { 0 };
    let chain = [
        ("cuMemAlloc_v2", 0),
        ("inner", line("inner")),
        ("middle", line("middle")),
        ("outer", line("outer")),
        ("main", line("main")),
    ];
    let found = site(report, &chain);
    assert_eq!(found["live_allocations"], 5, "{found}");
    assert_eq!(found["live_bytes"], 5000);
    assert_eq!(found["allocations_total"], 10);
    let thread = site(report, &[("inner", line("inner")), ("on_thread", line("on_thread"))]);
    assert_eq!(thread["live_bytes"], 5000);
    for site in [found, thread] {
        let frames = site["frames"].as_array().unwrap();
        assert!(frames.iter().all(|frame| frame["unknown"].is_null()), "{site}");
        let last = frames.last().unwrap()["function"].as_str().unwrap();
        assert!(["_start", "clone", "__clone3", "clone3", "__clone"].contains(&last), "{last}");
    }
}

#[test]
fn c_code_is_found_by_name_and_line_without_frame_pointers() {
    let stage = Stage::new();
    let program = build(&stage, "gcc", "chain.c", &["-g", "-O2", "-fomit-frame-pointer"]);
    let traced = trace(&stage, &["--stacks", "full"], &[&program]);
    assert_chain(&traced.last, true);
    // What the compiler inlined is a frame all the same.
    let marks = marks("chain.c");
    site(&traced.last, &[("middle", 0), ("inlined", marks["inlined"]), ("outer", marks["outer"])]);
}

#[test]
fn c_code_with_frame_pointers_needs_no_tables() {
    let stage = Stage::new();
    let options = ["-g", "-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"];
    let program = build(&stage, "gcc", "chain.c", &options);
    let traced = trace(&stage, &["--stacks", "fp"], &[&program]);
    let marks = marks("chain.c");
    let chain = [
        ("cuMemAlloc_v2", 0),
        ("inner", marks["inner"]),
        ("middle", marks["middle"]),
        ("outer", marks["outer"]),
        ("main", marks["main"]),
    ];
    assert_eq!(site(&traced.last, &chain)["live_allocations"], 5);
}

#[test]
fn stripped_code_says_so_and_keeps_its_sites_apart() {
    let stage = Stage::new();
    let program = build(&stage, "gcc", "chain.c", &["-O2", "-s", "-fomit-frame-pointer"]);
    let traced = trace(&stage, &["--stacks", "full"], &[&program]);
    let sites = traced.last["sites"].as_array().unwrap();
    assert_eq!(sites.len(), 2, "{sites:?}");
    for site in sites {
        let own: Vec<_> = site["frames"].as_array().unwrap().iter().filter(|frame| {
            frame["module"].as_str().is_some_and(|module| module.ends_with("chain.c.out"))
        }).collect();
        assert!(!own.is_empty());
        for frame in own {
            assert_eq!(frame["unknown"], "no symbol there", "{frame}");
        }
    }
}

#[test]
fn calls_of_one_site_are_one_site_whatever_lies_between_on_the_stack() {
    let stage = Stage::new();
    let program = build(&stage, "gcc", "chain.c", &["-g", "-O2", "-fomit-frame-pointer"]);
    let traced = trace(&stage, &["--stacks", "full"], &[&program, "many"]);
    let found = site(&traced.last, &[("inner", 0), ("outer", 0), ("main", 0)]);
    assert_eq!(found["allocations_total"], 1000);
    assert_eq!(found["live_allocations"], 500);
    assert_eq!(traced.last["exact"], true);
    assert_eq!(traced.messages.matches("stack").count(), 0, "{}", traced.messages);
}

#[test]
fn cpp_names_are_readable() {
    let stage = Stage::new();
    let program = build(&stage, "g++", "chain.cpp", &["-g", "-O2"]);
    let traced = trace(&stage, &["--stacks", "full"], &[&program]);
    let marks = marks("chain.cpp");
    let chain = [
        ("model::Tensor<float>::Tensor", marks["tensor"]),
        ("model::Linear::forward", marks["forward"]),
        ("lambda", marks["lambda"]),
        ("model::each", 0),
        ("main", 0),
    ];
    let found = site(&traced.last, &chain);
    assert_eq!(found["allocations_total"], 4);
    assert_eq!(found["live_bytes"], (1 + 2 + 3 + 4) * 1024);
}

#[test]
fn rust_names_are_readable() {
    let stage = Stage::new();
    let program = build(&stage, "rustc", "chain.rs", &["-g", "-O", "--edition", "2024"]);
    let traced = trace(&stage, &["--stacks", "full"], &[&program]);
    let marks = marks("chain.rs");
    let chain = [
        ("chain::Device as chain::Store>::put", marks["put"]),
        ("chain::fill", marks["closure"]),
        ("chain::main", marks["main"]),
    ];
    assert_eq!(site(&traced.last, &chain)["live_bytes"], 600);
}
