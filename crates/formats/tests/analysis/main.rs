//! Reports of two small files with everything in them, compared with reviewed golden files.
//! `VRAMSCOPE_UPDATE=1` regenerates them. Important values are computed by hand in `values.rs`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod contract;
mod figures;
mod handoff;
mod story;

use engine::analysis::diff::{Diff, File};
use engine::analysis::leakage::Leakage;
use formats::export::analysis::{self, Answer, Comparison, json};
use formats::export::text::Style;
use story::{Story, fragmentation, overlay};

fn assert_golden(name: &str, found: &str) {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/analysis");
    let path = dir.join(name);
    if std::env::var_os("VRAMSCOPE_UPDATE").is_some() {
        std::fs::write(&path, found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == expected, "{} differs; found:\n{found}", path.display());
}

fn text(fixture: &Story, answer: Answer<'_>) -> String {
    let mut out = Vec::new();
    analysis::write_text(&mut out, &fixture.subject(Some(10)), answer, Style::default()).unwrap();
    String::from_utf8(out).unwrap()
}

fn object(fixture: &Story, answer: Answer<'_>) -> serde_json::Value {
    let mut out = Vec::new();
    json::write(&mut out, &fixture.subject(None), answer).unwrap();
    let line = String::from_utf8(out).unwrap();
    assert_eq!(line.matches('\n').count(), 1, "one object on one line");
    serde_json::from_str(&line).unwrap()
}

/// Compares every format of one result with its golden file.
fn check(fixture: &Story, answer: Answer<'_>) {
    let name = answer.name();
    let as_text = text(fixture, answer);
    assert!(!as_text.contains('\x1b'), "escape sequences of a file must not reach the terminal");
    assert_golden(&format!("{name}.txt"), &as_text);
    let pretty = serde_json::to_string_pretty(&object(fixture, answer)).unwrap() + "\n";
    assert_golden(&format!("{name}.json"), &pretty);
    let mut out = Vec::new();
    analysis::write_tsv(&mut out, &fixture.subject(None), answer).unwrap();
    let table = String::from_utf8(out).unwrap();
    let columns = |line: &str| line.matches('\t').count();
    let width = columns(table.lines().next().unwrap());
    assert!(table.lines().all(|line| columns(line) == width), "{table}");
    assert_golden(&format!("{name}.tsv"), &table);
}

#[test]
fn leaks_match_golden_files() {
    let fixture = Story::rich();
    check(&fixture, Answer::Leakage(&Leakage::of(&fixture.groups())));
}

#[test]
fn peak_matches_golden_files() {
    let fixture = Story::rich();
    check(&fixture, Answer::Watermark(&fixture.peaks()));
}

#[test]
fn usage_matches_golden_files() {
    let fixture = Story::rich();
    check(&fixture, Answer::Usage(&fixture.courses(), &[overlay()]));
}

#[test]
fn suspects_match_golden_files() {
    let fixture = Story::judged();
    check(&fixture, Answer::Suspects(&fixture.findings()));
}

#[test]
fn summary_matches_golden_files() {
    let fixture = Story::rich();
    check(&fixture, Answer::Summary(&fixture.overview()));
}

#[test]
fn fragmentation_matches_golden_files() {
    check(&Story::rich(), Answer::Fragmentation(&fragmentation()));
}

/// Calls `then` with the difference of two files.
fn with_comparison<T>(then: impl FnOnce(&Comparison<'_>) -> T) -> T {
    let (before, after) = (Story::rich(), Story::later());
    let (old, new) = (before.groups(), after.groups());
    let diff = Diff::of(
        &File { groups: &old, stacks: &before.facts.stacks },
        &File { groups: &new, stacks: &after.facts.stacks },
    );
    let comparison =
        Comparison { before: before.subject(None), after: after.subject(None), diff: &diff };
    then(&comparison)
}

fn comparison_object() -> serde_json::Value {
    with_comparison(|comparison| {
        let mut out = Vec::new();
        json::write_diff(&mut out, comparison).unwrap();
        serde_json::from_slice(&out).unwrap()
    })
}

#[test]
fn diff_matches_golden_files() {
    with_comparison(|comparison| {
        let mut out = Vec::new();
        analysis::write_diff_text(&mut out, comparison, Style::default()).unwrap();
        assert_golden("diff.txt", &String::from_utf8(out).unwrap());
        let mut out = Vec::new();
        analysis::write_diff_tsv(&mut out, comparison).unwrap();
        assert_golden("diff.tsv", &String::from_utf8(out).unwrap());
    });
    let object = comparison_object();
    assert_golden("diff.json", &(serde_json::to_string_pretty(&object).unwrap() + "\n"));
}

#[test]
fn empty_file_has_a_report_for_every_analysis() {
    let fixture = Story::default();
    let leakage = Leakage::of(&fixture.groups());
    let answers = [
        (Answer::Leakage(&leakage), "No leaks"),
        (Answer::Watermark(&fixture.peaks()), "No device memory"),
        (Answer::Usage(&fixture.courses(), &[]), "No device memory"),
        (Answer::Suspects(&fixture.findings()), "Not enough data"),
        (Answer::Summary(&fixture.overview()), "Nothing was allocated"),
        (Answer::Fragmentation(&analysis::Fragmentation::default()), "No caches or pools"),
    ];
    for (answer, beginning) in answers {
        assert!(text(&fixture, answer).starts_with(beginning), "{}", text(&fixture, answer));
        assert_eq!(object(&fixture, answer)["exact"], true);
    }
}

#[test]
fn snapshot_of_a_running_program_reports_live_memory() {
    let mut fixture = Story::growing();
    fixture.imported.source = formats::import::Source::Torch;
    fixture.changes.iter_mut().for_each(|change| change.kind = engine::kind::Kind::Torch);
    let mut groups = engine::analysis::groups::Groups::new(fixture.imported.source.measure());
    fixture.changes.iter().for_each(|change| groups.change(change));
    let found = text(&fixture, Answer::Leakage(&Leakage::of(&groups)));
    let line = "64 leaks: 64.00 MiB of PyTorch memory live in the snapshot";
    assert_eq!(found.lines().next(), Some(line));
}

#[test]
fn colors_are_used_only_on_request() {
    let fixture = Story::rich();
    let leakage = Leakage::of(&fixture.groups());
    let mut out = Vec::new();
    let style = Style { color: true, ..Style::default() };
    let answer = Answer::Leakage(&leakage);
    analysis::write_text(&mut out, &fixture.subject(None), answer, style).unwrap();
    let found = String::from_utf8(out).unwrap();
    assert!(found.starts_with("\x1b[1;31m"), "{found:?}");
    assert!(!found.contains("\x1b[31mmalloc"), "{found:?}");
}
