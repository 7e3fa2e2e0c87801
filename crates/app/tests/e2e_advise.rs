//! Advice on live processes, with real probes on the simulated driver; on files; and from an agent.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use engine::model::event::{Allocate, Event, EventKind, Free, FreeFunction, ProcessInfo};
use engine::model::ids::{AllocationKey, DeviceId, GpuId, Pid, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::units::Timestamp;
use formats::WallClock;
use formats::recording::{RecordingHeader, RecordingWriter};
use serde_json::Value;

use crate::harness::agent::Agent;
use crate::harness::files::{run, stderr};
use crate::harness::http::{response, serve_once};
use crate::harness::{self, TestEnv, VRAMSCOPE, until};

const MIB: u64 = 1 << 20;

fn shared() -> TestEnv {
    TestEnv::new().sharing().env("SIM_CONTEXT_OVERHEAD", "100M").env("SIM_MEMORY", "4G")
}

fn advise(env: &TestEnv, arguments: &[&str]) -> (Option<i32>, Value, String) {
    let output = env.command(VRAMSCOPE).arg("advise").args(arguments).output().unwrap();
    let messages = stderr(&output);
    let value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output.status.code(), value, messages)
}

fn step(advice: &Value, gpu: usize, pid: u32) -> &Value {
    let steps = advice["gpus"][gpu]["steps"].as_array().unwrap();
    steps.iter().find(|step| step["pid"] == pid).unwrap_or_else(|| panic!("no {pid} in {advice:#}"))
}

#[test]
fn preexisting_processes_are_advised_by_driver_usage() {
    let env = shared();
    let workloads = [env.hold(0, 1, 700 * MIB), env.hold(1, 1, 900 * MIB)];
    let (code, advice, messages) = advise(&env, &["--json", "--duration", "4s"]);
    assert_eq!(code, Some(0), "{messages}");
    for (gpu, held) in [(0, 700), (1, 900)] {
        let step = step(&advice, gpu, workloads[gpu].pid());
        assert_eq!(step["action"], "stop");
        assert_eq!(step["freed_bytes"], (held + 100) * MIB, "{advice:#}");
        assert_eq!((&step["precision"], &step["safe"]), (&"exact".into(), &false.into()));
        assert_eq!(step["commands"][0]["text"], format!("kill -TERM {}", workloads[gpu].pid()));
        assert_eq!(advice["gpus"][gpu]["free_bytes"], (4096 - held - 100) * MIB);
    }
    assert!(
        advice["notes"][0].as_str().unwrap().contains("started before the trace"),
        "{advice:#}"
    );
}

#[test]
fn running_agent_gives_the_same_advice() {
    let env = shared();
    let agent = Agent::start(&env, &[]);
    let workload = env.hold(0, 1, 700 * MIB);
    let pid = workload.pid();
    let advice = until(
        "advice on the process",
        || agent.messages(),
        || {
            let output = run(&["advise", "--json", "--agent", &agent.address]);
            assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
            let advice: Value = serde_json::from_slice(&output.stdout).unwrap();
            let steps = advice["gpus"][0]["steps"].as_array()?;
            let has_all =
                steps.iter().any(|one| one["pid"] == pid && one["freed_bytes"] == 800 * MIB);
            has_all.then_some(advice)
        },
    );
    assert_eq!(step(&advice, 0, pid)["action"], "stop");
    assert!(advice["time"].is_string(), "{advice:#}");
}

#[test]
fn needed_memory_is_compared_with_free_memory() {
    let env = shared();
    let _workload = env.hold(0, 1, 700 * MIB);
    for (need, code, safely, steps) in
        [("1G", 0, true, Some(0)), ("3900M", 1, false, Some(1)), ("5G", 1, false, None)]
    {
        let arguments = ["--json", "--duration", "3s", "--gpu", "0", "--need", need];
        let (exit_code, advice, messages) = advise(&env, &arguments);
        let result = &advice["gpus"][0]["need"];
        assert_eq!(exit_code, Some(code), "{need}: {advice:#} {messages}");
        assert_eq!(
            (result["without_data_loss"].as_bool(), result["steps"].as_u64()),
            (Some(safely), steps)
        );
    }
    let (code, advice, _) =
        advise(&env, &["--json", "--duration", "3s", "--gpu", "1", "--need", "4000M"]);
    assert_eq!(code, Some(0), "it has no holders: {advice:#}");
    let (code, _, messages) = advise(&env, &["--duration", "1s", "--gpu", "7"]);
    assert_eq!(code, Some(2));
    assert!(messages.contains("GPU 7"), "{messages}");
}

