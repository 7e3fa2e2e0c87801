//! Allocators other than PyTorch's: reported values match what a stand-in with the symbols and
//! structures of the published builds counts, and driver memory is unaffected.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::harness::{TestEnv, VRAMSCOPE, process};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/allocators").join(name)
}

/// Compiles the stand-in under the name of a library; `options` are those of the linker.
fn library(env: &TestEnv, name: &str, options: &[&str]) -> PathBuf {
    let path = env.dir.path().join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-fPIC", "-O2", "-o"]).arg(&path).arg(fixture("pools.c")).args(options);
    assert!(gcc.status().unwrap().success());
    path
}

/// Traces the program with a library. Returns the last report and the program's own figures.
fn trace(env: &TestEnv, library: &Path, kind: &str) -> (Value, Value) {
    let own = env.dir.path().join("own.json");
    let mut command = env.command(VRAMSCOPE);
    command.args(["trace", "--json", "--allocators", "--", "python3"]).arg(fixture("pools.py"));
    let output = command.arg(library).arg(kind).arg(&own).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let own = std::fs::read_to_string(own).unwrap();
    (
        serde_json::from_str(text.lines().last().unwrap()).unwrap(),
        serde_json::from_str(&own).unwrap(),
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

#[test]
fn pools_match_their_own_figures() {
    for (kind, name) in [
        ("cupy", "cupy/cuda/memory.cpython-312.so"),
        ("xla", "xla_cuda_plugin.so"),
        ("rmm", "librmm.so"),
    ] {
        let env = TestEnv::new().env("SIM_INIT_MS", "500");
        let (report, own) = trace(&env, &library(&env, name, &[]), kind);
        let process = only_process(&report);
        let [view] = &process["allocators"].as_array().unwrap()[..] else { panic!("{process}") };
        assert_eq!((&view["allocator"], &view["exact"]), (&kind.into(), &true.into()), "{view}");
        let [pool] = &view["pools"].as_array().unwrap()[..] else { panic!("{view}") };
        for (ours, theirs) in [
            ("allocated_bytes", &own["used"]),
            ("reserved_bytes", &own["total"]),
            ("live_blocks", &own["blocks"]),
        ] {
            assert_eq!(&pool[ours], theirs, "{kind} {ours}: {pool}");
        }
        assert_eq!((&pool["device"], &pool["allocations_total"]), (&0.into(), &100.into()));
        assert_eq!((&pool["frees_total"], &pool["unmatched_frees"]), (&50.into(), &0.into()));
        // Nothing is counted twice.
        assert_eq!(process["live_bytes"], own["total"]);
        let sites = report["tensor_sites"].as_array().unwrap();
        let at_line = sites.iter().find(|site| {
            let frames = site["frames"].as_array().unwrap();
            frames.iter().any(|frame| frame["language"] == "python" && frame["line"] == line())
        });
        let site = at_line.unwrap_or_else(|| panic!("{sites:#?}"));
        assert_eq!((&site["kinds"][0]["kind"], &site["live_bytes"]), (&kind.into(), &own["used"]));
    }
}

#[test]
fn memory_that_is_not_tracked_is_one_block_that_is_not_visible() {
    let stripped = &["-DRMM_LINKAGE=static", "-Wl,--strip-all"][..];
    for (name, allocator, options, reason) in [
        ("xla_cuda_plugin.so", "xla", stripped, "no_symbol"),
        ("librmm.so", "rmm", stripped, "no_symbol"),
        // Memory of an arena: the pool's functions are there, and not called.
        ("librmm.so", "rmm", &[], "outside_pools"),
        ("libonnxruntime_providers_cuda.so", "onnxruntime", stripped, "no_symbol"),
    ] {
        let env = TestEnv::new().env("SIM_INIT_MS", "500");
        let library = library(&env, name, options);
        let (report, own) = trace(&env, &library, "xla");
        let view = &only_process(&report)["allocators"][0];
        assert_eq!(view["allocator"], allocator, "{report}");
        assert_eq!(view["unavailable_reason"], reason, "{name}: {view}");
        assert_eq!(view["exact"], false);
        let segments = (own["total"].as_u64().unwrap() - (64 << 20)) / (3 << 20) + 1;
        assert!(view["opaque_allocations"].as_u64() >= Some(segments), "{name}: {view} {own}");
        assert_eq!(view["opaque_bytes"], own["total"], "{name}");
        let notes = report["notes"].as_array().unwrap();
        assert!(notes.iter().any(|note| note["type"] == "opaque_pools"), "{name}: {notes:?}");
    }
}
