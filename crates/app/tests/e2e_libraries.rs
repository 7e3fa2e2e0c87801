//! Memory by library: a program that allocates itself and through a library.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::harness::{TestEnv, Tracer, VRAMSCOPE, Workload, compile, process};

/// Builds the program and its library, which has the name of NCCL's.
fn program(env: &TestEnv) -> PathBuf {
    let dir = env.dir.path();
    let [library, program] = ["sim/libnccl.so.2", "program"].map(|name| dir.join(name));
    let driver = env.driver.to_str().unwrap();
    compile("libraries/library.c", &library, &["-shared", "-fPIC", "-g", driver]);
    let options = ["-g", library.to_str().unwrap(), driver];
    compile("libraries/program.c", &program, &options);
    program
}

/// Live bytes and streams of a library.
fn held(libraries: &Value, name: &str) -> (u64, u64) {
    let all = libraries.as_array().unwrap();
    let row = all.iter().find(|row| row["library"] == name).unwrap_or(&Value::Null);
    (
        row["live_bytes"].as_u64().unwrap_or(0),
        row["objects_by_kind"]["stream"].as_u64().unwrap_or(0),
    )
}

fn run(env: &TestEnv, arguments: &[&str]) -> String {
    let output = env.command(VRAMSCOPE).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn memory_is_reported_by_library_live_and_from_a_recording() {
    let env = TestEnv::new().sharing().env("SIM_CONTEXT_OVERHEAD", "100M");
    let program = program(&env);
    let file = env.dir.path().join("run.arrows");
    let file = file.to_str().unwrap();
    let mut command = env.command(VRAMSCOPE);
    let driver = env.driver.to_str().unwrap();
    let options = ["--json", "--interval", "100ms", "--driver", driver, "--record", file];
    let mut tracer = Tracer::start(command.arg("trace").args(options));
    tracer.next();
    let mut workload = Workload::start(&mut env.command(&program));
    workload.wait_ready();
    let pid = workload.pid();
    let report = tracer.wait_for_process(pid, |process| {
        held(&process["libraries"], "NCCL").0 > 0
            && held(&process["libraries"], "program").0 > 0
            && process.get("untracked_bytes").is_some()
    });
    for libraries in [&process(&report, pid)["libraries"], &report["libraries"]] {
        assert_eq!(held(libraries, "NCCL"), (12 << 20, 1), "{libraries}");
        assert_eq!(held(libraries, "program"), (5 << 20, 0), "{libraries}");
    }
    let all = report["libraries"].as_array().unwrap();
    let rest = all.iter().find(|row| row["library"].is_null()).unwrap();
    assert_eq!((&rest["live_bytes"], &rest["pids"]), (&(100 << 20).into(), &vec![pid].into()));
    workload.go();
    workload.finish();
    tracer.wait_for("the end", |report| {
        report["processes"].as_array().unwrap().iter().any(|one| one["exited"] == true)
    });
    tracer.stop();

    let json: Value =
        serde_json::from_str(&run(&env, &["report", file, "libraries", "--json"])).unwrap();
    let [nccl, own] = &json["libraries"].as_array().unwrap()[..] else { panic!("{json}") };
    assert_eq!((&nccl["library"], &nccl["bytes"]), (&"NCCL".into(), &(12 << 20).into()));
    assert_eq!((&own["library"], &own["bytes"]), (&"program".into(), &(5 << 20).into()));
    let text = run(&env, &["report", file, "--by", "library"]);
    assert!(text.contains("2 libraries") && text.contains("NCCL"), "{text}");
    let text = run(&env, &["replay", file, "--by", "library"]);
    let line = text.lines().find(|line| line.starts_with("NCCL")).expect(&text);
    assert!(line.contains("12.0M") && line.contains("1 stream"), "{text}");
    let svg = env.dir.path().join("memory.svg");
    run(&env, &["plot", file, "--by", "library", "-o", svg.to_str().unwrap()]);
    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(svg.contains(">NCCL<") && svg.contains(">program<"), "{svg}");
}

#[test]
fn grouping_by_library_conflicts_with_a_question() {
    let output =
        Command::new(VRAMSCOPE).args(["report", "x", "peak", "--by", "library"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
