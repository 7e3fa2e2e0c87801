//! Allocators other than PyTorch's: reported values match what a stand-in with the symbols and
//! structures of the published builds counts, and driver memory is unaffected.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::harness::{TestEnv, VRAMSCOPE, compile, process};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/allocators").join(name)
}

/// With probes, and in-process.
const VERBS: [&str; 2] = ["trace", "run"];

const POOLS: [(&str, &str); 3] = [
    ("cupy", "cupy/cuda/memory.cpython-312.so"),
    ("xla", "xla_cuda_plugin.so"),
    ("rmm", "librmm.so"),
];

/// Compiles the stand-in under the name of a library.
fn library(env: &TestEnv, name: &str, options: &[&str]) -> PathBuf {
    let path = env.dir.path().join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-fPIC", "-O2", "-fno-shrink-wrap", "-pthread", "-o"]).arg(&path);
    gcc.arg(fixture("pools.c")).args(options);
    assert!(gcc.status().unwrap().success());
    path
}

/// Like real drivers, this one takes time to initialize; the probes are attached meanwhile.
fn env() -> TestEnv {
    TestEnv::new().env("SIM_INIT_MS", "1500")
}

/// Traces the program with a library. Returns the last report and the program's own figures, by
/// process.
fn trace(
    (env, verb): (&TestEnv, &str),
    library: &Path,
    kind: &str,
    mode: &str,
) -> (Value, Vec<Value>) {
    let own = env.dir.path().join("own.json");
    let mut command = env.command(VRAMSCOPE);
    if verb == "trace" && ["after", "late"].contains(&mode) {
        command.env("WAIT_PROBED", "1");
    }
    command.args([verb, "--json", "--allocators", "--", "python3"]).arg(fixture("pools.py"));
    let output = command.arg(library).arg(kind).arg(&own).arg(mode).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let own = std::fs::read_to_string(own).unwrap();
    (
        serde_json::from_str(text.lines().last().unwrap()).unwrap(),
        own.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
    )
}

fn only_process(report: &Value) -> &Value {
    let [only] = &report["processes"].as_array().unwrap()[..] else { panic!("{report}") };
    process(report, only["pid"].as_u64().unwrap() as u32)
}

/// The line of the program that allocates.
fn line() -> u64 {
    let text = std::fs::read_to_string(fixture("pools.py")).unwrap();
    text.lines().position(|line| line.ends_with("# mark: keep")).unwrap() as u64 + 1
}

/// Returns the only allocator of a process, after a comparison with its own figures.
fn assert_pool<'a>(report: &'a Value, own: &Value, kind: &str) -> &'a Value {
    let process = process(report, own["pid"].as_u64().unwrap() as u32);
    let [view] = &process["allocators"].as_array().unwrap()[..] else { panic!("{process}") };
    assert_eq!(view["allocator"], kind, "{view}");
    let [pool] = &view["pools"].as_array().unwrap()[..] else { panic!("{view}") };
    for (ours, theirs) in
        [("allocated_bytes", "used"), ("tracked_bytes", "used"), ("reserved_bytes", "total")]
    {
        assert_eq!(pool[ours], own[theirs], "{kind} {ours}: {pool}");
    }
    for (name, expected) in [
        ("device", 0),
        ("live_blocks", 50),
        ("allocations_total", 100),
        ("frees_total", 50),
        ("unmatched_frees", 0),
    ] {
        assert_eq!(pool[name], expected, "{kind} {name}: {pool}");
    }
    // Nothing is counted twice.
    assert_eq!(process["live_bytes"], own["total"]);
    view
}

#[test]
fn pools_match_their_own_figures() {
    for ((kind, name), verb) in POOLS.iter().flat_map(|pool| VERBS.map(|verb| (*pool, verb))) {
        let env = env();
        let (report, own) = trace((&env, verb), &library(&env, name, &[]), kind, "plain");
        let view = assert_pool(&report, &own[0], kind);
        assert_eq!(view["exact"], true, "{verb}: {view}");
        let sites = report["tensor_sites"].as_array().unwrap();
        let at_line = sites.iter().find(|site| {
            let frames = site["frames"].as_array().unwrap();
            frames.iter().any(|frame| frame["language"] == "python" && frame["line"] == line())
        });
        let site = at_line.unwrap_or_else(|| panic!("{verb}: {sites:#?}"));
        let (bytes, kind) = (&own[0]["used"], &kind.into());
        assert_eq!((&site["kinds"][0]["kind"], &site["live_bytes"]), (kind, bytes), "{verb}");
    }
}

