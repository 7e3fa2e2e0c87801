//! Launches by kernel in snapshots.

use engine::ledger::Ledger;
use engine::model::activity::{
    CopyActivity, CopyDirection, GpuActivity, KernelLaunches, LaunchShape, LaunchTarget, NameSource,
};
use engine::model::event::{Event, EventKind};
use engine::model::ids::{KernelId, Pid, Tid};
use engine::model::units::Timestamp;
use engine::snapshot::{ActivityView, KernelView, SnapshotOptions};

fn shape(x: u32) -> LaunchShape {
    LaunchShape { grid: [x, 1, 1], block: [64, 1, 1], shared_bytes: 0 }
}

fn named(kernel: u64, name: &str) -> GpuActivity {
    GpuActivity::Named { kernel: KernelId(kernel), name: name.into(), source: NameSource::Call }
}

/// `calls` more launches; `shapes` are all launches so far, the last one is the newest.
fn launched(kernel: u64, calls: u64, shapes: &[(u32, u64)]) -> GpuActivity {
    GpuActivity::Launches(KernelLaunches {
        target: LaunchTarget::Kernel(KernelId(kernel)),
        calls,
        last: shapes.last().map(|(x, _)| shape(*x)),
        shapes: shapes.iter().map(|(x, count)| (shape(*x), *count)).collect(),
        ..KernelLaunches::default()
    })
}

fn view(activities: Vec<GpuActivity>) -> ActivityView {
    let mut ledger = Ledger::new().with_activity();
    for (activity, at) in activities.into_iter().zip(1..) {
        let at = Timestamp(at);
        let kind = EventKind::Activity(activity);
        ledger.apply(&Event { pid: Pid(1), tid: Tid(1), entry_time: at, time: at, kind });
    }
    let snapshot = ledger
        .snapshot(Timestamp(1000), &SnapshotOptions { top: 100, ..SnapshotOptions::default() });
    snapshot.processes[0].activity.clone().unwrap()
}

fn row<'a>(view: &'a ActivityView, name: &str) -> &'a KernelView {
    view.kernels.iter().find(|row| row.name.as_deref() == Some(name)).unwrap()
}

#[test]
fn shapes_of_all_handles_of_a_kernel_are_added() {
    let view = view(vec![
        named(1, "f"),
        named(2, "f"),
        launched(1, 19, &[(10, 10), (20, 9)]),
        launched(2, 8, &[(20, 8)]),
    ]);
    let row = row(&view, "f");
    assert_eq!((row.launches, row.handles), (27, 2));
    assert_eq!((row.common, row.common_is_exact), (Some((shape(20), 17)), true));
}

#[test]
fn row_of_many_handles_is_deterministic() {
    let make = || {
        let names = (1..50).map(|handle| named(handle, "f"));
        let launches = (1..50).map(|handle| launched(handle, 1, &[(handle as u32, 1)]));
        view(names.chain(launches).collect())
    };
    let first = make();
    assert_eq!(row(&first, "f").last, Some(shape(49)));
    assert_eq!(row(&first, "f").target, LaunchTarget::Kernel(KernelId(1)));
    for _ in 0..20 {
        assert_eq!(make(), first);
    }
}

#[test]
fn shapes_of_the_previous_kernel_of_a_handle_are_not_counted() {
    let view = view(vec![
        named(1, "old"),
        launched(1, 1000, &[(10, 1000)]),
        named(1, "new"),
        launched(1, 5, &[(10, 1000), (20, 5)]),
    ]);
    let (old, new) = (row(&view, "old"), row(&view, "new"));
    assert_eq!((old.launches, new.launches), (1000, 5));
    assert_eq!((new.common, new.common_is_exact), (Some((shape(20), 5)), true));
}

#[test]
fn shape_count_never_exceeds_the_launches() {
    // 3 launches of the old kernel arrived without their shape, so they look like the new one's.
    let old = KernelLaunches {
        target: LaunchTarget::Kernel(KernelId(1)),
        calls: 3,
        ..KernelLaunches::default()
    };
    let view = view(vec![
        named(1, "old"),
        launched(1, 10, &[(10, 10)]),
        GpuActivity::Launches(old),
        named(1, "new"),
        launched(1, 2, &[(10, 13), (20, 2)]),
    ]);
    let new = row(&view, "new");
    assert_eq!(new.launches, 2);
    assert!(new.common.is_none_or(|(_, count)| count <= 2));
    assert!(!new.common_is_exact);
}

#[test]
fn alias_keeps_its_name_when_its_handle_is_reused() {
    let alias = |function, kernel| GpuActivity::Alias {
        function: KernelId(function),
        kernel: KernelId(kernel),
    };
    let view = view(vec![
        named(1, "old"),
        alias(9, 1),
        launched(9, 7, &[(10, 7)]),
        named(1, "new"),
        launched(1, 2, &[(10, 2)]),
        named(3, "third"),
        alias(9, 3),
        launched(9, 1, &[(10, 8)]),
    ]);
    let launches = |name| row(&view, name).launches;
    assert_eq!((launches("old"), launches("new"), launches("third")), (7, 2, 1));
}

#[test]
fn huge_counts_do_not_overflow() {
    let copies = || {
        GpuActivity::Copies(Box::new(CopyActivity {
            direction: CopyDirection::Peer,
            pointers: None,
            asynchronous: false,
            calls: u64::MAX,
            bytes: u64::MAX,
            nanos: u64::MAX,
            bandwidths: vec![(3, u64::MAX)],
        }))
    };
    let most = || launched(1, u64::MAX, &[(1, u64::MAX), (2, u64::MAX)]);
    let view = view(vec![copies(), copies(), most(), named(1, "a"), most(), named(1, "b"), most()]);
    assert_eq!(view.copies[0].bandwidths, [(3, u64::MAX)]);
    assert_eq!(view.launches, u64::MAX);
}
