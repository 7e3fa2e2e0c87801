//! Ends of stream captures, with probes and in-process: however a capture ends, the report matches
//! the driver's oracle.

use std::process::Command;

use serde_json::Value;

use crate::harness::files::root;
use crate::harness::{self, TestEnv, trace_both, until};

const MIB: u64 = 1 << 20;

/// Traces `capture-end` with probes and in-process, with an injected failure or another way to end
/// the capture. Returns the processes.
fn trace_capture_end(method: &str, fail: Option<u32>) -> [Value; 2] {
    println!("{method} {fail:?}");
    let env = || match fail {
        Some(code) => {
            TestEnv::new().env("SIM_INJECT_FAILURES", &format!("cuStreamEndCapture:1={code}"))
        }
        None => TestEnv::new(),
    };
    let traced = trace_both(env, &[], &["capture-end", "--how", method]);
    traced.map(|(_, traced)| traced.last()["processes"][0].clone())
}

fn failures(process: &Value) -> Vec<(String, u64)> {
    let all = process["failed_calls"].as_array().unwrap();
    let entry =
        |f: &Value| (f["function"].as_str().unwrap().to_owned(), f["code"].as_u64().unwrap());
    all.iter().map(entry).collect()
}

#[test]
fn every_result_of_a_capture_end_is_handled() {
    // Whether the capture continues decides whether the 2 MiB after it are memory or a node.
    for (method, fail, live, result) in [
        ("call", None, 7, None),
        ("null", None, 6, None),
        ("invalid", None, 6, Some(901)),
        ("thread", None, 6, Some(908)),
        ("call", Some(1), 7, Some(1)),
        ("call", Some(400), 7, Some(400)),
        ("call", Some(900), 6, Some(900)),
        ("call", Some(903), 7, Some(903)),
        ("call", Some(904), 6, Some(904)),
    ] {
        for process in trace_capture_end(method, fail) {
            assert_eq!(process["live_bytes"], live * MIB);
            if let Some(result) = result {
                let failed = ("cuStreamEndCapture".to_owned(), result);
                assert!(failures(&process).contains(&failed), "{:?}", failures(&process));
            }
        }
    }
}

#[test]
fn capture_ends_with_its_stream_or_context() {
    for method in ["stream", "context"] {
        for process in trace_capture_end(method, None) {
            assert_eq!(process["live_bytes"], 4 * MIB);
        }
    }
}

/// Prints the process ids in the keys of the tracer's map of captures.
const CAPTURE_KEYS: &str = r#"
import struct, sys
sys.path.insert(0, sys.argv[1])
from lib import bpf
for one in bpf.maps_of(int(sys.argv[2])):
    if one.name == "capturing_strea":
        print("map", *(struct.unpack_from("=I", key, 8)[0] for key in one.keys()))
"#;

/// Entries of a process in the tracer's map of captures.
fn captures_in_map(tracer: u32, pid: u32) -> usize {
    let experiments = root().join("experiments");
    let output = Command::new("python3")
        .args(["-B", "-c", CAPTURE_KEYS, experiments.to_str().unwrap(), &tracer.to_string()])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("map"), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text.split_whitespace().filter(|field| *field == pid.to_string()).count()
}

#[test]
fn captures_left_open_leave_no_map_entries() {
    let env = TestEnv::new();
    let driver = env.driver.to_str().unwrap();
    let mut tracer = env.start_trace(&["--driver", driver]);
    tracer.next();
    let id = tracer.child.id();
    for action in ["wait", "exec", "destroy"] {
        let mut workload = env.workload(&["open-captures", "--then", action]);
        workload.wait_ready();
        let pid = workload.pid();
        if action == "wait" {
            // One for each stream, one for each thread.
            assert_eq!(captures_in_map(id, pid), 4);
            workload.signal(9);
            workload.child.wait().unwrap();
        }
        until(
            "an empty map",
            || action.to_owned(),
            || (captures_in_map(id, pid) == 0).then_some(()),
        );
    }
    assert!(tracer.stop().status.success());
}

/// After a failed end the capture continues, and whether other streams joined it is not known.
#[test]
fn streams_used_while_another_is_captured_are_bounded() {
    for verb in ["trace", "run"] {
        let env = TestEnv::new().env("SIM_INJECT_FAILURES", "cuStreamEndCapture:every5=100");
        let random = ["random", "--ops", "220", "--threads", "1", "--devices", "1", "--no-illegal"];
        let traced = env.run(verb, &[], &[&["--seed", "944605912"], &random[..]].concat());
        let (pid, oracle) = env.oracles().into_iter().next().unwrap();
        let process = harness::process(traced.last(), pid);
        let uncertainty = &process["uncertainty"];
        let number = |value: &Value| value.as_u64().unwrap();
        assert_eq!((&process["exact"], &uncertainty["lost_other"]), (&false.into(), &0.into()));
        assert!(number(&uncertainty["ambiguous_calls"]) > 0, "{uncertainty}");
        let [least, most] =
            ["live_bytes_min", "live_bytes_max"].map(|name| number(&uncertainty[name]));
        assert!((least..=most).contains(&number(&oracle["live_bytes"])), "{uncertainty}");
    }
}