#[test]
fn libraries_loaded_after_cuinit_are_traced() {
    for ((kind, name), verb) in POOLS.iter().flat_map(|pool| VERBS.map(|verb| (*pool, verb))) {
        // Memory of the driver from before may be that of a pool: unknown blocks are possible.
        for (mode, exact) in [("after", true), ("late", false)] {
            let env = env();
            let (report, own) = trace((&env, verb), &library(&env, name, &[]), kind, mode);
            let view = assert_pool(&report, &own[0], kind);
            assert_eq!(view["exact"], exact, "{verb} {mode}: {view}");
        }
    }
}

#[test]
fn pools_of_threads_and_of_forked_children_are_exact() {
    for ((kind, name), verb) in POOLS.iter().flat_map(|pool| VERBS.map(|verb| (*pool, verb))) {
        for (mode, processes) in [("threads", 1), ("fork", 2)] {
            let env = env();
            let (report, own) = trace((&env, verb), &library(&env, name, &[]), kind, mode);
            assert_eq!(own.len(), processes);
            for own in &own {
                let view = assert_pool(&report, own, kind);
                assert_eq!(view["exact"], true, "{verb} {mode}: {view}");
            }
        }
    }
}

#[test]
fn wrapping_is_safe_for_threads_inside_pool_functions() {
    let env = TestEnv::new();
    let libraries = POOLS.map(|(_, name)| library(&env, name, &[]));
    let program = env.dir.path().join("hammer");
    compile("allocators/hammer.c", &program, &["-ldl", "-pthread"]);
    for _ in 0..10 {
        let mut command = env.command(VRAMSCOPE);
        command.args(["run", "--json", "--allocators", "--ring-size", "64M", "--"]);
        let output = command.arg(&program).args(&libraries).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let report: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        let views = only_process(&report)["allocators"].as_array().unwrap();
        assert_eq!(views.len(), 3, "{views:?}");
        for view in views {
            // At least 1,000 after all functions were wrapped, and most of those of the threads. The ring
            // cannot hold all of them.
            let seen = view["pools"][0]["allocations_total"].as_u64().unwrap_or(0);
            assert!(seen + view["lost_events"].as_u64().unwrap() >= 1000, "{view}");
            assert!(view.get("unavailable_reason").is_none(), "{view}");
        }
    }
}

#[test]
fn function_that_cannot_be_wrapped_is_not_visible() {
    let env = env();
    let library = library(&env, "xla_cuda_plugin.so", &["-DSAVE_REGISTERS="]);
    let (report, own) = trace((&env, "run"), &library, "xla", "plain");
    let view = &only_process(&report)["allocators"][0];
    assert_eq!(view["unavailable_reason"], "attach_failed", "{view}");
    assert_eq!((&view["exact"], &view["opaque_bytes"]), (&false.into(), &own[0]["total"]));
}

#[test]
fn memory_that_is_not_tracked_is_one_block_that_is_not_visible() {
    let stripped = &["-DRMM_LINKAGE=static", "-Wl,--strip-all"][..];
    let cases = [
        ("xla_cuda_plugin.so", "xla", stripped, "no_symbol"),
        ("librmm.so", "rmm", stripped, "no_symbol"),
        // Memory of an arena: the pool's functions are there, and not called.
        ("librmm.so", "rmm", &[], "outside_pools"),
        ("libonnxruntime_providers_cuda.so", "onnxruntime", stripped, "no_symbol"),
    ];
    for ((name, allocator, options, reason), verb) in
        cases.iter().flat_map(|case| VERBS.map(|verb| (*case, verb)))
    {
        let env = env();
        let library = library(&env, name, options);
        let (report, own) = trace((&env, verb), &library, "xla", "plain");
        let view = &only_process(&report)["allocators"][0];
        assert_eq!(view["allocator"], allocator, "{report}");
        assert_eq!(view["unavailable_reason"], reason, "{verb} {name}: {view}");
        assert_eq!(view["exact"], false);
        let total = &own[0]["total"];
        let segments = (total.as_u64().unwrap() - (64 << 20)) / (3 << 20) + 1;
        assert!(view["opaque_allocations"].as_u64() >= Some(segments), "{name}: {view} {own:?}");
        assert_eq!(view["opaque_bytes"], *total, "{verb} {name}");
        let notes = report["notes"].as_array().unwrap();
        assert!(notes.iter().any(|note| note["type"] == "opaque_pools"), "{name}: {notes:?}");
    }
}
