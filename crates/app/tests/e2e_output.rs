//! Output files of every command: existing files, links, pipes, devices and full disks.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::environment::Disk;
use crate::harness::files::{recording, run, stderr};
use crate::harness::{ScopedProcess, TestEnv, VRAMSCOPE, send_signal, simulator, until};

/// Live commands with the option that names an output file.
const LIVE: &[&[&str]] =
    &[&["record", "-o"], &["trace", "--record"], &["trace", "-o"], &["kernels", "-o"]];

/// The largest pid of Linux, which no process has.
const NO_PROCESS: &str = "4194303";

const OLD: &str = "yesterday's file";

fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn existing(directory: &TempDir) -> PathBuf {
    let path = directory.path().join("out");
    fs::write(&path, OLD).unwrap();
    path
}

/// Traces `kinds` with these options.
fn traced(env: &TestEnv, live: &[&str], file: &Path, more: &[&str]) -> Output {
    let mut command = env.command(VRAMSCOPE);
    command.args(live).arg(file).args(more).arg("--");
    command.arg(simulator().join("workload")).arg("kinds").output().unwrap()
}

fn names(directory: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(directory.path()).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn failed_start_keeps_existing_output() {
    for live in LIVE {
        for force in [&[][..], &["--force"]] {
            let directory = directory();
            let path = existing(&directory);
            let mut command = Command::new(VRAMSCOPE);
            command.args(*live).arg(&path).args(force).args(["-p", NO_PROCESS]);
            let output = command.output().unwrap();
            let messages = stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{live:?}: {messages}");
            assert_eq!(fs::read_to_string(&path).unwrap(), OLD, "{live:?} {force:?}: {messages}");
            assert_eq!(names(&directory), ["out"], "{live:?}");
        }
    }
}

#[test]
fn failed_start_creates_no_output() {
    for live in LIVE {
        let directory = directory();
        let path = directory.path().join("out");
        let mut command = Command::new(VRAMSCOPE);
        let output = command.args(*live).arg(&path).args(["-p", NO_PROCESS]).output().unwrap();
        assert!(stderr(&output).contains(NO_PROCESS), "{}", stderr(&output));
        assert_eq!(names(&directory), [""; 0], "{live:?}");
    }
}

#[test]
fn existing_output_is_overwritten_only_with_force() {
    for live in LIVE {
        let (directory, env) = (directory(), TestEnv::new());
        let path = existing(&directory);
        let other = directory.path().join("hard link");
        fs::hard_link(&path, &other).unwrap();
        let output = traced(&env, live, &path, &[]);
        let messages = stderr(&output);
        assert!(!output.status.success(), "{live:?}: {messages}");
        let expected = format!("{}: already exists; use --force to overwrite", path.display());
        assert!(messages.contains(&expected), "{live:?}: {messages}");
        assert_eq!(fs::read_to_string(&path).unwrap(), OLD, "{live:?}");
        assert!(env.oracles().is_empty(), "the command must not run");

        let output = traced(&env, live, &path, &["--force"]);
        assert!(output.status.success(), "{live:?}: {}", stderr(&output));
        assert_eq!(env.oracles().len(), 1);
        assert!(fs::metadata(&path).unwrap().len() > OLD.len() as u64, "{live:?}");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{live:?}");
        assert_eq!(fs::read_to_string(&other).unwrap(), OLD, "a hard link must not change");
        assert_eq!(names(&directory), ["hard link", "out"], "{live:?}");
    }
}

/// Runs a command with its output at `path`.
type Verb<'a> = Box<dyn Fn(&Path, &[&str]) -> Output + 'a>;

/// Returns every command that writes a file.
fn verbs(env: &TestEnv) -> Vec<(String, Verb<'_>)> {
    let file = recording("plain");
    let mut all: Vec<(String, Verb<'_>)> = Vec::new();
    for live in LIVE {
        let verb = Box::new(move |path: &Path, more: &[&str]| traced(env, live, path, more));
        all.push((live.join(" "), verb));
    }
    let reads: [Vec<String>; 5] = [
        vec!["replay".into(), file.clone()],
        vec!["report".into(), file.clone()],
        vec!["diff".into(), file.clone(), file.clone()],
        vec!["export".into(), file.clone(), "--format".into(), "csv".into()],
        vec!["plot".into(), file],
    ];
    for words in reads {
        let name = words[0].clone();
        let verb = move |path: &Path, more: &[&str]| {
            Command::new(VRAMSCOPE).args(&words).arg("-o").arg(path).args(more).output().unwrap()
        };
        all.push((name, Box::new(verb)));
    }
    all
}

#[test]
fn symbolic_links_are_never_written_through() {
    let env = TestEnv::new();
    for (verb, run) in verbs(&env) {
        for is_dangling in [false, true] {
            let directory = directory();
            let (victim, link) = (directory.path().join("a"), directory.path().join("out.svg"));
            if !is_dangling {
                fs::write(&victim, OLD).unwrap();
            }
            symlink(&victim, &link).unwrap();
            let untouched = || {
                let text = fs::read_to_string(&victim).ok();
                assert_eq!(text.as_deref(), (!is_dangling).then_some(OLD), "{verb}");
            };
            let output = run(&link, &[]);
            let messages = stderr(&output);
            assert!(!output.status.success(), "{verb}: {messages}");
            assert!(messages.contains("already exists; use --force"), "{verb}: {messages}");
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink(), "{verb}");
            untouched();

            let output = run(&link, &["--force"]);
            assert!(output.status.success(), "{verb}: {}", stderr(&output));
            let written = fs::symlink_metadata(&link).unwrap();
            assert!(written.is_file() && written.len() > 0, "{verb}: {written:?}");
            untouched();
        }
    }
}

fn fifo(directory: &TempDir) -> PathBuf {
    let path = directory.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

/// Returns the exit status of a process that has ended, for `until`.
fn ended(child: &mut ScopedProcess) -> Option<std::process::ExitStatus> {
    child.try_wait().unwrap()
}

#[test]
fn pipe_without_reader_ends_on_signals() {
    for live in LIVE {
        for signal in [2, 15] {
            let directory = directory();
            let pipe = fifo(&directory);
            // A shell that runs the tests in the background ignores SIGINT, and its children
            // inherit that.
            let mut command = Command::new("env");
            command.args(["--default-signal=INT,TERM", VRAMSCOPE]);
            command.args(*live).arg(&pipe).args(["--duration", "1s"]);
            let log = directory.path().join("messages");
            command.stdout(Stdio::null()).stderr(File::create(&log).unwrap());
            let mut child = ScopedProcess::start(&mut command);
            let messages = || fs::read_to_string(&log).unwrap();
            let line = until("the wait for a reader", messages, || {
                messages().contains("waiting for a reader").then(messages)
            });
            assert!(line.contains(pipe.to_str().unwrap()), "{live:?}: {line}");
            send_signal(child.id(), signal);
            let description = format!("the end after signal {signal}");
            let status = until(&description, || format!("{live:?}"), || ended(&mut child));
            assert_eq!(status.signal(), Some(signal), "{live:?}");
        }
    }
}

#[test]
fn stuck_reader_does_not_block_repeated_signals() {
    let (directory, env) = (directory(), TestEnv::new());
    let pipe = fifo(&directory);
    let mut command = env.command(VRAMSCOPE);
    command.args(["trace", "--json", "--interval", "50ms", "-o"]).arg(&pipe).arg("--");
    command.arg(simulator().join("workload")).args(LARGE_HOLD);
    let mut child = ScopedProcess::start(command.stdout(Stdio::piped()).stderr(Stdio::null()));
    // The reader never reads. A report does not fit into the pipe, so the trace blocks within it.
    let reader = File::open(&pipe).unwrap();
    let mut ready = [0; 5];
    child.stdout.take().unwrap().read_exact(&mut ready).unwrap();
    assert_eq!(&ready, b"ready");
    let status = until("the end", String::new, || {
        send_signal(child.id(), 15);
        ended(&mut child)
    });
    assert_eq!(status.signal(), Some(15));
    drop(reader);
}

#[test]
fn pipes_with_reader_and_devices_are_written() {
    let env = TestEnv::new();
    for live in LIVE {
        let directory = directory();
        let pipe = fifo(&directory);
        let mut cat = Command::new("cat");
        let mut cat = cat.arg(&pipe).stdout(Stdio::piped()).spawn().unwrap();
        let mut written = cat.stdout.take().unwrap();
        let output = traced(&env, live, &pipe, &[]);
        assert!(output.status.success(), "{live:?}: {}", stderr(&output));
        let mut text = Vec::new();
        written.read_to_end(&mut text).unwrap();
        assert!(text.len() > 50, "{live:?}");
        assert!(cat.wait().unwrap().success());

        let output = traced(&env, live, Path::new("/dev/null"), &[]);
        assert!(output.status.success(), "{live:?}: {}", stderr(&output));
        let output = traced(&env, live, Path::new("/dev/full"), &[]);
        let messages = stderr(&output);
        assert!(!output.status.success(), "{live:?}: {messages}");
        let full = messages.lines().find(|line| line.contains("No space left")).unwrap();
        assert!(full.contains("/dev/full"), "{live:?}: {messages}");
    }
}

#[test]
fn standard_output_can_be_named_as_output() {
    let env = TestEnv::new();
    for live in LIVE {
        for name in ["-", "/dev/stdout", "/dev/fd/1"] {
            let directory = directory();
            let path = directory.path().join("redirected");
            fs::write(&path, "before ").unwrap();
            let mut command = env.command(VRAMSCOPE);
            command.args(*live).arg(name);
            // Reports and the recording cannot share standard output.
            if *live == ["trace", "--record"] {
                command.args(["-o", "/dev/null"]);
            }
            command.arg("--").arg(simulator().join("workload")).arg("kinds");
            let out = File::options().append(true).open(&path).unwrap();
            let output = command.stdout(out).stderr(Stdio::piped()).output().unwrap();
            assert!(output.status.success(), "{live:?} {name}: {}", stderr(&output));
            let written = fs::read(&path).unwrap();
            assert!(written.starts_with(b"before ") && written.len() > 50, "{live:?} {name}");
        }
    }
    let mut command = env.command(VRAMSCOPE);
    command.args(["trace", "--record", "-", "--"]).arg(simulator().join("workload")).arg("kinds");
    let output = command.output().unwrap();
    assert!(stderr(&output).contains("same file"), "{}", stderr(&output));
}

#[test]
fn two_outputs_in_one_new_file_are_rejected() {
    let (directory, env) = (directory(), TestEnv::new());
    let path = directory.path().join("out");
    let other = directory.path().join(".").join("out");
    let output = traced(&env, &["trace", "--record"], &path, &["-o", other.to_str().unwrap()]);
    assert!(!output.status.success());
    assert!(stderr(&output).contains("same file"), "{}", stderr(&output));
    assert_eq!(names(&directory), [""; 0]);
    assert!(env.oracles().is_empty());
}

/// A workload whose reports fill a small disk.
const LARGE_HOLD: &[&str] = &["hold", "--count", "900", "--size", "4096", "--wait-ms", "20000"];

#[test]
fn full_disk_is_reported_by_file_and_leaves_whole_reports() {
    let env = TestEnv::new();
    let disk = Disk::new(env.dir.path().join("disk"));
    let file = disk.0.join("reports.jsonl");
    let mut command = env.command(VRAMSCOPE);
    command.args(["trace", "--json", "--interval", "50ms", "-o"]).arg(&file).arg("--");
    let output = command.arg(simulator().join("workload")).args(LARGE_HOLD).output().unwrap();
    let messages = stderr(&output);
    let line = messages.lines().find(|line| line.contains("No space left")).unwrap();
    assert!(line.contains(file.to_str().unwrap()), "{messages}");
    assert!(!output.status.success(), "{messages}");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.ends_with('\n') && text.lines().count() > 1, "{} bytes", text.len());
    for line in text.lines() {
        let report: Value = serde_json::from_str(line).unwrap();
        assert!(report["processes"].is_array());
    }
}

#[test]
fn file_size_limit_is_reported_like_a_full_disk() {
    let (directory, env) = (directory(), TestEnv::new());
    let file = directory.path().join("reports.jsonl");
    let line = format!(
        "ulimit -f 200; exec {VRAMSCOPE} trace --json --interval 50ms -o {} -- {} {}",
        file.display(),
        simulator().join("workload").display(),
        LARGE_HOLD.join(" ")
    );
    let output = env.command("bash").args(["-c", &line]).output().unwrap();
    let messages = stderr(&output);
    assert_eq!(output.status.signal(), None, "{messages}");
    assert!(messages.contains("File too large"), "{messages}");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()));
}

