//! Call stacks of allocations: real programs with known call chains, by name and line.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::harness::{self, TestEnv, VRAMSCOPE};

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/stacks").join(name)
}

/// Returns the lines of all marks.
fn marks(name: &str) -> BTreeMap<String, u64> {
    let text = std::fs::read_to_string(source(name)).unwrap();
    let mark = |(line, text): (usize, &str)| {
        let (_, mark) = text.split_once("mark: ")?;
        let word: String = mark.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        Some((word, line as u64 + 1))
    };
    text.lines().enumerate().filter_map(mark).collect()
}

/// One frame: the last part of the function name, and the line.
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

/// Traces a program with probes and in-process: `vramscope VERB --json … -- PROGRAM`.
fn trace_both(env: &TestEnv, options: &[&str], program: &[&str]) -> [Traced; 2] {
    ["trace", "run"].map(|verb| trace(env, verb, options, program))
}

fn trace(env: &TestEnv, verb: &str, options: &[&str], program: &[&str]) -> Traced {
    let output = env
        .command(VRAMSCOPE)
        .args([verb, "--json", "--interval", "200ms", "--top", "1000"])
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

fn build(env: &TestEnv, compiler: &str, file: &str, options: &[&str]) -> String {
    let output = env.dir.path().join(format!("{file}.out"));
    let status = Command::new(compiler)
        .args(options)
        .arg("-o")
        .arg(&output)
        .arg(source(file))
        .args(if compiler == "rustc" {
            &["-C", "link-arg=-l:libcuda.so.1", "-L"][..]
        } else {
            &["-pthread"]
        })
        .arg(if compiler == "rustc" { env.driver.parent().unwrap() } else { &env.driver })
        .status()
        .unwrap();
    assert!(status.success());
    output.to_str().unwrap().to_owned()
}

/// Checks the chain of chain.c: ten allocations, half of them freed.
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
        assert!(frames.iter().all(|frame| frame["unknown_reason"].is_null()), "{site}");
        let last = frames.last().unwrap()["function"].as_str().unwrap();
        assert!(["_start", "clone", "__clone3", "clone3", "__clone"].contains(&last), "{last}");
    }
}

#[test]
fn c_frames_have_names_and_lines_without_frame_pointers() {
    let env = TestEnv::new();
    let program = build(&env, "gcc", "chain.c", &["-g", "-O2", "-fomit-frame-pointer"]);
    for traced in trace_both(&env, &["--stacks", "full"], &[&program]) {
        assert_chain(&traced.last, true);
        // Functions that the compiler inlined are also frames.
        let marks = marks("chain.c");
        site(
            &traced.last,
            &[("middle", 0), ("inlined", marks["inlined"]), ("outer", marks["outer"])],
        );
    }
}

