//! `vramscope doctor`: its JSON, the bundle for bug reports, and hosts that refuse to be traced.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use serde_json::Value;

use crate::docs::collect_violations;
use crate::e2e_newer_driver::newer_driver;
use crate::harness::contract::contract;
use crate::harness::files::{read, run, stderr, stdout};
use crate::harness::{TestEnv, VRAMSCOPE, isolated, simulator};

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(output)))
}

/// Returns a restriction that `doctor` reports.
fn restriction<'a>(report: &'a Value, name: &str) -> Option<&'a Value> {
    report["restrictions"].as_array().unwrap().iter().find(|found| found["name"] == name)
}

/// Runs a command in a user namespace of its own, as rootless containers do.
fn in_user_namespace(arguments: &[&str]) -> Output {
    let unshare = ["--user", "--map-root-user", VRAMSCOPE];
    Command::new("unshare").args(unshare).args(arguments).output().unwrap()
}

#[test]
fn doctor_json_matches_its_documentation() {
    let page = "docs/reference/json-doctor.md";
    let contract = contract(page);
    let mut problems = BTreeSet::new();
    let here = TestEnv::new().command(VRAMSCOPE).args(["doctor", "--json"]).output().unwrap();
    let report = json(&here);
    assert_eq!((here.status.code(), &report["works"]), (Some(0), &Value::Bool(true)), "{report}");
    let refused = json(&in_user_namespace(&["doctor", "--format", "json"]));
    for report in
        [report, refused, json(&isolated(VRAMSCOPE).args(["doctor", "--json"]).output().unwrap())]
    {
        collect_violations(&report, "", &contract, &mut problems);
    }
    assert!(problems.is_empty(), "{page}: {problems:#?}");
}

#[test]
fn user_namespace_is_refused_by_name() {
    let output = in_user_namespace(&["doctor", "--json"]);
    let report = json(&output);
    assert_eq!(output.status.code(), Some(1), "{report}");
    assert_eq!(restriction(&report, "user_namespace").unwrap()["effect"], "refused");
    let error = report["error"].as_str().unwrap();
    assert!(error.contains("user namespace") && error.contains("vramscope run"), "{error}");
    let trace = in_user_namespace(&["trace", "--duration", "1s"]);
    assert_eq!(trace.status.code(), Some(2));
    assert!(stderr(&trace).contains("user namespace"), "{}", stderr(&trace));
}

#[test]
fn pid_namespace_is_reported_as_a_limit() {
    let report = json(&isolated(VRAMSCOPE).args(["doctor", "--json"]).output().unwrap());
    assert_eq!(restriction(&report, "pid_namespace").unwrap()["effect"], "limited");
    assert!(restriction(&report, "user_namespace").is_none(), "{report}");
}

#[test]
fn unknown_memory_functions_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    newer_driver(dir.path());
    let with = |arguments: &[&str]| {
        let mut command = Command::new(VRAMSCOPE);
        command.args(arguments).env("LD_LIBRARY_PATH", dir.path());
        command.env("VRAMSCOPE_TEST_LIBRARY_DIR", dir.path()).output().unwrap()
    };
    let report = json(&with(&["doctor", "--json"]));
    let unknown = &report["drivers"][0]["unknown_functions"];
    assert_eq!(*unknown, serde_json::json!(["cuMemAllocNext"]), "{report}");
    assert!(stdout(&with(&["doctor"])).contains("functions that this version does not know"));
    let driver = dir.path().join("libcuda.so.1");
    let trace = with(&["trace", "--duration", "100ms", "--driver", driver.to_str().unwrap()]);
    assert!(stderr(&trace).contains("cuMemAllocNext"), "{}", stderr(&trace));
}

