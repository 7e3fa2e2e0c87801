//! Memory that processes share: an importer and its exporter are linked.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::files::{run, stdout};
use crate::harness::{TestEnv, Tracer, VRAMSCOPE};

const MIB: u64 = 1 << 20;

/// Returns the traced process that shares memory in a role.
fn process<'a>(report: &'a Value, role: &str) -> Option<&'a Value> {
    let processes = report["processes"].as_array().unwrap();
    processes.iter().find(|process| {
        let shared = process["shared_memory"].as_array();
        shared.is_some_and(|rows| rows.iter().any(|row| row["role"] == role))
    })
}

/// Returns the lines on shared memory of a process.
fn rows(process: &Value) -> Vec<Value> {
    process["shared_memory"].as_array().unwrap().clone()
}

fn row(role: &str, peer: &Value, mib: u64, allocations: u64, kept_alive: bool) -> Value {
    json!({
        "role": role, "pid": peer["pid"], "program": "share.py", "bytes": mib * MIB,
        "allocations": allocations, "kept_alive": kept_alive,
    })
}

/// Traces the exporter and the importer; returns a report from while both run, and the directory with
/// the recording.
fn trace(verb: &str, is_complete: impl Fn(&Value) -> bool) -> (Value, TestEnv) {
    let env = TestEnv::new();
    let end = env.dir.path().join("end");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/share.py");
    let mut command = env.command(VRAMSCOPE);
    command.args([verb, "--json", "--interval", "100ms", "--record"]);
    command.arg(env.dir.path().join("trace.arrows")).args(["--", "python3"]).arg(script).arg(&end);
    let mut tracer = Tracer::start(&mut command);
    let report = tracer.wait_for("shared memory", |report| is_complete(report));
    fs::write(&end, "").unwrap();
    let traced = tracer.stop();
    assert!(traced.status.success(), "{}", traced.messages);
    assert_eq!(traced.last()["exact"], true, "{}", traced.last());
    (report, env)
}

#[test]
fn import_and_export_are_linked_with_probes() {
    let is_released = |report: &Value| {
        process(report, "importer").is_some_and(|process| {
            let rows = rows(process);
            rows.len() == 2 && rows.iter().any(|row| row["kept_alive"] == true)
        })
    };
    let (report, env) = trace("trace", is_released);
    let (exporter, importer) =
        (process(&report, "exporter").unwrap(), process(&report, "importer").unwrap());
    assert_eq!(
        rows(importer),
        [row("importer", exporter, 10, 2, false), row("importer", exporter, 4, 1, true)]
    );
    assert_eq!(
        rows(exporter),
        [row("exporter", importer, 10, 2, false), row("exporter", importer, 4, 1, true)]
    );
    assert_eq!(importer["live_bytes_by_kind"], json!({ "imported": 14 * MIB }));
    assert_eq!((&importer["live_bytes"], &exporter["live_bytes"]), (&json!(0), &json!(10 * MIB)));
    let recording = env.dir.path().join("trace.arrows");
    let text = stdout(&run(&["replay", recording.to_str().unwrap()]));
    let from = format!("from pid {} (share.py)", exporter["pid"]);
    for line in [
        format!("imported: 10.00 MiB in 2 allocations {from}"),
        format!("imported: 4.00 MiB in 1 allocation {from}, which no longer holds it"),
    ] {
        assert!(text.contains(&line), "{line} is not in {text}");
    }
}

/// The library cannot see which file a descriptor stands for.
#[test]
fn imports_by_handle_are_linked_in_process() {
    let (report, _) = trace("run", |report| {
        process(report, "importer").is_some_and(|process| rows(process).len() == 1)
            && process(report, "exporter").is_some()
    });
    let (exporter, importer) =
        (process(&report, "exporter").unwrap(), process(&report, "importer").unwrap());
    assert_eq!(rows(importer), [row("importer", exporter, 10, 2, false)]);
    assert_eq!(rows(exporter), [row("exporter", importer, 10, 2, false)]);
}
