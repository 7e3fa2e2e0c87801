//! Small files, one analysis each.

use std::collections::BTreeMap;

use engine::analysis::diff::{Diff, DiffInput, Trend};
use engine::analysis::leaks::LeakReport;
use engine::analysis::peak::PeakAnalysis;
use engine::analysis::usage::UsageAnalysis;
use engine::analysis::{Amount, MemoryScope};
use engine::ledger::FileLedger;
use engine::model::change::{AllocationChange, EndReason};
use engine::model::ids::{Pid, SiteId};
use engine::model::memory_kind::MemoryKind;
use engine::model::stack::{Frame, SiteName, StackTable};
use engine::model::units::{Nanos, Timestamp};
use engine::snapshot::Snapshot;
use engine::verdict::{AnomalyKind, Verdict};

use super::feed::{alloc, ended};
use super::groups;

#[test]
fn static_memory_counts_as_device_memory_and_is_listed_last() {
    let static_one = AllocationChange { kind: MemoryKind::Static, ..alloc(1, 1, 1, 100, 0) };
    let managed = AllocationChange { kind: MemoryKind::ManagedStatic, ..alloc(1, 1, 2, 30, 0) };
    let pinned =
        AllocationChange { kind: MemoryKind::Pinned, device: None, ..alloc(1, 1, 3, 7, 0) };
    let pool = AllocationChange { kind: MemoryKind::Pool, ..alloc(1, 1, 5, 1 << 20, 0) };
    let leaked = alloc(2, 1, 4, 50, 1);
    let found = LeakReport::of(&groups(&[static_one, managed, pinned, pool, leaked]));
    assert_eq!(found.leaked, Amount { bytes: 150, allocations: 2 });
    assert_eq!(found.statics, Amount { bytes: 100, allocations: 1 });
    // Static memory is larger, but is listed last.
    assert_eq!(found.sites[0].key.kind, MemoryKind::Device);
    assert_eq!(found.managed[0].amount.bytes, 30);
    assert_eq!(found.host_by_kind, [(MemoryKind::Pinned, Amount { bytes: 7, allocations: 1 })]);
    assert_eq!(found.other_by_kind[0].0, MemoryKind::Pool);
}

#[test]
fn memory_released_with_its_context_is_not_a_leak() {
    let (a, b) = (alloc(1, 1, 1, 10, 0), alloc(2, 1, 2, 20, 0));
    let changes = [a, b, ended(3, a, EndReason::ProcessExited), ended(3, b, EndReason::Released)];
    let found = LeakReport::of(&groups(&changes));
    assert_eq!(found.leaked, Amount { bytes: 10, allocations: 1 });
    assert_eq!((found.sites[0].at_exit, found.sites[0].allocations_total), (1, 2));
}

#[test]
fn device_peak_is_not_the_sum_of_process_peaks() {
    let (a, b, c) = (alloc(1, 1, 1, 60, 0), alloc(3, 2, 1, 50, 0), alloc(4, 2, 2, 5, 1));
    let mut analysis = PeakAnalysis::new(MemoryScope::Device);
    for change in [a, ended(2, a, EndReason::Freed), b, c] {
        analysis.observe(&change);
    }
    let peaks = analysis.finish();
    let short: Vec<_> = peaks.iter().map(|peak| (peak.pid, peak.bytes, peak.at.0)).collect();
    assert_eq!(short, [(None, 60, 1), (Some(Pid(1)), 60, 1), (Some(Pid(2)), 55, 4)]);
    assert_eq!(peaks[0].live[0].allocations[0].key.value, 1);
    assert_eq!(peaks[2].live.len(), 2);
}

#[test]
fn torch_file_is_measured_by_its_blocks() {
    let pool = AllocationChange { kind: MemoryKind::Pool, ..alloc(1, 0, 1, 1000, 0) };
    let block = AllocationChange { kind: MemoryKind::Torch, ..alloc(2, 0, 2, 10, 0) };
    let mut usage = UsageAnalysis::new(MemoryScope::Torch, None);
    let mut analysis = PeakAnalysis::new(MemoryScope::Torch);
    for change in [pool, block] {
        usage.observe(&change);
        analysis.observe(&change);
    }
    assert_eq!(analysis.finish()[0].bytes, 10);
    let report = usage.finish();
    assert_eq!((report.totals[0].peak.bytes, report.series.len()), (10, 2));
}

