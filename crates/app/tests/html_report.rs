//! HTML reports in a real browser, compared with other reports of the same file.
//! `fixtures/page/drive.py` has one function per test.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::harness::VRAMSCOPE;
use crate::harness::files::{self, fixture, root, tool};

const ANALYSES: [&str; 5] = ["summary", "leaks", "peak", "usage", "fragmentation"];

fn nsys() -> PathBuf {
    root().join("crates/formats/tests/import/nsys/h200-2024.2.3.sqlite")
}

fn torch() -> PathBuf {
    root().join("crates/formats/tests/torch/real/torch-2.11_native.pickle")
}

fn recording() -> PathBuf {
    files::recording("torch_expandable").into()
}

/// Runs a function of the script in the environment of `tools/python-env`.
fn drive(scenario: &str, dir: &Path) {
    let chromium = Path::new("/usr/bin/chromium");
    assert!(chromium.exists(), "{} not found: run ./dev test", chromium.display());
    let mut python = tool("python");
    let output = python.arg(fixture("page/drive.py")).arg(scenario).arg(dir).output().unwrap();
    assert!(output.status.success(), "{scenario}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Writes the HTML report of a file and its other reports into a directory.
fn page(file: &Path) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let write = |analysis: &str, format: &str, name: &str| {
        let mut command = Command::new(VRAMSCOPE);
        command.arg("report").arg(file).args([analysis, "--format", format, "-o"]);
        let output = command.arg(dir.path().join(name)).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    write("summary", "html", "page.html");
    for analysis in ANALYSES {
        write(analysis, "json", &format!("{analysis}.json"));
    }
    dir
}

#[test]
fn html_values_match_the_reports() {
    for file in [nsys(), torch(), recording()] {
        drive("values", page(&file).path());
    }
}

#[test]
fn timeline_matches_the_report_and_can_be_moved() {
    for file in [nsys(), recording()] {
        drive("timeline", page(&file).path());
    }
}

#[test]
fn selected_items_show_their_complete_stack() {
    for file in [nsys(), torch()] {
        drive("picks", page(&file).path());
    }
}

#[test]
fn caches_are_drawn_with_blocks() {
    drive("caches", page(&torch()).path());
}

#[test]
fn search_filters_sites() {
    drive("search", page(&torch()).path());
}

#[test]
fn html_report_follows_the_color_scheme() {
    drive("themes", page(&nsys()).path());
}

#[test]
fn html_report_fits_a_narrow_window_and_the_keyboard() {
    drive("narrow", page(&torch()).path());
}

#[test]
fn markup_in_names_is_escaped() {
    let dir = tempfile::tempdir().unwrap();
    drive("make_hostile", dir.path());
    let file = dir.path().join("<img src=x onerror=alert(1)>.pickle");
    drive("hostile", page(&file).path());
}

#[test]
fn html_report_loads_nothing_external() {
    let dir = page(&torch());
    let text = std::fs::read_to_string(dir.path().join("page.html")).unwrap();
    for word in ["http:", "https:", "src=", "href=", "@import", "url(", "innerHTML", "eval("] {
        assert!(!text.contains(word), "{word}");
    }
    assert!(text.contains("default-src 'none'; script-src 'sha256-"));
    assert!(!text.contains("unsafe"), "inline scripts or styles are allowed");
}
