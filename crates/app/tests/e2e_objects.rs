//! CUDA objects other than memory match the driver's oracle.

use std::collections::BTreeMap;

use engine::model::cuda_object::ObjectCall;
use engine::model::event::EventKind;
use formats::recording::{RecordingReader, RecordingRow};
use serde_json::Value;

use crate::harness::{TestEnv, VRAMSCOPE, compile, process};

/// Live, created, destroyed, released with a context, peak.
type Counts = [u64; 5];

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("a list: {value}"))
}

/// Returns counts by kind; kinds without any object are omitted.
fn counts(process: &Value) -> BTreeMap<String, Counts> {
    let count = |row: &Value| {
        ["live", "created", "destroyed", "released", "peak"]
            .map(|field| row[field].as_u64().unwrap())
    };
    let rows = list(&process["objects"]).iter().filter(|row| row["created"] != 0);
    rows.map(|row| (row["kind"].as_str().unwrap().to_owned(), count(row))).collect()
}

fn sum(process: &Value, field: &str) -> u64 {
    list(&process["objects"]).iter().map(|row| row[field].as_u64().unwrap()).sum()
}

/// Returns the sites from which a function created objects.
fn sites_in<'a>(process: &'a Value, function: &str) -> Vec<&'a Value> {
    let mentions = |site: &&Value| {
        site["frames"].as_array().is_some_and(|frames| {
            frames.iter().any(|frame| frame["function"].to_string().contains(function))
        })
    };
    let sites = list(&process["sites"]).iter().filter(mentions);
    sites.filter_map(|site| site["objects"].as_array()).flatten().collect()
}

#[test]
fn objects_of_every_kind_match_the_driver() {
    for stacks in ["off", "fp", "full"] {
        let env = TestEnv::new();
        let workload = ["objects", "--count", "48", "--leak", "0.25", "--in-context"];
        let traced =
            env.trace(&["--stacks", stacks], &[&workload[..], &["--failing", "3"]].concat());
        traced.assert_matches_oracle(&env);
        let (pid, oracle) = env.oracles().into_iter().next().unwrap();
        let process = process(traced.last(), pid);
        assert_eq!(counts(process), counts(&oracle));
        assert_eq!(counts(process).len(), 12, "{process}");
        // A quarter of those created in the context, and those never destroyed outside of it.
        assert_eq!(counts(process)["texture"], [12, 96, 72, 12, counts(&oracle)["texture"][4]]);
        assert_eq!(counts(process)["library"][..2], [24, 96]);
        assert_eq!(
            (sum(process, "unmatched_destroys"), &process["lost_objects"]),
            (0, &Value::Null)
        );
    }
}

#[test]
fn objects_in_process_match_the_driver() {
    for stacks in ["off", "fp", "full"] {
        let env = TestEnv::new();
        let workload = ["objects", "--count", "48", "--leak", "0.25", "--in-context"];
        let workload = [&workload[..], &["--failing", "3"]].concat();
        let traced = env.in_process(&["--stacks", stacks], &workload);
        traced.assert_matches_oracle(&env);
        let (pid, oracle) = env.oracles().into_iter().next().unwrap();
        let process = process(traced.last(), pid);
        assert_eq!(counts(process), counts(&oracle));
        assert_eq!(
            (sum(process, "unmatched_destroys"), &process["lost_objects"]),
            (0, &Value::Null)
        );
    }
}

#[test]
fn object_counts_are_equal_in_every_attach_mode() {
    for attach_mode in ["session", "multi", "single"] {
        let env = TestEnv::new();
        let traced = env
            .trace(&["--attach-mode", attach_mode], &["objects", "--count", "8", "--leak", "0.5"]);
        let (pid, oracle) = env.oracles().into_iter().next().unwrap();
        if !traced.status.success() && traced.reports.is_empty() {
            // Not supported by this kernel; other tests check which modes must work.
            continue;
        }
        assert_eq!(counts(process(traced.last(), pid)), counts(&oracle), "{attach_mode}");
    }
}

#[test]
fn undestroyed_objects_are_listed_by_site() {
    let env = TestEnv::new();
    let workload = ["objects", "--kind", "stream,texture", "--count", "40", "--leak", "0.5"];
    let traced = env.trace(&[], &workload);
    let (pid, _) = env.oracles().into_iter().next().unwrap();
    let process = process(traced.last(), pid);
    let total = |function: &str, field: &str| {
        let rows = sites_in(process, function);
        assert!(!rows.is_empty(), "{function} is not in {process}");
        rows.iter().map(|row| row[field].as_u64().unwrap()).sum::<u64>()
    };
    let all = |function| ["live", "created", "destroyed"].map(|field| total(function, field));
    assert_eq!(all("make_forgotten"), [40, 40, 0]);
    assert_eq!(all("make_passing"), [0, 40, 40]);
    assert_eq!(process["allocations_total"], 1, "objects are not allocations");
}

