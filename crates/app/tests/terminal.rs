//! No content of a file, path or argument may control the terminal or forge a message.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::harness::VRAMSCOPE;
use crate::harness::files::recording;

/// Clears the screen, sets the title, returns to the start of the line, begins a message; C1
/// controls do the same in one character.
const HOSTILE: &str = "a\x1b[2J\x1b]0;t\x07\rb\nvramscope: forged\u{9b}31m\u{202e}";

fn run(arguments: &[&str]) -> Output {
    Command::new(VRAMSCOPE).args(arguments).output().unwrap()
}

/// Checks both output streams, and returns them.
fn assert_safe(arguments: &[&str], output: &Output) -> String {
    let text = [&output.stderr[..], &output.stdout].concat();
    // CSV lines end like this.
    let text = String::from_utf8(text).unwrap().replace("\r\n", "\n");
    let is_control = |c: char| c.is_control() && !"\n\t".contains(c) || c == '\u{202e}';
    assert!(!text.contains(is_control), "{arguments:?}: {text:?}");
    assert!(!text.contains("\nvramscope: forged"), "{arguments:?}: {text}");
    text
}

/// Runs a command line that fails with an error that quotes a hostile text.
fn assert_escaped(arguments: &[&str]) {
    let output = run(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    let text = assert_safe(arguments, &output);
    assert!(text.contains("\\u{1b}[2J"), "the name is not escaped: {arguments:?}: {text}");
}

#[test]
fn file_names_are_escaped_by_every_command() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (missing, damaged) = (path(&format!("m{HOSTILE}")), path(&format!("d{HOSTILE}")));
    let out = path(&format!("no/{HOSTILE}.svg"));
    fs::write(&damaged, "SQLite format 3\0 and no more").unwrap();
    let good = recording("plain");
    for file in [&missing, &damaged] {
        assert_escaped(&["report", file]);
        assert_escaped(&["replay", file]);
        assert_escaped(&["report", &good, "usage", "--smi-log", file]);
        assert_escaped(&["diff", file, &good]);
        assert_escaped(&["diff", &good, file]);
        assert_escaped(&["export", file, "--format", "csv", "-o", "-"]);
        assert_escaped(&["plot", file, "-o", "x.svg"]);
        assert_escaped(&["advise", file]);
        assert_escaped(&["trace", "--driver", file]);
        assert_escaped(&["kernels", "--driver", file]);
        assert_escaped(&["record", "-o", "/dev/null", "--driver", file]);
        assert_escaped(&["advise", "--driver", file]);
        assert_escaped(&["serve", "--config", file]);
        assert_escaped(&["demo", "--simulator", file]);
        assert_escaped(&["trace", "--", file]);
        // An output that exists, or is an input.
        if file == &damaged {
            assert_escaped(&["trace", "-o", file]);
            assert_escaped(&["record", "-o", file]);
            assert_escaped(&["report", &good, "-o", file]);
            assert_escaped(&["report", file, "-o", file]);
        }
    }
    assert_escaped(&["trace", "-o", &out]);
    assert_escaped(&["trace", "--record", &out]);
    assert_escaped(&["kernels", "-o", &out]);
    assert_escaped(&["record", "-o", &out]);
    assert_escaped(&["replay", &good, "-o", &out]);
    assert_escaped(&["report", &good, "-o", &out]);
    assert_escaped(&["diff", &good, &good, "-o", &out]);
    assert_escaped(&["export", &good, "--format", "csv", "-o", &out]);
    assert_escaped(&["export", &good, "--format", "nsys-tsv", "-o", &format!("/proc/{HOSTILE}")]);
    assert_escaped(&["plot", &good, "-o", &out]);
    assert_escaped(&["plot", &good, "-o", &path(HOSTILE)]);
    assert_escaped(&["advise", "--agent", "127.0.0.1:1", "--token-file", &out]);
}

#[test]
fn file_names_are_escaped_in_reports() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(HOSTILE);
    fs::copy(recording("plain"), &file).unwrap();
    let file = file.to_str().unwrap();
    for arguments in [
        &["report", file][..],
        &["report", file, "leaks", "--format", "tsv"],
        &["report", file, "usage"],
        &["replay", file],
        &["report", file, "--fail-on-leak"],
        &["diff", file, file],
        &["export", file, "--format", "folded", "-o", "-"],
        &["export", file, "--format", "csv", "-o", "-"],
        &["advise", file],
    ] {
        assert_safe(arguments, &run(arguments));
    }
}

#[test]
fn arguments_are_escaped_in_usage_errors() {
    for arguments in [
        &[HOSTILE][..],
        &["trace", HOSTILE],
        &["trace", &format!("--{HOSTILE}")],
        &["trace", "--interval", HOSTILE],
        &["trace", "--min-size", HOSTILE],
        &["trace", &format!("--fail-on-leak={HOSTILE}")],
        &["trace", "-p", HOSTILE],
        &["trace", "--sort", HOSTILE],
        &["report", "x", "--max-points", HOSTILE],
        &["advise", "--need", HOSTILE],
        &["help", HOSTILE],
    ] {
        assert_escaped(arguments);
    }
    // The program name is an argument as well.
    let mut renamed = Command::new(VRAMSCOPE);
    std::os::unix::process::CommandExt::arg0(&mut renamed, HOSTILE);
    for argument in ["--help", "conjure"] {
        let output = renamed.arg(argument).output().unwrap();
        assert_safe(&[argument], &output);
    }
    let not_unicode: OsString = std::os::unix::ffi::OsStringExt::from_vec(b"\xff\x1b[2J".to_vec());
    let output = Command::new(VRAMSCOPE).arg("trace").arg("-p").arg(not_unicode).output().unwrap();
    assert_safe(&["-p"], &output);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn launcher_errors_are_escaped() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join(HOSTILE);
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&script, mode).unwrap();
    assert_escaped(&["trace", "--", script.to_str().unwrap()]);
}

/// Runs a command line on a separate terminal, and returns its output.
fn on_a_terminal(directory: &Path, line: &str) -> String {
    let mut command = Command::new("script");
    command.args(["-qec", line, "/dev/null"]).env("TERM", "xterm").env("NO_COLOR", "1");
    let output = command.current_dir(directory).output().expect("script, of the package bsdutils");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn terminal_gets_no_foreign_escape_sequences() {
    let directory = tempfile::tempdir().unwrap();
    fs::copy(recording("plain"), directory.path().join(HOSTILE)).unwrap();
    // The shell of `script` gets the name from a glob pattern.
    for line in ["report a*", "export a* --format csv -o -", "plot a* -o a*"] {
        let shown = on_a_terminal(directory.path(), &format!("{VRAMSCOPE} {line}"));
        let quotes = !line.starts_with("export");
        assert_eq!(shown.contains("\\u{"), quotes, "{line}: {shown}");
        assert!(!shown.contains(['\x1b', '\x07', '\u{9b}', '\u{202e}']), "{line}: {shown:?}");
    }
}

#[test]
fn progress_is_replaced_by_the_next_message() {
    let directory = tempfile::tempdir().unwrap();
    let line = format!("{VRAMSCOPE} record -o out.arrows --duration 2500ms");
    let shown = on_a_terminal(directory.path(), &line);
    let lines: Vec<&str> = shown.split("\r\x1b[K").collect();
    assert!(lines.len() >= 3, "{shown:?}");
    assert!(!lines.concat().contains('\x1b'), "{shown:?}");
    let last = lines.last().unwrap();
    assert!(last.starts_with("vramscope: recorded") && last.ends_with("lost\r\n"), "{shown:?}");
}
