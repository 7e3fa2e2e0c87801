//! Pages in a real browser: used as a person would, and compared with reports of the same file. What is
//! done is in `fixtures/page/drive.py`, one function for each test.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod harness;

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::VRAMSCOPE;
use harness::files::{self, fixture, root, tool};
use tempfile::TempDir;

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

/// Runs a function of the script, in the environment that `tools/python-env` made.
fn drive(scenario: &str, folder: &Path) {
    let chromium = Path::new("/usr/bin/chromium");
    assert!(chromium.exists(), "there is no {}: run ./dev test", chromium.display());
    let mut python = tool("python");
    let output = python.arg(fixture("page/drive.py")).arg(scenario).arg(folder).output().unwrap();
    assert!(output.status.success(), "{scenario}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The page of a file and its reports, in a folder.
fn page(file: &Path) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |analysis: &str, format: &str, name: &str| {
        let mut command = Command::new(VRAMSCOPE);
        command.arg("report").arg(file).args(["--analysis", analysis, "--format", format, "-o"]);
        let output = command.arg(folder.path().join(name)).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    write("summary", "html", "page.html");
    for analysis in ANALYSES {
        write(analysis, "json", &format!("{analysis}.json"));
    }
    folder
}

#[test]
fn the_figures_of_a_page_are_those_of_the_reports() {
    for file in [nsys(), torch(), recording()] {
        drive("figures", page(&file).path());
    }
}

#[test]
fn the_timeline_is_that_of_the_report_and_moves_by_wheel_drag_buttons_and_keys() {
    for file in [nsys(), recording()] {
        drive("timeline", page(&file).path());
    }
}

#[test]
fn what_is_picked_is_told_with_its_whole_stack() {
    for file in [nsys(), torch()] {
        drive("picks", page(&file).path());
    }
}

#[test]
fn caches_are_drawn_with_their_blocks() {
    drive("caches", page(&torch()).path());
}

#[test]
fn a_search_leaves_the_sites_that_match() {
    drive("search", page(&torch()).path());
}

#[test]
fn a_page_is_light_or_dark() {
    drive("themes", page(&nsys()).path());
}

#[test]
fn a_page_fits_a_narrow_window_and_is_used_by_keyboard() {
    drive("narrow", page(&torch()).path());
}

#[test]
fn names_that_are_markup_stay_text() {
    let folder = tempfile::tempdir().unwrap();
    drive("make_hostile", folder.path());
    let file = folder.path().join("<img src=x onerror=alert(1)>.pickle");
    drive("hostile", page(&file).path());
}

#[test]
fn a_page_names_nothing_from_elsewhere_and_forbids_it() {
    let folder = page(&torch());
    let text = std::fs::read_to_string(folder.path().join("page.html")).unwrap();
    for word in ["http:", "https:", "src=", "href=", "@import", "url(", "innerHTML", "eval("] {
        assert!(!text.contains(word), "{word}");
    }
    assert!(text.contains("default-src 'none'; script-src 'sha256-"));
    assert!(!text.contains("unsafe"), "neither scripts nor styles from within");
}