#[test]
fn forked_child_and_exec_have_their_own_counts() {
    let env = TestEnv::new();
    let traced = env.trace(&[], &["objects", "--count", "20", "--leak", "0.5", "--fork"]);
    assert_eq!(env.oracles().len(), 2);
    for (pid, oracle) in env.oracles() {
        assert_eq!(counts(process(traced.last(), pid)), counts(&oracle));
    }
    let env = TestEnv::new();
    let traced = env.trace(&[], &["objects", "--count", "20", "--leak", "0.5", "--exec"]);
    let (_, oracle) = env.oracles().into_iter().next().unwrap();
    let ended = |by: &str| {
        let mut processes = list(&traced.last()["processes"]).iter();
        processes.find(|process| process["end_reason"] == by).unwrap()
    };
    assert_eq!(counts(ended("exit")), counts(&oracle));
    // Every second one is kept, including the last one.
    assert_eq!(counts(ended("exec"))["linker"], [10, 20, 10, 0, 10]);
}

#[test]
fn objects_from_before_the_trace_count_as_unmatched() {
    let env = TestEnv::new();
    let arguments =
        ["objects", "--kind", "stream,module", "--before", "5", "--count", "10", "--leak", "0.2"];
    let mut workload = env.workload(&[&arguments[..], &["--hold-ms", "400"]].concat());
    workload.wait_ready();
    let pid = workload.pid();
    let mut tracer = env.start_trace(&["-p", &pid.to_string()]);
    tracer.next();
    workload.go();
    let report = tracer.wait_for_process(pid, |process| {
        list(&process["objects"]).iter().any(|row| row["kind"] == "module" && row["live"] == 2)
    });
    let unknown = |kind: &str| {
        let rows = list(&process(&report, pid)["objects"]);
        rows.iter().find(|row| row["kind"] == kind).unwrap()["unmatched_destroys"].clone()
    };
    // One stream more: the program created it for itself.
    assert_eq!((unknown("stream"), unknown("module")), (6.into(), 5.into()));
    assert_eq!(counts(process(&report, pid))["module"], [2, 10, 8, 0, 2]);
    assert!(workload.finish().0.success());
    let oracle = env.oracle(pid);
    assert_eq!(counts(&oracle)["module"][..3], [2, 15, 13]);
    tracer.stop();
}

#[test]
fn lost_records_of_objects_are_counted_and_memory_stays_exact() {
    let env = TestEnv::new();
    let workload = ["objects", "--kind", "texture,linker", "--count", "20000", "--leak", "0.01"];
    let options = ["--ring-size", "4096", "--stacks", "off"];
    // Only object calls happen while the ring is full.
    let traced = env.trace(&options, &[&workload[..], &["--rest-ms", "500"]].concat());
    let (pid, oracle) = env.oracles().into_iter().next().unwrap();
    let (last, process) = (traced.last(), process(traced.last(), pid));
    let lost = process["lost_objects"].as_u64().unwrap();
    let received = ["created", "destroyed", "unmatched_destroys"].map(|field| sum(process, field));
    let expected: u64 = counts(&oracle).values().map(|counts| counts[1] + counts[2]).sum();
    assert!(lost > 0 && received[0] > 0, "{process}");
    assert_eq!(received.iter().sum::<u64>() + lost, expected);
    assert_eq!((&last["lost_objects"], &last["exact"]), (&lost.into(), &true.into()), "{last}");
    assert_eq!(process["live_bytes"], oracle["live_bytes"]);
}

#[test]
fn no_objects_option_disables_object_tracking() {
    let env = TestEnv::new();
    let workload = ["objects", "--count", "10", "--leak", "0.5"];
    let traced = env.trace(&["--no-objects"], &workload);
    traced.assert_matches_oracle(&env);
    let (pid, _) = env.oracles().into_iter().next().unwrap();
    let process = process(traced.last(), pid);
    assert_eq!(list(&process["objects"]), [] as [Value; 0]);
    assert!(list(&process["sites"]).iter().all(|site| site["objects"] == Value::Null));
}

#[test]
fn image_size_is_known_behind_the_wrapper_of_the_runtime() {
    for verb in ["trace", "run"] {
        let env = TestEnv::new();
        let [program, file] = ["program", "run.arrows"].map(|name| env.dir.path().join(name));
        compile("images.c", &program, &[env.driver.to_str().unwrap()]);
        let mut command = env.command(VRAMSCOPE);
        command.args([verb, "--record"]).arg(&file).arg("--").arg(&program);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{verb}: {output:?}");
        let mut reader = RecordingReader::open(&file, capture::hooks::function_id).unwrap();
        let (mut created, mut sizes) = (0, Vec::new());
        while let Some(row) = reader.next_row().unwrap() {
            let RecordingRow::Event(event) = row else { continue };
            match event.kind {
                EventKind::Object(ObjectCall::Created { .. }) => created += 1,
                EventKind::Object(ObjectCall::Image { bytes, .. }) => sizes.push(bytes),
                _ => {}
            }
        }
        assert_eq!((created, sizes), (6, vec![4736, 65552, 65552, 65552]), "{verb}");
    }
}
