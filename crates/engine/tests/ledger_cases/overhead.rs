//! Driver-reported memory beyond traced allocations, by cause.

use engine::model::overhead::{OverheadCause, Precision};
use engine::model::units::Timestamp;
use engine::snapshot::{CauseView, ProcessView, SnapshotOptions};
use engine::view::{Explanation, PartCause};
use proptest::prelude::*;

use super::notation::ledger;
use crate::random::{CASES, config};

const MIB: u64 = 1 << 20;

fn process(trace: &str) -> ProcessView {
    let snapshot = ledger(trace).snapshot(Timestamp(1 << 40), &SnapshotOptions::default());
    snapshot.processes.into_iter().next().unwrap()
}

fn cause(process: &ProcessView, cause: OverheadCause) -> Option<CauseView> {
    process.overhead.causes.iter().find(|view| view.cause == cause).copied()
}

/// Size, bounds and precision of a cause, in MiB.
fn of(process: &ProcessView, wanted: OverheadCause) -> Option<(u64, u64, u64, Precision)> {
    let view = cause(process, wanted)?;
    Some((view.bytes.0 / MIB, view.min.0 / MIB, view.max.0 / MIB, view.precision))
}

/// What the parts of a process say: `context 500`, `rest -4`.
fn parts(process: &ProcessView) -> Vec<String> {
    let explanation = Explanation::of(process).unwrap();
    let name = |cause: &PartCause<'_>| match cause {
        PartCause::Library(view) => view.library.to_string(),
        other => other.name().to_owned(),
    };
    let part = |part: &engine::view::ExplainedPart<'_>| {
        format!("{} {}", name(&part.cause), part.bytes / MIB as i64)
    };
    explanation.parts.iter().map(part).collect()
}

#[test]
fn objects_created_alone_are_measured() {
    let process = process(
        "7 process 100
         7 usage GPU0 0M
         7.8 ctx create C1 gpu0
         7 usage GPU0 500M
         7.8 create module 0x1 C1 site1
         7.8 create module 0x2 C1 site2
         7 usage GPU0 520M
         7.8 create graph_exec 0x3 C1 site3
         7 usage GPU0 580M
         7.8 create stream 0x4 C1 site4
         7 usage GPU0 582M
         7.8 alloc 0x10 100M device C1 gpu0 site5
         7 usage GPU0 682M
         7 usage GPU0 682M",
    );
    let exact = |mib| Some((mib, mib, mib, Precision::Measured));
    assert_eq!(of(&process, OverheadCause::Context), exact(500));
    assert_eq!(of(&process, OverheadCause::Module), exact(20));
    assert_eq!(of(&process, OverheadCause::GraphExec), exact(60));
    assert_eq!(of(&process, OverheadCause::Stream), exact(2));
    assert_eq!(cause(&process, OverheadCause::Module).unwrap().count, 2);
    let costs = &process.overhead.objects;
    let each: Vec<_> = costs.iter().map(|cost| (cost.kind.name(), cost.bytes.0 / MIB)).collect();
    assert_eq!(each, [("graph_exec", 60), ("module", 10), ("module", 10), ("stream", 2)]);
    let bounds = |index: usize| (costs[index].min.0 / MIB, costs[index].max.0 / MIB);
    assert_eq!((bounds(0), bounds(1)), ((60, 60), (0, 20)), "two modules were created together");
    let all = parts(&process);
    assert_eq!(all, ["context 500", "unknown 100", "graph_execs 60", "modules 20", "streams 2"]);
}

/// What the calls of each limit changed: name, value, change, bounds, in MiB.
fn limits(process: &ProcessView) -> Vec<(&'static str, u64, i64, i64, i64)> {
    let mib = |bytes: i64| bytes / MIB as i64;
    let all = process.overhead.limits.iter();
    all.map(|one| (one.limit.name(), one.value / MIB, mib(one.bytes), mib(one.min), mib(one.max)))
        .collect()
}

