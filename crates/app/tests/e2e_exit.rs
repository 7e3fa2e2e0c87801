//! Exit codes: of the command, of checks, and of vramscope itself.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::harness::files::{recording, run, stderr};
use crate::harness::{TestEnv, VRAMSCOPE, simulator};

/// Commands that start a program.
const VERBS: &[&[&str]] = &[&["trace"], &["kernels"], &["record", "-o", "/dev/null"]];

fn traced(verb: &[&str], command: &[&str]) -> Output {
    let mut vramscope = Command::new(VRAMSCOPE);
    vramscope.args(verb).arg("--").args(command).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("{:?}: {}", output.status, stderr(output)))
}

#[test]
fn exit_code_of_the_command_is_passed_on() {
    for verb in VERBS {
        for (script, expected) in
            [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -9 $$", 137), ("kill $$", 143)]
        {
            let output = traced(verb, &["sh", "-c", script]);
            let messages = stderr(&output);
            assert_eq!(code(&output), expected, "{verb:?} {script}: {messages}");
            assert!(!messages.contains("error:"), "{verb:?} {script}: {messages}");
            let is_reported = messages.contains("the command failed: ");
            assert_eq!(is_reported, expected != 0, "{verb:?} {script}: {messages}");
        }
    }
}

fn executable(directory: &Path, name: &str, content: &[u8]) -> String {
    let path = directory.join(name);
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn unrunnable_commands_have_shell_exit_codes() {
    let directory = tempfile::tempdir().unwrap();
    let script = executable(directory.path(), "script", b"#!/no/such/interpreter\n");
    let refused = executable(directory.path(), "refused", b"#!/etc/passwd\n");
    for verb in VERBS {
        for (command, expected, expected_message) in [
            ("no-such-program-here", 127, "no such program in PATH"),
            ("/no/such/program", 127, "/no/such/program"),
            ("/etc/passwd", 126, "not an executable"),
            ("/etc", 126, "/etc"),
            (script.as_str(), 127, "script"),
            (refused.as_str(), 126, "refused"),
        ] {
            let output = traced(verb, &[command]);
            let messages = stderr(&output);
            assert_eq!(code(&output), expected, "{verb:?} {command}: {messages}");
            assert!(messages.contains(expected_message), "{verb:?} {command}: {messages}");
        }
    }
}

#[test]
fn failures_of_vramscope_differ_from_those_of_the_command() {
    let driver = ["trace", "--driver", "/no/such/libcuda.so.1"];
    let output = run(&driver);
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    let output = traced(&driver, &["sh", "-c", "echo it ran; exit 2"]);
    let messages = stderr(&output);
    assert_eq!(code(&output), 125, "{messages}");
    assert!(output.stdout.is_empty(), "the command must not run");
    // The suspended process for the command exits without a message.
    assert_eq!(messages.lines().count(), 1, "{messages}");
    assert_eq!(code(&run(&["trace", "--no-such-option"])), 2);
}

/// Traces a program that leaves one buffer and exits with this code, and returns the exit code.
fn leaky(env: &TestEnv, options: &[&str], exit: i32) -> i32 {
    let workload = simulator().join("workload");
    let line = format!("{} leak3 --work-ms 1 --wait-ms 1; exit {exit}", workload.display());
    let mut command = env.command(VRAMSCOPE);
    code(&command.arg("trace").args(options).args(["--", "sh", "-c", &line]).output().unwrap())
}

#[test]
fn leak_exit_code_differs_from_a_failed_command() {
    let env = TestEnv::new();
    assert_eq!(leaky(&env, &[], 0), 0);
    assert_eq!(leaky(&env, &[], 1), 1);
    assert_eq!(leaky(&env, &["--fail-on-leak"], 0), 3);
    assert_eq!(leaky(&env, &["--fail-on-leak"], 4), 3, "a leak comes first");
    assert_eq!(leaky(&env, &["--fail-on-leak=1G"], 4), 4);
    assert_eq!(leaky(&env, &["--fail-on-leak", "--leak-exit-code", "99"], 0), 99);
    assert_eq!(leaky(&env, &["--fail-on-leak", "--leak-exit-code", "99"], 1), 99);
    assert_eq!(leaky(&env, &["--fail-on-leak=1G", "--leak-exit-code", "99"], 1), 1);
    let file = recording("plain");
    let report = |options: &[&str]| code(&run(&[&["report", &file][..], options].concat()));
    assert_eq!(report(&["--fail-on-leak"]), 3);
    for format in ["text", "html"] {
        let format = format!("--format={format}");
        assert_eq!(report(&["--fail-on-leak", "--leak-exit-code=7", &format]), 7);
    }
    for wrong in [&["--leak-exit-code=7"][..], &["--fail-on-leak", "--leak-exit-code=0"]] {
        assert_eq!(report(wrong), 2, "{wrong:?}");
    }
    assert_eq!(report(&["--fail-on-leak", "--leak-exit-code=256"]), 2);
}