#[test]
fn bundle_contains_no_names_of_host_users_or_projects() {
    let dir = tempfile::tempdir().unwrap();
    let project = dir.path().join("secret-project");
    std::fs::create_dir(&project).unwrap();
    std::fs::copy(simulator().join("libcuda.so.1"), project.join("libcuda.so.1")).unwrap();
    let file = dir.path().join("report.tar.gz");
    let doctor = || {
        let script =
            format!("hostname secret-host && exec {VRAMSCOPE} doctor --bundle={}", file.display());
        let mut command = Command::new("unshare");
        command.args(["--uts", "sh", "-c", &script]).env("LD_LIBRARY_PATH", &project);
        command.env("USER", "secretann").env("SUDO_USER", "secretbob").output().unwrap()
    };
    let output = doctor();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("secret-project"), "the report itself is not redacted");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let unpack = Command::new("tar").arg("-xzf").arg(&file).current_dir(dir.path()).status();
    assert!(unpack.unwrap().success());
    let bundle = dir.path().join("vramscope-doctor");
    for entry in std::fs::read_dir(&bundle).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        assert!(!text.contains("secret"), "{text}");
    }
    let report: Value =
        serde_json::from_slice(&std::fs::read(bundle.join("doctor.json")).unwrap()).unwrap();
    assert_eq!(report["drivers"][0]["path"], "…/libcuda.so.1", "{report}");
    let settings = std::fs::read_to_string(bundle.join("settings.txt")).unwrap();
    assert!(settings.contains("kernel.perf_event_paranoid = "), "{settings}");
    let again = doctor();
    assert_eq!(again.status.code(), Some(2));
    assert!(stderr(&again).contains("--force"), "{}", stderr(&again));
}

#[test]
fn completions_are_valid_and_complete_verbs_and_options() {
    let dir = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        assert!(output.status.success(), "{}", stderr(&output));
        let script = dir.path().join(shell);
        std::fs::write(&script, &output.stdout).unwrap();
        let checked = Command::new(shell).arg("-n").arg(&script).output().unwrap();
        assert!(checked.status.success() && checked.stderr.is_empty(), "{}", stderr(&checked));
    }
    let ask = |shell: &str, script: String| {
        stdout(&Command::new(shell).args(["-c", &script]).current_dir(&dir).output().unwrap())
    };
    let in_bash = |words: &str, at: usize| {
        ask(
            "bash",
            format!(
                "source ./bash; COMP_WORDS=({words}); COMP_CWORD={at}; _vramscope vramscope \"${{COMP_WORDS[{at}]}}\" x; echo ${{COMPREPLY[@]}}"
            ),
        )
    };
    assert_eq!(in_bash("vramscope tra", 1).trim(), "trace");
    assert_eq!(in_bash("vramscope trace --fail-on-", 2).trim(), "--fail-on-leak");
    let in_fish = |line: &str| ask("fish", format!("source ./fish; complete -C '{line}'"));
    assert!(in_fish("vramscope doc").starts_with("doctor\t"), "{}", in_fish("vramscope doc"));
    assert!(in_fish("vramscope doctor --bun").starts_with("--bundle"));
}

#[test]
fn man_pages_are_valid_and_cover_every_verb() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("man1");
    let output = run(&["man", "--output", target.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let pages: BTreeSet<String> = std::fs::read_dir(&target)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let table = read("docs/reference/cli.md");
    let verbs: Vec<&str> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| [`")?.split_once("`](#").map(|(verb, _)| verb))
        .collect();
    let expected: BTreeSet<String> = std::iter::once("vramscope.1".to_owned())
        .chain(verbs.iter().map(|verb| format!("vramscope-{verb}.1")))
        .collect();
    assert_eq!(pages, expected);
    let mandoc = |options: &[&str], page: &str| {
        let mut command = Command::new("mandoc");
        command.args(options).arg(target.join(page)).output().unwrap()
    };
    for page in &pages {
        let lint = mandoc(&["-T", "lint", "-W", "error"], page);
        assert!(lint.status.success(), "{}", stdout(&lint));
    }
    let text = stdout(&mandoc(&["-T", "utf8"], "vramscope-trace.1"));
    let plain: String = text.split('\u{8}').collect::<Vec<_>>().join("");
    assert!(plain.contains("vramscope trace -p 4711 -d 1m"), "{plain}");
    // The same page on standard output; existing pages stay.
    assert_eq!(
        run(&["man", "trace"]).stdout,
        std::fs::read(target.join("vramscope-trace.1")).unwrap()
    );
    assert_eq!(run(&["man", "conjure"]).status.code(), Some(2));
    let again = run(&["man", "--output", target.to_str().unwrap()]);
    assert_eq!(again.status.code(), Some(2));
    assert!(stderr(&again).contains("--force"), "{}", stderr(&again));
}