/// Builds a loop of steps one second apart: each step allocates and frees 100 bytes at site 0, and
/// keeps `leaked(step)` bytes at site 1.
fn program(steps: u64, leaked: impl Fn(u64) -> u64) -> FileLedger {
    let mut suspects = FileLedger::new(MemoryScope::Device);
    let second = 1_000_000_000;
    for step in 0..steps {
        let now = step * second;
        let scratch = alloc(now, 1, 1, 100, 0);
        suspects.observe(&scratch);
        if leaked(step) > 0 {
            suspects.observe(&alloc(now + 1, 1, 1000 + step, leaked(step), 1));
        }
        suspects.observe(&ended(now + second / 2, scratch, EndReason::Freed));
    }
    suspects
}

fn found(suspects: FileLedger) -> Snapshot {
    suspects.finish(&StackTable::default(), &BTreeMap::new())
}

/// The site of a verdict: this file has no stacks.
const fn site(number: u32) -> SiteName {
    SiteName::Pending(SiteId(number))
}

#[test]
fn steadily_growing_site_is_a_suspect() {
    let found = found(program(1000, |_| 10));
    let [suspect] = &found.suspects[..] else { panic!("{found:?}") };
    let evidence = &suspect.evidence;
    assert_eq!((suspect.site, evidence.live, evidence.live_count), (site(1), 10_000, 1000));
    assert_eq!(evidence.growing_steps, evidence.steps);
    assert_eq!((evidence.created, evidence.freed, evidence.mean_life), (1000, 0, None));
    // 10 bytes per second, averaged over half the file.
    assert!((35_000..37_000).contains(&evidence.growth_per_hour), "{}", evidence.growth_per_hour);
    assert_eq!(evidence.mean_age, Nanos(500_000_000_000 - 1));
    let [other] = &found.other_verdicts[..] else { panic!("{found:?}") };
    assert_eq!((other.site, other.verdict), (site(0), Verdict::Periodic));
}

#[test]
fn plateau_burst_and_sawtooth_are_not_suspects() {
    let verdicts = |suspects: FileLedger| -> Vec<_> {
        let found = found(suspects);
        assert_eq!(found.suspects, []);
        let others = found.other_verdicts.iter().filter(|one| one.site == site(1));
        others.map(|one| one.verdict).collect()
    };
    let plateau = program(1000, |step| if step < 300 { 10 } else { 0 });
    assert_eq!(verdicts(plateau), [Verdict::Plateau]);
    let once = program(1000, |step| if step == 500 { 10_000 } else { 0 });
    assert_eq!(verdicts(once), [Verdict::Plateau]);
    assert_eq!(verdicts(program(1000, |_| 0)), []);
    let mut sawtooth = FileLedger::new(MemoryScope::Device);
    for round in 0..40_u64 {
        let second = 1_000_000_000;
        let round_changes: Vec<_> =
            (0..10).map(|n| alloc((round * 10 + n) * second, 1, n, 10, 1)).collect();
        round_changes.iter().for_each(|change| sawtooth.observe(change));
        for one in round_changes {
            sawtooth.observe(&ended((round * 10 + 10) * second - 1, one, EndReason::Freed));
        }
    }
    assert_eq!(verdicts(sawtooth), [Verdict::Periodic]);
}

#[test]
fn short_file_has_no_verdict() {
    assert_eq!(found(FileLedger::new(MemoryScope::Device)), Snapshot::default());
    assert_eq!(found(program(3, |_| 10)).suspects, []);
}

#[test]
fn exited_process_is_classified_up_to_its_exit() {
    let mut suspects = program(1000, |_| 10);
    let last = Timestamp(1_000_000_000_000);
    for step in 0..1000 {
        let old = alloc(step * 1_000_000_000 + 1, 1, 1000 + step, 10, 1);
        suspects.observe(&ended(last.0, old, EndReason::ProcessExited));
    }
    // The file continues for the same time again, with another program in the same process.
    suspects.observe(&alloc(2 * last.0, 1, 1, 10, 1));
    suspects.observe(&alloc(2 * last.0, 2, 1, 10, 3));
    let found = found(suspects);
    assert_eq!(found.suspects.len(), 1, "{found:?}");
    assert_eq!(found.suspects[0].evidence.live, 10_000);
    assert_eq!(found.other_verdicts.iter().filter(|one| one.evidence.live == 10).count(), 2);
}

