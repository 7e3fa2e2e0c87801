//! Reports of two small files with everything in them, compared with reviewed golden files.
//! `VRAMSCOPE_UPDATE=1` regenerates them. Important values are computed by hand in `values.rs`.

mod contract;
mod fixture;
mod nsys_tsv;
mod values;

use engine::analysis::diff::{Diff, DiffInput};
use engine::analysis::leaks::LeakReport;
use fixture::{FileFixture, fragmentation, overlay};
use formats::report::analysis;
use formats::report::analysis::{AnalysisResult, DiffView, json};
use formats::report::live::text::TextStyle;

fn assert_golden(name: &str, found: &str) {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/analysis");
    let path = dir.join(name);
    if std::env::var_os("VRAMSCOPE_UPDATE").is_some() {
        std::fs::write(&path, found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == expected, "{} differs; found:\n{found}", path.display());
}

fn text(fixture: &FileFixture, result: AnalysisResult<'_>) -> String {
    let mut out = Vec::new();
    analysis::write_text(
        &mut out,
        &fixture.analyzed_file(Some(10)),
        result,
        "",
        TextStyle::default(),
    )
    .unwrap();
    String::from_utf8(out).unwrap()
}

fn object(fixture: &FileFixture, result: AnalysisResult<'_>) -> serde_json::Value {
    let mut out = Vec::new();
    json::write(&mut out, &fixture.analyzed_file(None), result).unwrap();
    let line = String::from_utf8(out).unwrap();
    assert_eq!(line.matches('\n').count(), 1, "one object on one line");
    serde_json::from_str(&line).unwrap()
}

/// Compares every format of one result with its golden file.
fn check(fixture: &FileFixture, result: AnalysisResult<'_>) {
    let name = result.name();
    let as_text = text(fixture, result);
    assert!(!as_text.contains('\x1b'), "escape sequences of a file must not reach the terminal");
    assert_golden(&format!("{name}.txt"), &as_text);
    let pretty = serde_json::to_string_pretty(&object(fixture, result)).unwrap() + "\n";
    assert_golden(&format!("{name}.json"), &pretty);
    let mut out = Vec::new();
    analysis::write_tsv(&mut out, &fixture.analyzed_file(None), result).unwrap();
    let table = String::from_utf8(out).unwrap();
    let columns = |line: &str| line.matches('\t').count();
    let width = columns(table.lines().next().unwrap());
    assert!(table.lines().all(|line| columns(line) == width), "{table}");
    assert_golden(&format!("{name}.tsv"), &table);
}

#[test]
fn leaks_match_golden_files() {
    let fixture = FileFixture::with_verdicts();
    check(&fixture, AnalysisResult::Leaks(&LeakReport::of(&fixture.groups()), &fixture.state()));
}

#[test]
fn sites_match_golden_files() {
    let fixture = FileFixture::rich();
    check(&fixture, AnalysisResult::Sites(&fixture.summary()));
}

#[test]
fn peak_matches_golden_files() {
    let fixture = FileFixture::rich();
    check(&fixture, AnalysisResult::Peak(&fixture.peaks()));
}

#[test]
fn usage_matches_golden_files() {
    let fixture = FileFixture::rich();
    check(&fixture, AnalysisResult::Usage(&fixture.usage(), &[overlay()]));
}

#[test]
fn summary_matches_golden_files() {
    let fixture = FileFixture::rich();
    let (summary, peaks, state) = (fixture.summary(), fixture.peaks(), fixture.state());
    check(&fixture, AnalysisResult::Summary(&summary, &peaks, &state));
}

#[test]
fn fragmentation_matches_golden_files() {
    check(&FileFixture::rich(), AnalysisResult::Fragmentation(&fragmentation()));
}

/// Calls `then` with the difference of two files.
fn with_comparison<T>(then: impl FnOnce(&DiffView<'_>) -> T) -> T {
    let (before, after) = (FileFixture::rich(), FileFixture::later());
    let (old, new) = (before.groups(), after.groups());
    let diff = Diff::of(
        &DiffInput { groups: &old, stacks: &before.info.stacks },
        &DiffInput { groups: &new, stacks: &after.info.stacks },
    );
    let comparison = DiffView {
        before: before.analyzed_file(None),
        after: after.analyzed_file(None),
        diff: &diff,
    };
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
        analysis::write_diff_text(&mut out, comparison, TextStyle::default()).unwrap();
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
    let fixture = FileFixture::default();
    let leaks = LeakReport::of(&fixture.groups());
    let (summary, state) = (fixture.summary(), fixture.state());
    let results = [
        (AnalysisResult::Leaks(&leaks, &state), "No GPU memory activity"),
        (AnalysisResult::Peak(&fixture.peaks()), "No device memory"),
        (AnalysisResult::Usage(&fixture.usage(), &[]), "No device memory"),
        (AnalysisResult::Sites(&summary), "No device memory was allocated in the recorded time"),
        (AnalysisResult::Summary(&summary, &[], &state), "No GPU memory activity"),
        (
            AnalysisResult::Fragmentation(&analysis::FragmentationView::default()),
            "No caches or pools",
        ),
    ];
    for (result, beginning) in results {
        assert!(text(&fixture, result).starts_with(beginning), "{}", text(&fixture, result));
        assert_eq!(object(&fixture, result)["exact"], true);
    }
}

#[test]
fn snapshot_of_a_running_program_reports_live_memory() {
    let mut fixture = FileFixture::growing();
    fixture.imported.source = formats::import::SourceFormat::Torch;
    fixture
        .changes
        .iter_mut()
        .for_each(|change| change.kind = engine::model::memory_kind::MemoryKind::Torch);
    let mut groups = engine::analysis::groups::GroupTable::new(fixture.imported.source.scope());
    fixture.changes.iter().for_each(|change| groups.observe(change));
    let leaks = LeakReport::of(&groups);
    let found = text(&fixture, AnalysisResult::Leaks(&leaks, &fixture.state()));
    let line = "PyTorch memory: 64.00 MiB in 64 allocations live in the snapshot";
    assert!(found.lines().any(|found| found == line), "{found}");
}

#[test]
fn colors_are_used_only_on_request() {
    let fixture = FileFixture::growing();
    let leaks = LeakReport::of(&fixture.groups());
    let mut out = Vec::new();
    let style = TextStyle { color: true, ..TextStyle::default() };
    let state = fixture.state();
    let result = AnalysisResult::Leaks(&leaks, &state);
    analysis::write_text(&mut out, &fixture.analyzed_file(None), result, "", style).unwrap();
    let found = String::from_utf8(out).unwrap();
    assert!(found.starts_with("\x1b[1;31m"), "{found:?}");
    assert!(!found.contains("\x1b[31mmalloc"), "{found:?}");
}