#[test]
fn limits_that_are_set_alone_are_measured_and_lowering_returns_memory() {
    let trace = "7 process 100
         7.8 ctx create C1 gpu0
         7 usage GPU0 500M
         7.8 limit malloc_heap 72M
         7 usage GPU0 564M
         7 usage GPU0 564M";
    let raised = process(trace);
    let exact = Some((64, 64, 64, Precision::Measured));
    assert_eq!(of(&raised, OverheadCause::Limit), exact);
    assert_eq!(parts(&raised), ["context 500", "context_limits 64"]);
    let lowered = process(&format!(
        "{trace}
         7.8 limit malloc_heap 8M
         7 usage GPU0 500M
         7 usage GPU0 500M"
    ));
    assert_eq!(of(&lowered, OverheadCause::Limit), None);
    assert_eq!(limits(&lowered), [("malloc_heap", 8, 0, 0, 0)]);
    assert_eq!(lowered.overhead.limits[0].calls, 2);
}

#[test]
fn limits_that_are_set_together_are_bounded_by_the_whole_change() {
    let process = process(
        "7 process 100
         7.8 ctx create C1 gpu0
         7 usage GPU0 500M
         7.8 limit malloc_heap 72M
         7.8 limit printf_fifo 17M
         7 usage GPU0 580M
         7 usage GPU0 580M",
    );
    assert_eq!(of(&process, OverheadCause::Limit), Some((80, 80, 80, Precision::Measured)));
    let each = [("printf_fifo", 17, 40, 0, 80), ("malloc_heap", 72, 40, 0, 80)];
    assert_eq!(limits(&process), each);
}

#[test]
fn images_divide_the_cost_of_modules_that_were_loaded_together() {
    let process = process(
        "7 process 100
         7.8 ctx create C1 gpu0
         7 usage GPU0 500M
         7.8 create module 0x1 C1 site1
         7.8 image module 0x1 30M
         7.8 create library 0x2 C1 site2
         7.8 image library 0x2 10M
         7 usage GPU0 520M
         7 usage GPU0 520M",
    );
    let costs = &process.overhead.objects;
    let each = costs.iter().map(|cost| {
        let image = cost.image.unwrap().0 / MIB;
        (cost.kind.name(), cost.bytes.0 / MIB, cost.min.0 / MIB, cost.max.0 / MIB, image)
    });
    let each: Vec<_> = each.collect();
    assert_eq!(each, [("module", 15, 0, 20, 30), ("library", 5, 0, 20, 10)]);
}

#[test]
fn objects_created_together_are_bounded() {
    let process = process(
        "7 process 100
         7.8 ctx create C1 gpu0
         7.8 create module 0x1 C1 site1
         7 usage GPU0 500M
         7 usage GPU0 500M",
    );
    // Without an earlier measurement all of it is assumed to be the context.
    assert_eq!(of(&process, OverheadCause::Context), Some((500, 0, 500, Precision::Bounded)));
    assert_eq!(of(&process, OverheadCause::Module), None);
}

#[test]
fn earlier_measurements_divide_later_changes() {
    let process = process(
        "7 process 100
         7.8 ctx create C1 gpu0
         7 usage GPU0 500M
         7.8 create stream 0x1 C1 site1
         7 usage GPU0 502M
         7.8 create stream 0x2 C1 site1
         7.8 create graph_exec 0x3 C1 site3
         7 usage GPU0 534M
         7 usage GPU0 534M",
    );
    assert_eq!(of(&process, OverheadCause::Stream), Some((4, 2, 34, Precision::Bounded)));
    assert_eq!(of(&process, OverheadCause::GraphExec), Some((30, 0, 32, Precision::Bounded)));
}

#[test]
fn report_that_a_call_overlaps_is_merged_with_the_next_one() {
    let process = process(
        "7 process 100
         7 usage GPU0 200M @30-31
         7.8 ctx create C1 gpu0 @20-40
         7 usage GPU0 500M @50-51
         7 usage GPU0 500M @60-61",
    );
    let exact = Some((500, 500, 500, Precision::Measured));
    assert_eq!(of(&process, OverheadCause::Context), exact, "{:?}", process.overhead);
}

