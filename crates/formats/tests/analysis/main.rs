//! Reports of two small files that have everything in them, against files that were looked at.
//! `VRAMSCOPE_UPDATE=1` writes them anew. Figures that matter are worked out by hand in `figures.rs`.
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
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/analysis");
    let path = folder.join(name);
    if std::env::var_os("VRAMSCOPE_UPDATE").is_some() {
        std::fs::write(&path, found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == expected, "{} differs; found:\n{found}", path.display());
}

fn text(story: &Story, answer: Answer<'_>) -> String {
    let mut out = Vec::new();
    analysis::write_text(&mut out, &story.subject(Some(10)), answer, Style::default()).unwrap();
    String::from_utf8(out).unwrap()
}

fn object(story: &Story, answer: Answer<'_>) -> serde_json::Value {
    let mut out = Vec::new();
    json::write(&mut out, &story.subject(None), answer).unwrap();
    let line = String::from_utf8(out).unwrap();
    assert_eq!(line.matches('\n').count(), 1, "one object in one line");
    serde_json::from_str(&line).unwrap()
}

/// Every form of one answer.
fn check(story: &Story, answer: Answer<'_>) {
    let name = answer.name();
    let as_text = text(story, answer);
    assert!(!as_text.contains('\x1b'), "no escape of a file reaches the terminal");
    assert_golden(&format!("{name}.txt"), &as_text);
    let pretty = serde_json::to_string_pretty(&object(story, answer)).unwrap() + "\n";
    assert_golden(&format!("{name}.json"), &pretty);
    let mut out = Vec::new();
    analysis::write_tsv(&mut out, &story.subject(None), answer).unwrap();
    let table = String::from_utf8(out).unwrap();
    let columns = |line: &str| line.matches('\t').count();
    let width = columns(table.lines().next().unwrap());
    assert!(table.lines().all(|line| columns(line) == width), "{table}");
    assert_golden(&format!("{name}.tsv"), &table);
}

#[test]
fn leakage_in_every_form() {
    let story = Story::rich();
    check(&story, Answer::Leakage(&Leakage::of(&story.groups())));
}

#[test]
fn watermark_in_every_form() {
    let story = Story::rich();
    check(&story, Answer::Watermark(&story.peaks()));
}

#[test]
fn usage_in_every_form() {
    let story = Story::rich();
    check(&story, Answer::Usage(&story.courses(), &[overlay()]));
}

#[test]
fn suspects_in_every_form() {
    let story = Story::judged();
    check(&story, Answer::Suspects(&story.findings()));
}

#[test]
fn summary_in_every_form() {
    let story = Story::rich();
    check(&story, Answer::Summary(&story.overview()));
}

#[test]
fn fragmentation_in_every_form() {
    check(&Story::rich(), Answer::Fragmentation(&fragmentation()));
}

/// Does something with the difference of two files.
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
fn diff_in_every_form() {
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
fn an_empty_file_has_an_answer_to_every_question() {
    let story = Story::default();
    let leakage = Leakage::of(&story.groups());
    let answers = [
        (Answer::Leakage(&leakage), "No leaks"),
        (Answer::Watermark(&story.peaks()), "No device memory"),
        (Answer::Usage(&story.courses(), &[]), "No device memory"),
        (Answer::Suspects(&story.findings()), "Not enough data"),
        (Answer::Summary(&story.overview()), "Nothing was allocated"),
        (Answer::Fragmentation(&analysis::Fragmentation::default()), "No caches or pools"),
    ];
    for (answer, beginning) in answers {
        assert!(text(&story, answer).starts_with(beginning), "{}", text(&story, answer));
        assert_eq!(object(&story, answer)["exact"], true);
    }
}

#[test]
fn what_is_live_in_a_snapshot_of_a_running_program_is_called_so() {
    let mut story = Story::growing();
    story.imported.source = formats::import::Source::Torch;
    story.changes.iter_mut().for_each(|change| change.kind = engine::kind::Kind::Torch);
    let mut groups = engine::analysis::groups::Groups::new(story.imported.source.measure());
    story.changes.iter().for_each(|change| groups.change(change));
    let found = text(&story, Answer::Leakage(&Leakage::of(&groups)));
    let line = "64 leaks: 64.00 MiB of PyTorch memory live in the snapshot";
    assert_eq!(found.lines().next(), Some(line));
}

#[test]
fn colours_only_where_they_are_wanted() {
    let story = Story::rich();
    let leakage = Leakage::of(&story.groups());
    let mut out = Vec::new();
    let style = Style { color: true, ..Style::default() };
    analysis::write_text(&mut out, &story.subject(None), Answer::Leakage(&leakage), style).unwrap();
    let found = String::from_utf8(out).unwrap();
    assert!(found.starts_with("\x1b[1;31m"), "{found:?}");
    assert!(!found.contains("\x1b[31mmalloc"), "{found:?}");
}
