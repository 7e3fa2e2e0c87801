//! `mark`: labels from outside in running traces, recordings and reports.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use serde_json::Value;

use crate::harness::files::{root, stderr, stdout};
use crate::harness::{TestEnv, Tracer, VRAMSCOPE};

const MIB: u64 = 1 << 20;

/// The user `nobody`.
const UNPRIVILEGED: u32 = 65_534;

fn vramscope(arguments: &[&str]) -> Output {
    Command::new(VRAMSCOPE).args(arguments).output().unwrap()
}

/// Marks in one trace only: other tests run at the same time.
fn mark(tracer: u32, arguments: &[&str]) -> Command {
    let mut command = Command::new(VRAMSCOPE);
    command.args(["mark", "--tracer", &tracer.to_string()]).args(arguments);
    command
}

fn accepted(mut command: Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(output.stdout.is_empty() && output.stderr.is_empty());
}

fn refused(mut command: Command, reason: &str) {
    let output = command.output().unwrap();
    assert!(!output.status.success() && stderr(&output).contains(reason), "{}", stderr(&output));
}

/// Whether a report has a mark of a process.
fn has(report: &Value, pid: u32, kind: &str, label: &str) -> bool {
    let marks = report["marks"].as_array().into_iter().flatten();
    marks.into_iter().any(|mark| {
        mark["pid"] == pid && mark["type"] == kind && mark["label"].as_str() == Some(label)
    })
}

#[test]
fn marks_are_reported_recorded_and_measured() {
    let env = TestEnv::new();
    let file = env.dir.path().join("run.arrows");
    let file = file.to_str().unwrap();
    let driver = env.driver.to_str().unwrap();
    let mut tracer = env.start_trace(&["--driver", driver, "--record", file]);
    tracer.next();
    let own = tracer.child.id();
    let first = env.hold(0, 3, MIB);
    let (pid, text) = (first.pid(), first.pid().to_string());
    tracer.wait_for_process(pid, |process| process["live_bytes"] == 3 * MIB);
    accepted(mark(own, &["<b>\u{1b}[2J"]));
    let marked = tracer.wait_for("the mark of the host", |report| {
        let marks = report["marks"].as_array().into_iter().flatten();
        marks.into_iter().any(|mark| mark["pid"].is_null())
    });
    assert!(marked.to_string().contains(r"<b>\\u{1b}[2J"), "{marked}");
    accepted(mark(own, &["-p", &text, "epoch 1"]));
    tracer.wait_for("the mark", |report| has(report, pid, "point", "epoch 1"));
    accepted(mark(own, &["-p", &text, "--begin", "evaluation"]));
    let second = env.hold(0, 4, MIB);
    tracer.wait_for_process(second.pid(), |process| process["live_bytes"] == 4 * MIB);
    accepted(mark(own, &["-p", &text, "--end", "evaluation"]));
    refused(mark(own, &["-p", "4194303", "of no process"]), "no such process");
    let ended = tracer.stop();
    // The last report has all of them.
    assert!(has(ended.last(), pid, "point", "epoch 1"), "{}", ended.last());
    assert!(has(ended.last(), pid, "end", "evaluation"), "{}", ended.last());

    let report = vramscope(&["report", file, "marks", "--json"]);
    let report: Value = serde_json::from_str(&stdout(&report)).unwrap();
    let phases: Vec<_> = report["phases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            let size = |field: &str| one[field].as_u64().unwrap() / MIB;
            let label = one["label"].as_str().unwrap().to_owned();
            (label, one["pid"].as_u64(), size("begin_bytes"), size("peak_bytes"))
        })
        .collect();
    let own = Some(u64::from(pid));
    let expected =
        [(r"<b>\u{1b}[2J", None, 3, 7), ("epoch 1", own, 3, 3), ("evaluation", own, 3, 3)];
    assert_eq!(
        phases,
        expected.map(|(label, pid, a, b)| (label.to_owned(), pid, a, b)),
        "{report:#}"
    );
    assert!(report["phases"][2]["end_ns"].as_i64() > report["phases"][2]["begin_ns"].as_i64());
    let text = stdout(&vramscope(&["report", file, "marks"]));
    assert!(text.contains("3 marks") && text.contains("evaluation"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
    check_pictures(&env, file);
    drop((first, second));
}

/// Fails unless the chart and the HTML report of a recording have its marks, escaped.
fn check_pictures(env: &TestEnv, file: &str) {
    let picture = env.dir.path().join("run.svg");
    let plotted = vramscope(&["plot", file, "-o", picture.to_str().unwrap()]);
    assert!(plotted.status.success(), "{}", stderr(&plotted));
    let svg = std::fs::read_to_string(picture).unwrap();
    assert!(svg.contains("&lt;b&gt;") && !svg.contains("<b>"), "{svg}");
    let page = env.dir.path().join("run.html");
    let written = vramscope(&["page", file, "-o", page.to_str().unwrap()]);
    assert!(written.status.success(), "{}", stderr(&written));
    assert!(!std::fs::read_to_string(page).unwrap().contains("<b>"));
}

#[test]
fn other_users_mark_their_own_processes_only() {
    let env = TestEnv::new();
    let mut tracer = env.start_trace(&["--driver", env.driver.to_str().unwrap()]);
    tracer.next();
    let own = tracer.child.id();
    let foreign = env.hold(0, 1, MIB);
    let as_nobody = |arguments: &[&str]| {
        let mut command = mark(own, arguments);
        command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
        command
    };
    refused(as_nobody(&["everything"]), "only root and the user of the trace");
    refused(as_nobody(&["-p", &foreign.pid().to_string(), "theirs"]), "another user");
    let mut sleep = Command::new("sleep");
    let mut sleep = sleep.arg("60").uid(UNPRIVILEGED).spawn().unwrap();
    accepted(as_nobody(&["-p", &sleep.id().to_string(), "mine"]));
    tracer.wait_for("the mark", |report| has(report, sleep.id(), "point", "mine"));
    sleep.kill().unwrap();
    sleep.wait().unwrap();
    refused(mark(1, &["nowhere"]), "nothing is traced");
}

#[test]
fn python_program_marks_itself_in_a_trace_with_and_without_probes() {
    let script = "import os, sys, time, vramscope\n\
                  assert vramscope.mark('epoch 1') > 0\n\
                  with vramscope.phase('evaluation'):\n    pass\n\
                  time.sleep(1)\n";
    for verb in ["trace", "run"] {
        let env = TestEnv::new();
        // A program marks itself in all traces of its network namespace: not in those of other tests.
        let mut command = env.command("unshare");
        command.args(["--net", VRAMSCOPE, verb, "--json", "--interval", "100ms", "--"]);
        command.args(["python3", "-c", script]).env("PYTHONPATH", root().join("python"));
        let ended = Tracer::start(&mut command).wait_for("its marks", |report| {
            let marks = report["marks"].as_array().map_or(0, Vec::len);
            marks >= 3
        });
        let marks = ended["marks"].as_array().unwrap();
        let pid = marks[0]["pid"].as_u64().unwrap() as u32;
        for (kind, label) in [("point", "epoch 1"), ("begin", "evaluation"), ("end", "evaluation")]
        {
            assert!(has(&ended, pid, kind, label), "{verb}: {ended}");
        }
    }
}