#[test]
fn destroyed_objects_return_their_memory() {
    let process = process(
        "7 process 100
         7.8 ctx create C1 gpu0
         7 usage GPU0 500M
         7.8 create graph_exec 0x3 C1 site3
         7.8 create graph_exec 0x4 C1 site3
         7 usage GPU0 620M
         7.8 destroy graph_exec 0x3
         7 usage GPU0 560M
         7 usage GPU0 560M",
    );
    assert_eq!(of(&process, OverheadCause::GraphExec).unwrap().0, 60);
    assert_eq!(process.overhead.objects[0].live, 1);
    assert_eq!(parts(&process), ["context 500", "graph_execs 60"]);
}

#[test]
fn memory_from_before_the_trace_is_one_part() {
    let process = process(
        "7 process 100 before
         7 usage GPU0 900M
         7.8 alloc 0x10 50M device C1 gpu0
         7 usage GPU0 950M
         7 usage GPU0 950M",
    );
    assert_eq!(parts(&process), ["before_trace 900", "unknown 50"]);
}

#[test]
fn changes_without_a_cause_are_not_explained() {
    let process = process(
        "7 process 100
         7.8 ctx create C1 gpu0
         7 usage GPU0 500M
         7 usage GPU0 500M
         7 usage GPU0 540M
         7 usage GPU0 540M",
    );
    assert_eq!(parts(&process), ["context 500", "rest 40"]);
}

#[test]
fn traced_memory_that_the_driver_does_not_report_yet_is_negative() {
    let process = process(
        "7 process 100
         7.8 ctx create C1 gpu0
         7 usage GPU0 500M
         7 usage GPU0 500M
         7.8 alloc 0x10 64M device C1 gpu0",
    );
    assert_eq!(parts(&process), ["context 500", "unknown 64", "rest -64"]);
}

fn line() -> impl Strategy<Value = String> {
    let kind = prop::sample::select(vec!["module", "library", "graph_exec", "stream"]);
    let number = 1..6_u64;
    prop_oneof![
        (0..2_u16, 0..900_u64).prop_map(|(gpu, mib)| format!("7 usage GPU{gpu} {mib}M")),
        (kind.clone(), number.clone())
            .prop_map(|(kind, n)| format!("7.8 create {kind} 0x{n} C1 site{n}")),
        (kind, number.clone()).prop_map(|(kind, n)| format!("7.8 destroy {kind} 0x{n}")),
        (number.clone(), 1..90_u64)
            .prop_map(|(n, mib)| format!("7.8 alloc 0x{n}0 {mib}M device C1 gpu0 site{n}")),
        (number.clone(), 1..90_u64)
            .prop_map(|(n, mib)| format!("7.8 alloc 0x{n}00 {mib}M async C1 pool5 stream3")),
        number.clone().prop_map(|n| format!("7.8 free 0x{n}0")),
        number.prop_map(|n| format!("7.8 free 0x{n}00 by=async stream3")),
        Just("7.8 ctx create C1 gpu0".to_owned()),
        Just("7.8 ctx destroy C1".to_owned()),
        Just("7.8 pool trim pool5".to_owned()),
    ]
}

proptest! {
    #![proptest_config(config(CASES))]

    #[test]
    fn parts_add_up_to_the_drivers_value(
        lines in prop::collection::vec(line(), 0..60),
        before in any::<bool>(),
    ) {
        let head = if before { "7 process 100 before" } else { "7 process 100" };
        let trace = format!("{head}\n7 gpus GPU0\n7 usage GPU0 10M\n{}", lines.join("\n"));
        let process = process(&trace);
        let explanation = Explanation::of(&process).unwrap();
        let sum: i128 = explanation.parts.iter().map(|part| i128::from(part.bytes)).sum();
        prop_assert_eq!(sum, i128::from(explanation.driver_bytes.0));
        for part in &explanation.parts {
            let is_signed = matches!(part.cause, PartCause::AfterQuery | PartCause::Rest);
            prop_assert!(is_signed || part.bytes >= 0);
            let size = part.bytes.unsigned_abs();
            prop_assert!(part.min <= size && size <= part.max, "{:?}", part);
        }
        for cost in &process.overhead.objects {
            prop_assert!(cost.min <= cost.bytes && cost.bytes <= cost.max, "{:?}", cost);
        }
    }
}