#[test]
fn host_memory_is_classified_and_overlapping_layers_are_not() {
    for (kind, suspects_expected) in [
        (MemoryKind::Pinned, 1),
        (MemoryKind::Managed, 1),
        (MemoryKind::Pool, 0),
        (MemoryKind::Static, 0),
    ] {
        let mut suspects = FileLedger::new(MemoryScope::Device);
        for step in 0..100 {
            let change = alloc(step * 1_000_000_000, 1, step, 10, 1);
            suspects.observe(&AllocationChange { kind, ..change });
        }
        assert_eq!(found(suspects).suspects.len(), suspects_expected, "{kind}");
    }
}

#[test]
fn freed_huge_allocation_is_an_anomaly() {
    for freed in [false, true] {
        let mut suspects = FileLedger::new(MemoryScope::Device);
        for step in 0..50 {
            let one = alloc(step * 1000, 1, step % 4, 10 << 20, 1);
            suspects.observe(&one);
            suspects.observe(&ended(step * 1000 + 500, one, EndReason::Freed));
            let huge = alloc(step * 1000 + 600, 1, 99, 2 << 30, 2);
            if step == 30 {
                suspects.observe(&huge);
            }
            if step == 30 && freed {
                suspects.observe(&ended(step * 1000 + 700, huge, EndReason::Freed));
            }
        }
        let found = found(suspects);
        let [anomaly] = &found.anomalies[..] else { panic!("{:?}", found.anomalies) };
        let AnomalyKind::Size { bytes, of, live, .. } = anomaly.details else {
            panic!("{anomaly:?}")
        };
        assert_eq!((bytes.0, of, live), (2 << 30, 31, !freed));
        assert_eq!((anomaly.at, anomaly.site), (Timestamp(30_600), site(2)));
    }
}

/// Interns a stack of two frames; `line` is the line of the inner one.
fn stack(stacks: &mut StackTable, function: &str, line: u32) -> u32 {
    let frame = |function: &str, line| Frame {
        function: function.into(),
        file: Some("train.py".into()),
        line,
        ..Frame::default()
    };
    let frames = [stacks.frame(frame(function, line)), stacks.frame(frame("main", 9))];
    stacks.site(&frames).0
}

#[test]
fn sites_of_two_files_are_matched_by_their_frames() {
    let (mut old, mut new) = (StackTable::default(), StackTable::default());
    let (grew, gone, moved) =
        (stack(&mut old, "grew", 1), stack(&mut old, "gone", 2), stack(&mut old, "moved", 3));
    let added = stack(&mut new, "added", 1);
    let (moved_now, grew_now) = (stack(&mut new, "moved", 5), stack(&mut new, "grew", 1));
    let before = [alloc(1, 1, 1, 10, grew), alloc(1, 1, 2, 20, gone), alloc(1, 1, 3, 5, moved)];
    // Another process, other addresses, other ids.
    let after =
        [alloc(1, 7, 11, 100, grew_now), alloc(1, 7, 12, 40, added), alloc(1, 7, 13, 5, moved_now)];
    let (before, after) = (groups(&before), groups(&after));
    let diff = Diff::of(
        &DiffInput { groups: &before, stacks: &old },
        &DiffInput { groups: &after, stacks: &new },
    );
    assert_eq!((diff.never_freed.0.bytes, diff.never_freed.1.bytes), (35, 145));
    assert_eq!(diff.peak_bytes, (35, 145));
    let rows: Vec<_> = diff.rows.iter().map(|row| (row.trend, row.moved)).collect();
    let want =
        [(Trend::Grew, false), (Trend::New, false), (Trend::Gone, false), (Trend::Same, true)];
    assert_eq!(rows, want);
    let first = diff.rows[0];
    assert_eq!(first.before.unwrap().site.unwrap().0, grew);
    assert_eq!(first.after.unwrap().site.unwrap().0, grew_now);
    assert_eq!(first.after.unwrap().never_freed.bytes, 100);
}

#[test]
fn site_with_a_higher_peak_grew() {
    let mut stacks = StackTable::default();
    let site = stack(&mut stacks, "step", 1);
    let (small, big) = (alloc(1, 1, 1, 10, site), alloc(1, 1, 1, 30, site));
    let before = groups(&[small, ended(2, small, EndReason::Freed)]);
    let after = groups(&[big, ended(2, big, EndReason::Freed)]);
    let file = |groups| DiffInput { groups, stacks: &stacks };
    let diff = Diff::of(&file(&before), &file(&after));
    assert_eq!(diff.rows[0].trend, Trend::Grew);
    assert_eq!(Diff::of(&file(&after), &file(&after)).rows[0].trend, Trend::Same);
}
