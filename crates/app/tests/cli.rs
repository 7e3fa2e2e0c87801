//! The command line as users and scripts see it: help, usage errors, colors.

use std::collections::BTreeSet;

use crate::harness::files::{run, stderr, stdout};
use crate::harness::{TestEnv, VRAMSCOPE, simulator};

/// Commands whose help has examples.
const WITH_EXAMPLES: &[&str] = &[
    "trace",
    "kernels",
    "record",
    "replay",
    "report",
    "diff",
    "export",
    "plot",
    "advise",
    "doctor",
    "completions",
    "man",
];

/// Returns the help of the program or of a command, which must succeed on standard output.
fn help(verb: Option<&str>) -> String {
    let arguments: Vec<&str> = verb.into_iter().chain(["--help"]).collect();
    let output = run(&arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}");
    assert!(output.stderr.is_empty(), "{}", stderr(&output));
    stdout(&output)
}

/// Returns the commands that the help lists.
fn verbs() -> Vec<String> {
    let text = help(None);
    let (_, list) = text.split_once("Commands:\n").expect("no commands in the help");
    list.lines()
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .filter(|verb| verb != "help")
        .collect()
}

/// Returns the long options that a help text defines.
fn options(help: &str) -> BTreeSet<String> {
    let defined = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    defined.flat_map(long_options).filter(|option| option != "--help").collect()
}

/// Returns words that are long options, without values.
fn long_options(text: &str) -> Vec<String> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
        .filter(|word| word.len() > 2 && word.starts_with("--") && word.as_bytes()[2] != b'-')
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_command_has_its_own_help() {
    let verbs = verbs();
    assert!(
        ["trace", "record", "doctor", "demo"].iter().all(|verb| verbs.contains(&verb.to_string()))
    );
    for verb in &verbs {
        let text = help(Some(verb));
        assert!(text.contains(&format!("Usage: vramscope {verb}")), "{text}");
        // `help VERB` is the same as `VERB --help`.
        assert_eq!(stdout(&run(&["help", verb])), text);
    }
}

#[test]
fn help_examples_use_existing_options() {
    for verb in WITH_EXAMPLES {
        let text = help(Some(verb));
        let (_, examples) = text.split_once("\nEXAMPLES\n").expect("examples");
        let lines: Vec<&str> =
            examples.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
        assert!(lines.len() >= 3, "{lines:?}");
        let known = options(&text);
        for line in lines {
            assert!(line.starts_with(&format!("vramscope {verb}")), "{line}");
            let own = line.split(" -- ").next().unwrap();
            for option in long_options(own) {
                assert!(known.contains(&option), "no {option}: {line}");
            }
        }
    }
}

#[test]
fn help_fits_a_narrow_terminal() {
    for text in verbs().iter().map(|verb| help(Some(verb))).chain([help(None)]) {
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
}

#[test]
fn version_is_that_of_the_package() {
    for option in ["--version", "-V"] {
        let output = run(&[option]);
        assert!(output.status.success());
        assert_eq!(stdout(&output), format!("vramscope {}\n", env!("CARGO_PKG_VERSION")));
    }
}

#[test]
fn missing_command_is_a_usage_error() {
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    assert!(
        stderr(&output).contains("Usage: vramscope [OPTIONS] <COMMAND>"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn unknown_command_is_named_in_the_error() {
    let output = run(&["conjure"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let message = stderr(&output);
    assert!(message.contains("conjure") && message.contains("--help"), "{message}");
    // A typo is corrected.
    assert!(stderr(&run(&["trce"])).contains("trace"));
    let message = stderr(&run(&["trace", "--intervall", "1s"]));
    assert!(message.contains("'--interval'") && !message.contains("-- --intervall"), "{message}");
}

#[test]
fn piped_output_has_no_colors() {
    let env = TestEnv::new();
    let workload = simulator().join("workload");
    let output =
        env.command(VRAMSCOPE).args(["trace", "--"]).arg(workload).arg("kinds").output().unwrap();
    let text = stdout(&output);
    assert!(text.contains("not freed at exit"), "{text}");
    for output in [output, run(&["--help"]), run(&["doctor"]), run(&["conjure"])] {
        assert!(!output.stdout.contains(&0x1b), "{}", stdout(&output));
        assert!(!output.stderr.contains(&0x1b), "{}", stderr(&output));
    }
}

/// Runs a command line on a separate terminal, and returns its output.
fn on_a_terminal(line: &str, no_color: Option<&str>) -> String {
    let env = TestEnv::new();
    let mut command = env.command("script");
    command.args(["-qec", line, "/dev/null"]).env("TERM", "xterm").env_remove("NO_COLOR");
    command.envs(no_color.map(|value| ("NO_COLOR", value)));
    let output = command.output().expect("script, of the package bsdutils");
    assert!(output.status.success(), "{}", stderr(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn terminal_has_colors_unless_no_color_is_set() {
    let workload = simulator().join("workload");
    let trace = format!("{VRAMSCOPE} trace -- {} kinds", workload.display());
    for line in [trace, format!("{VRAMSCOPE} --help")] {
        assert!(on_a_terminal(&line, None).contains('\x1b'), "{line}");
        assert!(!on_a_terminal(&line, Some("1")).contains('\x1b'), "{line}");
    }
}

#[test]
fn report_in_a_file_has_no_colors() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("report");
    let workload = simulator().join("workload");
    on_a_terminal(
        &format!("{VRAMSCOPE} trace -o {} -- {} kinds", file.display(), workload.display()),
        None,
    );
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.contains("not freed at exit") && !text.contains('\x1b'), "{text:?}");
}
