//! Errors and help of the command line.

use std::process::{Command, Output};

fn workload(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_workload"))
        .args(arguments)
        .env("LD_LIBRARY_PATH", "/nonexistent")
        .output()
        .unwrap()
}

#[test]
fn missing_driver_is_reported_in_one_line() {
    let output = workload(&["leak3"]);
    // On a machine with a real driver, the linker finds it.
    if output.status.success() {
        return;
    }
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(message.lines().count(), 1, "{message}");
}

#[test]
fn help_lists_every_program() {
    let output = workload(&["--help"]);
    let help = String::from_utf8(output.stdout).unwrap();
    for program in [
        "leak3",
        "train",
        "stressor",
        "threads",
        "anomaly",
        "spam",
        "hold",
        "oom",
        "contexts",
        "kinds",
        "fork",
        "exec",
        "dlopen-late",
        "random",
        "ipc",
        "launches",
        "launch-late",
        "copies",
        "leaks",
    ] {
        assert!(help.lines().any(|line| line.trim_start().starts_with(program)), "{program}");
    }
}

#[test]
fn invalid_option_is_rejected() {
    assert_eq!(workload(&["spam", "--throughput", "fast"]).status.code(), Some(2));
    assert_eq!(workload(&["leaks"]).status.code(), Some(2));
    assert_eq!(workload(&["leaks", "fast-leak", "--seconds", "0"]).status.code(), Some(2));
    assert_eq!(workload(&[]).status.code(), Some(2));
}
