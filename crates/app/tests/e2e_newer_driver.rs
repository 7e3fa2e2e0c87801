//! A driver with a memory function that this version does not know: its calls are counted, and the
//! trace is not exact.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::harness::files::{stderr, stdout};
use crate::harness::{ONLY_LIBRARIES_IN, VRAMSCOPE, compile};

/// Compiles such a driver. Returns its file.
pub(crate) fn newer_driver(dir: &Path) -> PathBuf {
    newer_driver_with(dir, &[])
}

fn newer_driver_with(dir: &Path, options: &[&str]) -> PathBuf {
    let library = dir.join("libcuda.so.1");
    // Entries like those of real drivers, which save the frame pointer first.
    let code = ["-O0", "-falign-functions=16", "-fcf-protection=none"];
    let shared = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
    compile("newer_driver.c", &library, &[&code[..], &shared, options].concat());
    library
}

/// Compiles the program.
fn newer_program(dir: &Path, driver: &Path) -> String {
    let program = dir.join("program");
    compile("newer_program.c", &program, &[driver.to_str().unwrap()]);
    program.to_str().unwrap().to_owned()
}

/// Returns the last report.
fn last_report(output: &Output) -> Value {
    let reports = stdout(output);
    let last = reports.lines().last().unwrap_or_else(|| panic!("{}", stderr(output)));
    serde_json::from_str(last).unwrap()
}

/// Returns a command that sees this driver only.
fn vramscope(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(VRAMSCOPE);
    command.args(arguments).env("LD_LIBRARY_PATH", dir).env(ONLY_LIBRARIES_IN, dir);
    command
}

fn assert_counted(last: &Value) {
    assert_eq!(
        (&last["exact"], &last["unknown_calls"]),
        (&json!(false), &json!({"cuMemAllocNext": 8}))
    );
    let notes = last["notes"].as_array().unwrap();
    let note = notes.iter().find(|note| note["type"] == "unknown_calls").unwrap();
    assert_eq!(note["inexact"], true);
    assert!(note["text"].as_str().unwrap().contains("8 calls of cuMemAllocNext"), "{note}");
    let processes = last["processes"].as_array().unwrap().iter();
    let mut counted: Vec<_> = processes
        .map(|process| {
            assert_eq!(
                (&process["exact"], &process["before_trace"]),
                (&json!(false), &json!(false))
            );
            let unknown = process["uncertainty"]["unknown_calls"].as_u64().unwrap();
            (unknown, process["allocations_total"].as_u64().unwrap())
        })
        .collect();
    counted.sort_unstable();
    assert_eq!(counted, [(3, 0), (5, 2)], "{last}");
}

#[test]
fn calls_of_unknown_memory_functions_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let program = &newer_program(dir.path(), &newer_driver(dir.path()));
    let file = dir.path().join("run.arrows");
    let file = file.to_str().unwrap();
    for attach_mode in ["session", "multi", "single"] {
        let mode = ["trace", "--json", "--attach-mode", attach_mode, "--", program];
        assert_counted(&last_report(&vramscope(dir.path(), &mode).output().unwrap()));
    }
    let record = vramscope(dir.path(), &["record", "-o", file, "--", program]).output().unwrap();
    assert!(record.status.success(), "{}", stderr(&record));
    let report = stdout(&vramscope(dir.path(), &["report", file]).output().unwrap());
    assert!(report.contains("NOT EXACT: 8 calls of cuMemAllocNext"), "{report}");
}

#[test]
fn unknown_functions_are_counted_in_process() {
    let dir = tempfile::tempdir().unwrap();
    let driver = newer_driver(dir.path());
    let program = newer_program(dir.path(), &driver);
    let run = vramscope(dir.path(), &["run", "--json", "--", &program]).output().unwrap();
    assert_counted(&last_report(&run));
    let messages = stderr(&run);
    let notice = format!("{}: exports memory functions", driver.display());
    assert!(messages.contains(&notice) && messages.contains("newer version: cuMemAllocNext"));
}

#[test]
fn unmovable_unknown_function_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let program = newer_program(dir.path(), &newer_driver_with(dir.path(), &["-DSHORT"]));
    let run = vramscope(dir.path(), &["run", "--json", "--", &program]).output().unwrap();
    let (last, messages) = (last_report(&run), stderr(&run));
    assert!(run.status.success() && last["exact"] == false, "{last}");
    assert_eq!(last["unknown_calls"], Value::Null);
    assert!(messages.contains("not recognized: cuMemAllocNext"), "{messages}");
}
