//! All analyses of a file, and their reports in every format.

use engine::analysis::MemoryScope;
use engine::analysis::fragmentation;
use engine::analysis::groups::GroupTable;
use engine::analysis::leaks::LeakReport;
use engine::analysis::peak::PeakAnalysis;
use engine::analysis::summary::SummaryAnalysis;
use engine::analysis::usage::UsageAnalysis;
use engine::ledger::FileLedger;
use engine::model::change::AllocationChange;
use formats::import::ImportSummary;
use formats::import::collecting_sink::FileInfo;
use formats::report::analysis::{self, AnalysisResult, AnalyzedFile};
use formats::report::live::text::TextStyle;

use super::live_set::LiveSet;
use super::{Rotation, assert_lines, assert_printable};

/// Limits of lists and charts, as on the command line.
const TOP: usize = 10;
const POINTS: usize = 288;

/// Analyses that observe the changes of a file.
pub(super) struct Analyses {
    scope: MemoryScope,
    groups: GroupTable,
    summary: SummaryAnalysis,
    peak: PeakAnalysis,
    usage: UsageAnalysis,
    suspects: FileLedger,
}

impl Analyses {
    pub(super) fn new(scope: MemoryScope) -> Self {
        Self {
            scope,
            groups: GroupTable::new(scope),
            summary: SummaryAnalysis::new(scope),
            peak: PeakAnalysis::new(scope),
            usage: UsageAnalysis::new(scope, Some(POINTS)),
            suspects: FileLedger::new(scope),
        }
    }

    pub(super) fn observe(&mut self, change: &AllocationChange) {
        self.groups.observe(change);
        self.summary.observe(change);
        self.peak.observe(change);
        self.usage.observe(change);
        self.suspects.observe(change);
    }

    /// Writes reports, and compares their totals with the live set.
    pub(super) fn write(
        self,
        imported: &ImportSummary,
        info: &FileInfo,
        live: &LiveSet,
        turn: &Rotation,
    ) {
        let file = AnalyzedFile { path: "input", imported, info, top: Some(TOP), utc: true };
        let scope = self.scope;
        let live = live.bytes(|kind| scope.counts(kind));
        let (peak, _) = self.groups.peak();
        assert!(peak >= live, "peak {peak}, live {live}");
        let (leaks, peaks) = (LeakReport::of(&self.groups), self.peak.finish());
        assert!(leaks.leaked.bytes >= live, "{leaks:?}, live {live}");
        let summary = self.summary.finish(TOP);
        assert_eq!((summary.peak_bytes, summary.never_freed), (peak, leaks.leaked));
        let state = info.end_state(self.suspects);
        let usage = self.usage.finish();
        let results = [
            AnalysisResult::Summary(&summary, &peaks, &state),
            AnalysisResult::Leaks(&leaks, &state),
            AnalysisResult::Sites(&summary),
            AnalysisResult::Peak(&peaks),
            AnalysisResult::Usage(&usage, &[]),
        ];
        for (number, result) in (0..).zip(results) {
            if turn.is(number, results.len() as u64) {
                check(&file, result);
            }
        }
        let mut leak = Vec::new();
        analysis::write_leak(&mut leak, &state, 1, TextStyle::default()).unwrap();
        assert_lines(leak);
        let caches = fragmentation::analyze(&info.segments, &info.pools, &info.settings);
        for device in &caches.devices {
            let _ = caches.would_fit(device.device, 1 << 20);
        }
    }
}

fn check(file: &AnalyzedFile<'_>, result: AnalysisResult<'_>) {
    let mut text = Vec::new();
    analysis::write_text(&mut text, file, result, "", TextStyle::default()).unwrap();
    assert_lines(text);
    let mut json = Vec::new();
    analysis::json::write(&mut json, file, result).unwrap();
    serde_json::from_slice::<serde::de::IgnoredAny>(&json).unwrap();
    let mut table = Vec::new();
    analysis::write_tsv(&mut table, file, result).unwrap();
    let table = String::from_utf8(table).unwrap();
    let columns = |line: &str| line.matches('\t').count();
    let mut lines = table.lines();
    let width = lines.next().map_or(0, columns);
    for line in lines {
        assert_eq!(columns(line), width, "{line}");
        line.split('\t').for_each(assert_printable);
    }
}
