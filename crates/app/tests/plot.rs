//! `plot` on events recorded on a real GPU. `fixtures/report/expected.py` computed the expected
//! peaks.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::harness::VRAMSCOPE;
use crate::harness::files::{fixture, recording};

fn run(arguments: &[&str]) -> Output {
    Command::new(VRAMSCOPE).arg("plot").args(arguments).output().unwrap()
}

/// Draws into a file with this extension, and returns its content.
fn draw(arguments: &[&str], extension: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("picture").with_extension(extension);
    let output = run(&[arguments, &["-o", path.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.is_empty() && output.stderr.is_empty());
    std::fs::read(path).unwrap()
}

fn svg(arguments: &[&str]) -> String {
    String::from_utf8(draw(arguments, "svg")).unwrap()
}

#[test]
fn plotted_peak_matches_the_events() {
    let expected: Value =
        serde_json::from_str(&std::fs::read_to_string(fixture("report/expected.json")).unwrap())
            .unwrap();
    for (program, values) in expected.as_object().unwrap() {
        let mib = values["peak_bytes"].as_f64().unwrap() / f64::from(1 << 20);
        let seconds = values["peak_time_ns"].as_f64().unwrap() / 1e9;
        let words = format!("peak {mib:.2} MiB at {seconds:.3} s");
        for by in ["kind", "site", "process", "device"] {
            let svg = svg(&[&recording(program), "--by", by]);
            assert!(svg.contains(&words), "{program} by {by}: {words}\n{svg}");
        }
    }
}

#[test]
fn several_files_are_plotted_side_by_side() {
    let both = svg(&[
        &recording("torch_native"),
        &recording("torch_expandable"),
        "--title",
        "both <of> them",
    ]);
    assert_eq!(both.matches("<circle").count(), 2);
    assert!(both.contains("both &lt;of&gt; them") && both.contains("torch_native/events.arrows"));
    assert!(both.contains("width=\"1520\" height=\"520\""));
    let small =
        svg(&[&recording("plain"), "--size", "600x300", "--theme", "dark", "--time", "utc"]);
    assert!(small.contains("width=\"600\" height=\"300\""));
    assert!(!small.contains("prefers-color-scheme") && small.contains(">00:00:0"), "{small}");
}

#[test]
fn file_extension_selects_the_format() {
    let file = recording("torch_native");
    assert!(draw(&[&file], "png").starts_with(b"\x89PNG"));
    assert!(draw(&[&file], "html").starts_with(b"<!DOCTYPE html>"));
    assert!(draw(&[&file, "--top", "1"], "SVG").starts_with(b"<svg"));
}

#[test]
fn nvidia_smi_log_is_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("smi.csv");
    std::fs::write(&log, "1970/01/01 00:00:01.000, 700\n1970/01/01 00:00:09.000, 900\n").unwrap();
    let log = log.to_str().unwrap();
    let svg = svg(&[&recording("torch_native"), "--smi-log", log, "--smi-offset", "0s"]);
    assert!(svg.contains(">nvidia-smi, GPU 0"), "{svg}");
    assert!(svg.contains(">896 MiB<"), "the axis does not reach its maximum: {svg}");
}

#[test]
fn usage_errors_have_advice() {
    let good = recording("plain");
    for (arguments, words) in [
        (&[&*good, "-o", "x.jpeg"][..], "use .svg, .png or .html"),
        (&[&good, &good, "-o", "x.html"], "an HTML report takes one file"),
        (&[&good, "-o", "/no/such/dir/x.svg"], "choose another file"),
        (&["/no/such/file", "-o", "/dev/null/x.svg"], "cannot read /no/such/file"),
        (&[&good, "-o", "x.svg", "--size", "9"], "1200x520"),
        (&[&good, "-o", "x.svg", "--top", "0"], "from 1 to 50"),
        (&[&good, "-o", "x.svg", "--smi-offset", "1s"], "--smi-log"),
    ] {
        let output = run(arguments);
        let messages = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {messages}");
        assert!(messages.contains(words), "{arguments:?}: {messages}");
    }
    assert!(!Path::new("x.svg").exists() && !Path::new("x.html").exists());
}
