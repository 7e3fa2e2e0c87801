//! Recordings of real probes: a replay gives the state of the live trace.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use formats::recording::{RecordingReader, RecordingRow};
use serde_json::Value;

use crate::harness::environment::Disk;
use crate::harness::files::{stderr, stdout};
use crate::harness::{self, TestEnv, Tracer, VRAMSCOPE, send_signal, simulator};

/// Returns the last report that a replay of a recording prints, and the warnings.
fn replayed(file: &Path, options: &[&str]) -> (String, Vec<String>) {
    let mut command = Command::new(VRAMSCOPE);
    command.arg("replay").arg(file).args(options);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let warnings = stderr(&output).lines().map(str::to_owned).collect();
    (String::from_utf8(output.stdout).unwrap(), warnings)
}

fn rows(file: &Path) -> Vec<RecordingRow> {
    let mut reader = RecordingReader::open(file, capture::hooks::function_id).unwrap();
    let mut rows = Vec::new();
    while let Some(row) = reader.next_row().unwrap() {
        rows.push(row);
    }
    rows
}

fn count_events(file: &Path) -> usize {
    rows(file).iter().filter(|row| matches!(row, RecordingRow::Event(_))).count()
}

fn run(env: &TestEnv, arguments: &[&str], workload: &[&str]) -> Output {
    let mut command = env.command(VRAMSCOPE);
    command.args(arguments).arg("--").arg(simulator().join("workload")).args(workload);
    command.output().unwrap()
}

struct Outputs {
    dir: tempfile::TempDir,
}