#[test]
fn full_standard_output_is_reported_by_name() {
    let file = recording("plain");
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let mut report = Command::new(VRAMSCOPE);
    report.args(["report", &file]).stdout(full());
    let mut trace = TestEnv::new().command(VRAMSCOPE);
    trace.args(["trace", "--json", "--", "true"]).stdout(full());
    for mut command in [report, trace] {
        let output = command.stderr(Stdio::piped()).output().unwrap();
        let messages = stderr(&output);
        assert!(messages.contains("cannot write standard output: No space"), "{messages}");
    }
}

#[test]
fn full_disk_is_reported_by_every_file_command() {
    let env = TestEnv::new();
    let disk = Disk::new(env.dir.path().join("disk"));
    // Fills the disk completely.
    let filled = Command::new("dd")
        .args(["if=/dev/zero", "bs=4k"])
        .arg(format!("of={}", disk.0.join("filler").display()))
        .stderr(Stdio::null())
        .status();
    assert!(!filled.unwrap().success());
    let (file, out) = (recording("plain"), disk.0.join("out.svg"));
    let (out, dir) = (out.to_str().unwrap(), disk.0.to_str().unwrap());
    for words in [
        &["replay", &file, "-o", out][..],
        &["report", &file, "-o", out],
        &["report", &file, "--format", "html", "-o", out],
        &["diff", &file, &file, "--format", "json", "-o", out],
        &["plot", &file, "-o", out],
        &["export", &file, "--format", "csv", "-o", out],
        &["export", &file, "--format", "flamegraph", "-o", out],
        &["export", &file, "--format", "pprof", "-o", out],
        &["export", &file, "--format", "torch", "-o", out],
        &["export", &file, "--format", "perfetto", "-o", out],
        &["export", &file, "--format", "speedscope", "-o", out],
        &["export", &file, "--format", "nsys-tsv", "-o", dir],
        &["export", &file, "--format", "parquet", "-o", dir],
    ] {
        let output = run(words);
        let messages = stderr(&output);
        let line = messages.lines().last().unwrap();
        let name = words[words.len() - 1];
        assert_eq!(line.matches("No space left").count(), 1, "{words:?}: {messages}");
        assert_eq!(line.matches(name).count(), 1, "{words:?}: {messages}");
        assert_eq!(output.status.code(), Some(2));
        assert!(!Path::new(out).exists(), "{words:?}");
    }
}
