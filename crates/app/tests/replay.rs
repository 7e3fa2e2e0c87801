//! Calls recorded on a real GPU, replayed: the same ledger, without the GPU. Each directory of
//! `fixtures/h200` has the recording of a program and its last report.

use std::fs;
use std::path::Path;

use capture::hooks::{function_id, function_name};
use engine::ledger::Ledger;
use engine::model::units::Timestamp;
use engine::snapshot::{Snapshot, SnapshotOptions};
use formats::recording::{RecordingReader, RecordingRow};
use serde_json::Value;

fn replay(file: &Path) -> Snapshot {
    let mut ledger = Ledger::new();
    let mut last = Timestamp(0);
    let mut reader = RecordingReader::open(file, function_id).unwrap();
    while let Some(row) = reader.next_row().unwrap() {
        if let RecordingRow::Event(event) = row {
            last = last.max(event.time);
            ledger.apply(&event);
        }
    }
    assert!(reader.warnings().is_empty(), "{}", file.display());
    ledger.snapshot(last, &SnapshotOptions { top: 1_000_000, ..SnapshotOptions::default() })
}

#[test]
fn replayed_recordings_match_their_reports() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/h200");
    let mut programs = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let dir = entry.unwrap().path();
        let report = fs::read_to_string(dir.join("last.json")).unwrap();
        let report: Value = serde_json::from_str(&report).unwrap();
        let snapshot = replay(&dir.join("events.arrows"));
        let reported = report["processes"].as_array().unwrap();
        assert_eq!(snapshot.processes.len(), reported.len(), "{}", dir.display());
        for process in &snapshot.processes {
            let same = |other: &&Value| other["pid"] == process.key.pid.0;
            let other = reported.iter().find(same).expect("the process was reported");
            let live: u64 = process.threads.iter().map(|t| t.allocations.len() as u64).sum();
            for (name, ours) in [
                ("live_bytes", process.live_bytes.0),
                ("live_allocations", process.live_allocations),
                ("live_allocations", live),
                ("peak_bytes", process.peak_bytes.0),
                ("allocations_total", process.allocations_total),
                ("frees_total", process.frees_total),
                ("released_total", process.released_total),
                ("failed_allocations", process.failed_allocations),
            ] {
                assert_eq!(other[name], ours, "{name} of {}", dir.display());
            }
            for (failure, other) in
                process.failures.iter().zip(other["failed_calls"].as_array().unwrap())
            {
                assert_eq!(other["function"], function_name(failure.function));
                assert_eq!(other["count"], failure.count);
            }
            for kind in &process.kinds {
                assert_eq!(other["live_bytes_by_kind"][kind.kind.name()], kind.live_bytes.0);
            }
        }
        programs += 1;
    }
    assert!(programs >= 5, "only {programs} recorded programs were found");
}