#[test]
fn agent_gets_the_token_and_its_text_is_escaped() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    harness::environment::secret(&token, "secret\n");
    let body = r#"{"time":"t","gpus":[{"gpu":3,"free_bytes":1048576,"steps":[{"action":"stop",
        "pid":5,"process":"evil\u001b[2J","freed_bytes":1048576,"precision":"exact","safe":false,
        "reason":"it is big","cost":"work","commands":[{"language":"shell","text":"kill 5"}],
        "a_newer_field":1}]}]}"#;
    let (url, request) = serve_once(response("200 OK", body));
    let output = Command::new(VRAMSCOPE)
        .args(["advise", "--agent", &url, "--need", "2M", "--token-file"])
        .arg(&token)
        .output()
        .unwrap();
    let request = request.join().unwrap();
    assert!(request.starts_with("GET /api/v1/advice HTTP/1.1\r\n"), "{request}");
    assert!(request.to_lowercase().contains("authorization: bearer secret\r\n"), "{request}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("GPU 3: 1.00 MiB free") && text.contains("$ kill 5"), "{text}");
    assert!(text.contains("evil\\u{1b}[2J") && !text.contains('\x1b'), "{text}");
    assert_eq!(output.status.code(), Some(1), "the step loses work");
}

#[test]
fn agent_errors_are_reported() {
    for (answer, expected) in [
        (response("401 Unauthorized", "no"), "authentication required"),
        (response("404 Not Found", "no"), "returned 404"),
        (response("200 OK", "<html>"), "unexpected response"),
    ] {
        let (url, request) = serve_once(answer);
        // A bare address, as the agent itself takes it.
        let output = run(&["advise", "--agent", url.strip_prefix("http://").unwrap()]);
        request.join().unwrap();
        let messages = stderr(&output);
        assert_eq!(output.status.code(), Some(2));
        assert!(messages.contains(expected), "{messages}");
    }
}

/// Writes a recording of ten minutes in which a process allocates twice in the first second, and
/// frees once.
fn recording(dir: &Path, work: bool) -> String {
    let path = dir.join(format!("{work}.arrows")).to_str().unwrap().to_owned();
    let header = RecordingHeader {
        source: None,
        version: "1.0.0".into(),
        hostname: String::new(),
        kernel: String::new(),
        target: String::new(),
        activity: work,
        clock: WallClock::recorded(Timestamp(0), 0, Some("UTC"), 0),
        gpus: Vec::new(),
    };
    let mut writer = RecordingWriter::new(File::create(&path).unwrap(), &header, |_| "").unwrap();
    let allocate = |address: u64| {
        EventKind::Allocate(Allocate {
            key: AllocationKey::address(address),
            kind: MemoryKind::Device,
            bytes: 3 * MIB,
            context: None,
            device: Some(DeviceId(0)),
            pool: None,
            stream: None,
            site: None,
        })
    };
    let facts = ProcessInfo { start: 1, uid: 1000, name: "train".into(), before_trace: false };
    let free = Free { key: AllocationKey::address(1), by: FreeFunction::Free, stream: None };
    for (second, kind) in [
        (0, EventKind::Process(facts)),
        (0, EventKind::Gpus([Some(GpuId(2))].into())),
        (1, allocate(1)),
        (1, allocate(2)),
        (2, EventKind::Free(free)),
    ] {
        let at = Timestamp(second * 1_000_000_000);
        let event = Event { pid: Pid(77), tid: Tid(77), entry_time: at, time: at, kind };
        writer.event(&event).unwrap();
    }
    writer.finish(Timestamp(600_000_000_000)).unwrap();
    path
}

#[test]
fn recording_gives_advice_for_its_end() {
    let dir = tempfile::tempdir().unwrap();
    // A process without launches is known only if launches were recorded.
    for (work, action) in [(false, "stop"), (true, "stop_idle")] {
        let output = run(&["advise", "--json", &recording(dir.path(), work)]);
        assert!(output.status.success(), "{}", stderr(&output));
        let advice: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(advice["time"], "1970-01-01T00:10:00.000+00:00");
        assert_eq!(advice["gpus"][0]["gpu"], 2);
        let step = step(&advice, 0, 77);
        assert_eq!((&step["action"], &step["freed_bytes"]), (&action.into(), &(3 * MIB).into()));
        let notes = advice["notes"].as_array().unwrap();
        assert!(notes.iter().any(|note| note == "state at the end of the recording"));
    }
}

#[test]
fn directories_without_an_incident_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(&["advise", dir.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let messages = stderr(&output);
    assert!(messages.contains("is not an incident directory"), "{messages}");
    let broken = dir.path().join("incident.json");
    std::fs::write(&broken, "{\"version\":").unwrap();
    let output = run(&["advise", dir.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
}
