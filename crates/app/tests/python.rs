//! Recordings can be read by other tools: pyarrow and DuckDB read them, and the documented examples
//! work.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use engine::model::event::{Event, EventKind};
use formats::recording::{RecordingReader, RecordingRow};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::files::{blocks, tool};
use crate::harness::{TestEnv, VRAMSCOPE, simulator};

/// Records a workload in a new directory.
fn record(env: &TestEnv, workload: &[&str]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut command = env.command(VRAMSCOPE);
    command.args(["record", "-o"]).arg(dir.path().join("run.arrows")).arg("--");
    let output = command.arg(simulator().join("workload")).args(workload).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    dir
}

/// Runs a script next to a recording, and returns the JSON of its last line.
fn run(dir: &Path, script: &str) -> Value {
    fs::write(dir.join("script.py"), script).unwrap();
    let output = tool("python").arg("script.py").current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{script}\n{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

/// Returns the documented examples as one program.
fn examples() -> String {
    blocks("docs/reference/recording-format.md", "python").join("\n")
}

const SUMS: &str = r#"
import json
import duckdb
import pyarrow as pa
import pyarrow.compute as pc

recording = pa.ipc.open_stream("run.arrows").read_all()
grouped = recording.group_by("type").aggregate([("type", "count"), ("bytes", "sum"), ("time_ns", "max")])
arrow = {row["type"]: [row["type_count"], row["bytes_sum"] or 0] for row in grouped.to_pylist()}
rows = duckdb.sql('SELECT type, count(*), coalesce(sum(bytes), 0) FROM recording GROUP BY type').fetchall()
duck = {type: [count, int(sum)] for type, count, sum in rows}
failed = duckdb.sql("SELECT DISTINCT function FROM recording WHERE type = 'call_failed' ORDER BY 1").fetchall()
print(json.dumps({"arrow": arrow, "duck": duck, "failed": [name for name, in failed],
                  "version": recording.schema.metadata[b"vramscope.recording"].decode()}))
"#;

/// Returns the events by type in the same file, and their bytes, as read by vramscope.
fn event_totals(file: &Path) -> BTreeMap<&'static str, (u64, u64)> {
    let mut sums = BTreeMap::new();
    let mut reader = RecordingReader::open(file, |_| None).unwrap();
    while let Some(row) = reader.next_row().unwrap() {
        let RecordingRow::Event(Event { kind, .. }) = row else { continue };
        let (word, bytes) = match kind {
            EventKind::Allocate(call) => ("allocate", call.bytes),
            EventKind::Free(_) => ("free", 0),
            EventKind::Failed(call) => {
                ("call_failed", call.requested.map_or(0, |(_, bytes)| bytes))
            }
            EventKind::Process(_) => ("process", 0),
            EventKind::Exit => ("exit", 0),
            _ => continue,
        };
        let (count, sum) = sums.entry(word).or_insert((0, 0));
        *count += 1;
        *sum += bytes;
    }
    sums
}

#[test]
fn pyarrow_and_duckdb_read_the_same_totals() {
    let env =
        TestEnv::new().env("SIM_INJECT_FAILURES", "cuMemAlloc_v2:every7=2,cuMemFree_v2:every5=1");
    let workload = ["--seed", "7", "random", "--ops", "2000", "--threads", "2"];
    let dir = record(&env, &workload);
    let result = run(dir.path(), SUMS);
    let totals = event_totals(&dir.path().join("run.arrows"));
    assert_eq!(totals.len(), 5, "{totals:?}");
    for (word, (count, bytes)) in &totals {
        for reader in ["arrow", "duck"] {
            let expected = serde_json::json!([count, bytes]);
            assert_eq!(result[reader][word], expected, "{word} by {reader}");
        }
    }
    let failed = result["failed"].as_array().unwrap();
    for function in ["cuMemAlloc_v2", "cuMemFree_v2"] {
        assert!(failed.contains(&function.into()), "{failed:?}");
    }
    assert_eq!(result["version"], "1");
}

#[test]
fn documented_python_examples_work() {
    let env = TestEnv::new();
    let dir = record(&env, &["leak3", "--work-ms", "10", "--wait-ms", "10"]);
    let script = format!(
        "{}\nimport json\nprint(json.dumps([totals.fetchall(), never_freed.fetchall(), \
         [calls for _, calls, _ in rates.fetchall()]], default=int))\n",
        examples()
    );
    let answers = run(dir.path(), &script);
    let [totals, never_freed, rates] = &answers.as_array().unwrap()[..] else {
        panic!("three answers");
    };
    let oracles = env.oracles();
    let (pid, oracle) = oracles.iter().next().unwrap();
    assert_eq!(*totals, serde_json::json!([["workload", pid, "device", 3, 24 << 20]]));
    let calls: u64 = rates.as_array().unwrap().iter().map(|calls| calls.as_u64().unwrap()).sum();
    assert_eq!(calls, 5, "three allocations and two frees");
    let live = oracle["live"].as_array().unwrap();
    let found = never_freed.as_array().unwrap();
    assert_eq!(found.len(), live.len());
    for (found, live) in found.iter().zip(live) {
        let address = live["address"].as_str().unwrap().trim_start_matches("0x");
        assert_eq!(found[2], u64::from_str_radix(address, 16).unwrap());
        assert_eq!((&found[3], &found[4]), (&live["bytes"], &live["kind"]));
    }
}

#[test]
fn truncated_recording_is_read_by_pyarrow() {
    let env = TestEnv::new();
    let dir = record(&env, &["leak3", "--work-ms", "10", "--wait-ms", "10"]);
    let file = dir.path().join("run.arrows");
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() - 100]).unwrap();
    let page = examples();
    let example = page.split("batches = []").nth(1).unwrap().split("import duckdb").next().unwrap();
    let script = format!(
        "import json\nimport pyarrow as pa\nbatches = []{example}\n\
         print(json.dumps([batch.num_rows for batch in batches]))\n"
    );
    let rows = run(dir.path(), &script);
    // The header is the first batch: five metadata rows, the clock, two GPUs.
    assert_eq!(rows[0], 8);
}