#[test]
fn c_frames_with_frame_pointers_need_no_unwind_tables() {
    let env = TestEnv::new();
    let options = ["-g", "-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"];
    let program = build(&env, "gcc", "chain.c", &options);
    for traced in trace_both(&env, &["--stacks", "fp"], &[&program]) {
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
}

#[test]
fn stripped_code_has_separate_sites_without_names() {
    let env = TestEnv::new();
    let program = build(&env, "gcc", "chain.c", &["-O2", "-s", "-fomit-frame-pointer"]);
    for traced in trace_both(&env, &["--stacks", "full", "--no-objects"], &[&program]) {
        let sites = traced.last["sites"].as_array().unwrap();
        assert_eq!(sites.len(), 2, "{sites:?}");
        for site in sites {
            let own: Vec<_> = site["frames"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|frame| {
                    frame["module"].as_str().is_some_and(|module| module.ends_with("chain.c.out"))
                })
                .collect();
            assert!(!own.is_empty());
            for frame in own {
                assert_eq!(frame["unknown_reason"], "no_symbol", "{frame}");
            }
        }
    }
}

#[test]
fn variable_stack_frames_do_not_split_a_site() {
    let env = TestEnv::new();
    let program = build(&env, "gcc", "chain.c", &["-g", "-O2", "-fomit-frame-pointer"]);
    for traced in trace_both(&env, &["--stacks", "full"], &[&program, "many"]) {
        let found = site(&traced.last, &[("inner", 0), ("outer", 0), ("main", 0)]);
        assert_eq!(found["allocations_total"], 1000);
        assert_eq!(found["live_allocations"], 500);
        assert_eq!(traced.last["exact"], true);
        assert_eq!(traced.messages.matches("stack").count(), 0, "{}", traced.messages);
    }
}

#[test]
fn cpp_names_are_readable() {
    let env = TestEnv::new();
    let program = build(&env, "g++", "chain.cpp", &["-g", "-O2"]);
    for traced in trace_both(&env, &["--stacks", "full"], &[&program]) {
        let marks = marks("chain.cpp");
        let chain = [
            ("model::Tensor<float>::Tensor", marks["tensor"]),
            ("model::Linear::forward", marks["forward"]),
            ("operator()", marks["lambda"]),
            ("model::each", 0),
            ("main", 0),
        ];
        let found = site(&traced.last, &chain);
        assert_eq!(found["allocations_total"], 4);
        assert_eq!(found["live_bytes"], (1 + 2 + 3 + 4) * 1024);
    }
}

#[test]
fn rust_names_are_readable() {
    let env = TestEnv::new();
    let program = build(&env, "rustc", "chain.rs", &["-g", "-O", "--edition", "2024"]);
    for traced in trace_both(&env, &["--stacks", "full"], &[&program]) {
        let marks = marks("chain.rs");
        let chain = [
            ("chain::Device as chain::Store>::put", marks["put"]),
            ("chain::fill", marks["closure"]),
            ("chain::main", marks["main"]),
        ];
        assert_eq!(site(&traced.last, &chain)["live_bytes"], 600);
    }
}

/// Returns every available Python: the one on the path, and those configured for the tests.
fn pythons() -> Vec<String> {
    let named = std::env::var("VRAMSCOPE_PYTHONS").unwrap_or_default();
    let named = named.split(':').filter(|path| !path.is_empty()).map(str::to_owned);
    std::iter::once("python3".to_owned()).chain(named).collect()
}

/// From 3.12 on a comprehension is not a separate function, and before 3.11 names are not
/// qualified.
fn version(python: &str) -> (u64, u64) {
    let code = "import sys; print(*sys.version_info[:2])";
    let output = Command::new(python).args(["-c", code]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut words = text.split_whitespace().map(|word| word.parse().unwrap());
    (words.next().unwrap(), words.next().unwrap())
}

fn assert_python(report: &Value, python: &str) {
    let marks = marks("chain.py");
    let leaf = ("allocate", marks["allocate"]);
    let version = version(python);
    let name = |qualified: &'static str| match version >= (3, 11) {
        true => qualified,
        false => qualified.rsplit('.').next().unwrap(),
    };
    let within = if version >= (3, 12) {
        vec![(name("Model.Layer.forward"), marks["comprehension"])]
    } else {
        vec![
            (name("Model.Layer.forward.<locals>.<listcomp>"), marks["comprehension"]),
            (name("Model.Layer.forward"), 0),
        ]
    };
    let chain: Vec<_> = [("cuMemAlloc_v2", 0), ("ffi_call", 0), leaf]
        .into_iter()
        .chain(within)
        .chain([
            (name("Model.__call__"), marks["call"]),
            ("train", 0),
            ("<module>", marks["module"]),
        ])
        .chain([("__libc_start", 0)])
        .collect();
    assert_eq!(site(report, &chain)["live_bytes"], 2000);
    let chain = [leaf, ("generated", marks["generator"]), ("train", marks["list"])];
    assert_eq!(site(report, &chain)["live_allocations"], 2);
    // A built-in function calls back into Python: two runs of the interpreter.
    let lambda = name("größe.<locals>.<lambda>");
    let chain = [
        leaf,
        (lambda, marks["lambda"]),
        ("größe", marks["lambda"]),
        ("train", marks["non_ascii"]),
    ];
    assert_eq!(site(report, &chain)["live_allocations"], 2);
    let chain = [
        leaf,
        ("on_thread", marks["thread"]),
        (name("Thread.run"), 0),
        (name("Thread._bootstrap"), 0),
        ("clone", 0),
    ];
    assert_eq!(site(report, &chain)["live_bytes"], 5000);
    // The context that the program creates has a site as well.
    let allocates = |site: &&Value| !site["kinds"].as_array().unwrap().is_empty();
    for site in report["sites"].as_array().unwrap().iter().filter(allocates) {
        let frames = site["frames"].as_array().unwrap();
        assert!(
            frames
                .iter()
                .all(|frame| frame["unknown_reason"].is_null() || frame["language"] == "native"),
            "{site}"
        );
        let hidden = |frame: &Value| frame["function"].as_str().unwrap().starts_with("_PyEval");
        assert!(!frames.iter().any(hidden), "{site}");
        let own = frames.iter().find(|frame| frame["function"] == "allocate").unwrap();
        assert_eq!(own["language"], "python");
        assert!(own["file"].as_str().unwrap().ends_with("chain.py"));
    }
}

/// Traces a program that runs until its input ends, after all its Python frames are resolved: they
/// are read from the memory of the process.
fn trace_held(env: &TestEnv, verb: &str, program: &[&str]) -> Value {
    let mut tracer = env
        .command(VRAMSCOPE)
        .args([verb, "--json", "--interval", "200ms", "--top", "1000", "--stacks", "full", "--"])
        .args(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = tracer.stdin.take();
    let mut last = Value::Null;
    let end = Instant::now() + harness::WAIT_TIMEOUT;
    for line in BufReader::new(tracer.stdout.take().unwrap()).lines() {
        last = serde_json::from_str(&line.unwrap()).unwrap();
        let sites = last["sites"].as_array().unwrap();
        let frames = || sites.iter().flat_map(|site| site["frames"].as_array().unwrap());
        let is_named =
            |frame: &Value| frame["language"] != "python" || frame["unknown_reason"].is_null();
        let is_complete =
            frames().any(|frame| frame["function"] == "on_thread") && frames().all(is_named);
        if is_complete || Instant::now() > end {
            input = None;
        }
    }
    assert!(input.is_none() && tracer.wait().unwrap().success(), "{last:#}");
    last
}

#[test]
fn python_frames_have_names_and_lines_among_native_code() {
    for python in pythons() {
        // Like real drivers, this one takes time to initialize; the interpreter is detected
        // meanwhile.
        let env = TestEnv::new().env("SIM_INIT_MS", "300");
        let script = source("chain.py");
        for verb in ["trace", "run"] {
            let last = trace_held(&env, verb, &[&python, script.to_str().unwrap(), "hold"]);
            assert_python(&last, &python);
            assert_eq!(last["exact"], true);
        }
    }
}

#[test]
fn running_python_program_has_frames_from_its_next_call() {
    for python in pythons() {
        let env = TestEnv::new();
        let script = source("chain.py");
        let mut workload =
            harness::Workload::start(env.command(&python).args([script.to_str().unwrap(), "wait"]));
        workload.wait_ready();
        let mut tracer = env.start_trace(&["-p", &workload.pid().to_string()]);
        tracer.next();
        workload.go();
        let marks = marks("chain.py");
        let chain =
            [("cuMemAlloc_v2", 0), ("allocate", marks["allocate"]), ("<module>", marks["late"])];
        tracer.wait_for("three allocations with Python frames", |report| {
            let sites = report["sites"].as_array().unwrap();
            let found = sites.iter().find(|site| goes_through(site, &chain));
            found.is_some_and(|site| site["live_allocations"] == 3)
        });
    }
}

/// Attaches foreign return probes to functions of a program, in every process.
fn probe_returns(env: &TestEnv, program: &str, functions: &[&str]) -> harness::Workload {
    let symbols = Command::new("nm").arg(program).output().unwrap();
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    // The code of these programs is mapped at its file offset.
    let offset = |function: &&str| {
        let line = symbols.lines().find(|line| line.ends_with(&format!(" t {function}"))).unwrap();
        line.split(' ').next().unwrap().to_owned()
    };
    let prober = env.dir.path().join("probe");
    harness::compile("stacks/probe.c", &prober, &[]);
    let mut command = env.command(prober);
    command.arg(program).args(functions.iter().map(offset));
    let mut workload = harness::Workload::start(&mut command);
    workload.wait_ready();
    workload
}

#[test]
fn return_addresses_hidden_by_other_probes_are_restored() {
    for stacks in ["full", "fp"] {
        let env = TestEnv::new();
        let options = [
            "-g",
            "-O1",
            "-fno-omit-frame-pointer",
            "-fno-optimize-sibling-calls",
            "-fcf-protection=none",
        ];
        let program = build(&env, "gcc", "chain.c", &options);
        let _probes = probe_returns(&env, &program, &["outer", "middle"]);
        let traced = trace(&env, "trace", &["--stacks", stacks], &[&program]);
        let marks = marks("chain.c");
        let chain = [
            ("inner", marks["inner"]),
            ("middle", marks["middle"]),
            ("outer", marks["outer"]),
            ("main", marks["main"]),
        ];
        let found = site(&traced.last, &chain);
        assert_eq!(found["allocations_total"], 10, "{stacks}: {found}");
    }
}

#[test]
fn full_stack_ring_loses_stacks_and_no_calls() {
    let env = TestEnv::new();
    let program = build(&env, "gcc", "chain.c", &["-g", "-O2", "-fomit-frame-pointer"]);
    // Too small for a single copy.
    let options = ["--stacks", "full", "--stack-ring-size", "4096", "--no-objects"];
    let traced = trace(&env, "trace", &options, &[&program, "many"]);
    assert_eq!(traced.last["exact"], true);
    let process = &traced.last["processes"][0];
    assert_eq!(process["allocations_total"], 1001);
    assert_eq!(traced.last["lost_stacks"], 1001, "{process}");
    let sites = traced.last["sites"].as_array().unwrap();
    assert_eq!(sites.len(), 1, "{sites:?}");
    assert_eq!(sites[0]["live_allocations"], 501);
}