impl Outputs {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// A workload and the environment of the driver.
type Scenario = (&'static [&'static str], &'static [(&'static str, &'static str)]);

/// Programs that exit early, fail, run out of memory, use pools and graphs, or exec.
const SCENARIOS: &[Scenario] = &[
    (&["kinds"], &[]),
    (&["exec"], &[]),
    (&["launches", "--iterations", "300", "--graphs", "2", "--failing", "3"], &[]),
    (&["copies", "--iterations", "2"], &[]),
    (&["fork"], &[]),
    (&["objects", "--count", "20", "--in-context", "--exec"], &[]),
    (&["stressor", "--duration", "1", "--sleep-ms", "5"], &[]),
    (&["oom", "--chunk-mb", "300"], &[("SIM_MEMORY", "2G")]),
    (
        &["train", "--steps", "60", "--step-ms", "5"],
        &[("SIM_INJECT_FAILURES", "cuMemAlloc_v2:every7=2,cuMemFree_v2:every5=1")],
    ),
    (&["--seed", "7", "random", "--ops", "400", "--threads", "2", "--devices", "2"], &[]),
];

#[test]
fn replay_prints_the_last_live_report_exactly() {
    let outputs = Outputs::new();
    for (number, (workload, environment)) in SCENARIOS.iter().enumerate() {
        for (live, again) in [
            (&["--json"][..], &["--format", "json"][..]),
            (&[], &[]),
            (&["--top", "2", "--kernels"], &["--top", "2"]),
        ] {
            let file = outputs.file(&number.to_string());
            // A different time zone: the replay shows times in the zone of the recording.
            let mut env = TestEnv::new().env("TZ", "Asia/Kolkata");
            for (name, value) in *environment {
                env = env.env(name, value);
            }
            let mut arguments = vec!["trace", "--interval", "40ms", "--force", "--record"];
            arguments.push(file.to_str().unwrap());
            arguments.extend(live);
            let is_json = live == ["--json"];
            let output = run(&env, &arguments, workload);
            let live = stdout(&output);
            let (again, warnings) = replayed(&file, again);
            assert!(warnings.is_empty(), "{warnings:?}");
            assert!(!again.is_empty());
            assert!(live.ends_with(&again), "{workload:?}\nlive {live}\nagain {again}");
            assert!(!is_json || again.contains("+05:30"), "{again}");
            let ticks =
                rows(&file).iter().filter(|row| matches!(row, RecordingRow::Tick(_))).count();
            if is_json {
                assert_eq!(live.lines().count(), ticks + 1, "a tick for each report but the last");
            }
        }
    }
}

#[test]
fn recording_replays_to_the_driver_state() {
    let (outputs, env) = (Outputs::new(), TestEnv::new());
    let file = outputs.file("run.arrows");
    let output = run(&env, &["record", "-o", file.to_str().unwrap()], &["kinds"]);
    let messages = stderr(&output);
    assert!(output.status.success(), "{messages}");
    let events = count_events(&file);
    let length = fs::metadata(&file).unwrap().len();
    let size = engine::model::units::Bytes(length);
    let last = messages.lines().last().unwrap();
    let expected =
        format!("vramscope: recorded {events} events in {} ({size}), nothing lost", file.display());
    assert_eq!(last, expected);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    // The driver's oracle, and the replay of the recording.
    let (report, warnings) = replayed(&file, &["--format", "json"]);
    assert!(warnings.is_empty(), "{warnings:?}");
    let report: Value = serde_json::from_str(&report).unwrap();
    for (pid, oracle) in env.oracles() {
        harness::assert_same(harness::process(&report, pid), &oracle);
    }
}

#[test]
fn longer_existing_file_is_replaced() {
    let (outputs, env) = (Outputs::new(), TestEnv::new());
    let file = outputs.file("run.arrows");
    fs::write(&file, vec![7; 1 << 20]).unwrap();
    let output = run(&env, &["record", "--force", "-o", file.to_str().unwrap()], &["kinds"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(fs::metadata(&file).unwrap().len() < 1 << 20);
    assert!(count_events(&file) > 5);
}

#[test]
fn record_rejects_non_file_output_before_start() {
    let (outputs, env) = (Outputs::new(), TestEnv::new());
    let socket = outputs.file("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let (dir, socket) = (outputs.dir.path().to_str().unwrap(), socket.to_str().unwrap());
    for bad in [dir, socket, "/no/such/dir/file"] {
        for verb in [&["record", "-o", bad][..], &["trace", "--record", bad]] {
            let output = run(&env, verb, &["kinds"]);
            assert_eq!(output.status.code(), Some(125));
            let message = stderr(&output);
            assert!(message.contains(bad), "{message}");
            assert_eq!(message.lines().count(), 1, "{message}");
        }
    }
    assert!(env.oracles().is_empty(), "the command never ran");
}

#[test]
fn recording_can_be_written_to_a_pipe() {
    let (outputs, env) = (Outputs::new(), TestEnv::new());
    let (pipe, copy) = (outputs.file("pipe"), outputs.file("copy"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let cat =
        Command::new("cat").arg(&pipe).stdout(fs::File::create(&copy).unwrap()).spawn().unwrap();
    let output = run(&env, &["record", "-o", pipe.to_str().unwrap()], &["kinds"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(cat.wait_with_output().unwrap().status.success());
    assert!(count_events(&copy) > 5);
}

const BUSY: &[&str] = &["spam", "--throughput", "max", "--count", "200000"];

#[test]
fn full_disk_ends_the_recording_and_not_the_trace() {
    let env = TestEnv::new();
    let disk = Disk::new(env.dir.path().join("disk"));
    let file = disk.0.join("run.arrows");
    let path = file.to_str().unwrap();
    let output = run(&env, &["trace", "--json", "--record", path], BUSY);
    let messages = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{messages}");
    assert_eq!(messages.matches("No space left on device").count(), 1, "{messages}");
    assert_eq!(messages.matches("run.arrows").count(), 1, "{messages}");
    // The trace saw everything.
    let live = stdout(&output);
    let last: Value = serde_json::from_str(live.lines().last().unwrap()).unwrap();
    for (pid, oracle) in env.oracles() {
        harness::assert_same(harness::process(&last, pid), &oracle);
    }
    // The written part is readable, without a torn batch.
    let (_, warnings) = replayed(&file, &[]);
    let length = fs::metadata(&file).unwrap().len();
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].contains(&format!("truncated at byte {length} (")), "{warnings:?}");
    assert!(count_events(&file) > 1000);
}

#[test]
fn record_exits_when_the_disk_is_full() {
    let env = TestEnv::new();
    let disk = Disk::new(env.dir.path().join("disk"));
    let file = disk.0.join("run.arrows");
    let output = run(&env, &["record", "-o", file.to_str().unwrap()], BUSY);
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    assert!(stderr(&output).contains("stopped: No space left"));
    assert!(count_events(&file) > 1000);
}

#[test]
fn file_size_limit_is_like_a_full_disk() {
    let (outputs, env) = (Outputs::new(), TestEnv::new());
    let file = outputs.file("run.arrows");
    let line = format!(
        "ulimit -f 300; exec {VRAMSCOPE} trace --json --record {} -- {} {}",
        file.display(),
        simulator().join("workload").display(),
        BUSY.join(" ")
    );
    let output = env.command("bash").args(["-c", &line]).output().unwrap();
    let messages = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{messages}");
    assert_eq!(messages.matches("File too large").count(), 1, "{messages}");
    assert!(count_events(&file) > 100);
}

#[test]
fn killed_tracer_loses_at_most_the_last_second() {
    // Reports are at least a tenth of a second apart, and each is a tick of the recording.
    const PER_SECOND: usize = 10;
    let (outputs, env) = (Outputs::new(), TestEnv::new());
    let file = outputs.file("run.arrows");
    let mut command = env.command(VRAMSCOPE);
    command.args(["trace", "--json", "--interval", "100ms", "--record"]).arg(&file).arg("--");
    command.arg(simulator().join("workload"));
    command.args(["train", "--steps", "100000", "--step-ms", "5", "--keep-every", "25"]);
    let mut tracer = Tracer::start(&mut command);
    // Reports, and those since the recording last grew: a kill at that time loses these.
    let (mut last, mut reports, mut length, mut waiting) = (Value::Null, 0, 0, 0);
    while reports < 4 * PER_SECOND || !last["processes"][0].is_object() {
        last = tracer.next();
        reports += 1;
        let now = fs::metadata(&file).unwrap().len();
        waiting = if now > length { 0 } else { waiting + 1 };
        length = now;
        assert!(waiting <= PER_SECOND + 2, "{waiting} reports since the recording grew");
    }
    let pid = last["processes"][0]["pid"].as_u64().unwrap() as u32;
    tracer.child.kill().unwrap();
    tracer.child.wait().unwrap();
    send_signal(pid, 9);
    let (_, warnings) = replayed(&file, &["--format", "json"]);
    assert!(warnings[0].contains("truncated at byte"), "{warnings:?}");
    let kept = rows(&file).iter().filter(|row| matches!(row, RecordingRow::Tick(_))).count();
    // A row that has waited for a second is written with the next report, or the one after it.
    assert!(kept + PER_SECOND + 2 >= reports, "{kept} of {reports} reports are in the recording");
}

#[test]
fn closed_output_pipe_ends_the_trace_with_a_valid_recording() {
    let (outputs, env) = (Outputs::new(), TestEnv::new());
    let file = outputs.file("run.arrows");
    let mut command = env.command(VRAMSCOPE);
    command.args(["trace", "--json", "--interval", "50ms", "--record"]).arg(&file).arg("--");
    command.arg(simulator().join("workload"));
    command.args(["train", "--steps", "200", "--step-ms", "5"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut byte = [0];
    child.stdout.take().unwrap().read_exact(&mut byte).unwrap();
    assert!(child.wait().unwrap().success());
    let (_, warnings) = replayed(&file, &["--format", "json"]);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
}
