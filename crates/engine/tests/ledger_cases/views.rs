//! Listed allocations and their order.

use super::*;

const TRACE: &str = "1.1 alloc 0x10 1M device
                     1.1 alloc 0x20 8M device
                     1.2 alloc 0x30 2M device
                     1.1 alloc 0x40 1M pinned
                     2.3 alloc 0x50 4M device site9
                     2.3 alloc 0x60 4M device
                     2.3 alloc 0x70 1M device";

/// Processes with their threads and lists.
type Order = Vec<(u32, Vec<(u32, Vec<u64>)>)>;

fn order(snapshot: &Snapshot) -> Order {
    snapshot.processes.iter().map(|process| (process.key.pid.0, lists(process))).collect()
}

#[test]
fn sort_by_size_orders_by_size_then_age() {
    let one = vec![(1, vec![0x20, 0x10, 0x40]), (2, vec![0x30])];
    let two = vec![(3, vec![0x50, 0x60, 0x70])];
    assert_eq!(order(&after(TRACE)), [(1, one), (2, two)]);
}

#[test]
fn sort_by_age_orders_oldest_first() {
    let options = SnapshotOptions { sort: SortOrder::Age, ..SnapshotOptions::default() };
    let trace = format!("3.4 alloc 0x10 1K device \n {TRACE} \n 3.4 free 0x10 \n 4.4 free 0x10");
    let one = vec![(1, vec![0x10, 0x20, 0x40]), (2, vec![0x30])];
    let two = vec![(3, vec![0x50, 0x60, 0x70])];
    let want = [(1, one), (2, two), (3, vec![]), (4, vec![])];
    assert_eq!(order(&snapshot_at(&trace, 1000, &options)), want);
}

#[test]
fn sort_by_count_orders_processes_not_lists() {
    let options = SnapshotOptions { sort: SortOrder::Count, ..SnapshotOptions::default() };
    let trace = format!("{TRACE} \n 1.1 free 0x40 \n 1.1 free 0x10");
    let two = vec![(3, vec![0x50, 0x60, 0x70])];
    let one = vec![(1, vec![0x20]), (2, vec![0x30])];
    assert_eq!(order(&snapshot_at(&trace, 1000, &options)), [(2, two), (1, one)]);
}

#[test]
fn top_limits_lists_and_not_totals() {
    let options = SnapshotOptions { top: 1, ..SnapshotOptions::default() };
    let snapshot = snapshot_at(TRACE, 1000, &options);
    assert_eq!(lists(&snapshot.processes[0]), [(1, vec![0x20]), (2, vec![0x30])]);
    assert_eq!(live(&snapshot.processes[0]), (11, 4));
    let none = snapshot_at(TRACE, 1000, &SnapshotOptions { top: 0, ..SnapshotOptions::default() });
    assert_eq!(lists(&none.processes[0]), [(1, vec![]), (2, vec![])]);
}

#[test]
fn size_and_age_filters_apply_in_every_order() {
    // 0x10 was allocated at 10, 0x20 at 20 and so on; it is 100 now.
    let options = SnapshotOptions {
        min_size: Bytes(2 * MIB),
        min_age: Nanos(50),
        ..SnapshotOptions::default()
    };
    for sort in [SortOrder::Size, SortOrder::Age, SortOrder::Count] {
        let snapshot = snapshot_at(TRACE, 100, &SnapshotOptions { sort, ..options });
        let mut shown: Vec<_> =
            snapshot.processes.iter().flat_map(lists).flat_map(|(_, keys)| keys).collect();
        shown.sort_unstable();
        assert_eq!(shown, [0x20, 0x30, 0x50], "{sort:?}");
        assert_eq!(snapshot.live_allocations, 7);
    }
}

#[test]
fn allocation_view_has_all_known_fields() {
    let snapshot =
        snapshot_at("1.1 alloc h0x50 4M physical gpu2 site9", 100, &SnapshotOptions::default());
    let allocation = only(&snapshot).threads[0].allocations[0];
    assert_eq!((allocation.key.value, allocation.bytes), (0x50, Bytes(4 * MIB)));
    assert_eq!((allocation.kind, allocation.device), (MemoryKind::Physical, Some(DeviceId(2))));
    assert_eq!((allocation.age, &*allocation.site.to_string()), (Nanos(90), "pending-9"));
}

#[test]
fn exited_processes_come_after_running_ones() {
    let trace = "1.1 alloc 0x10 9M device \n 1 exit \n 2.2 alloc 0x10 1M device";
    let snapshot = after(trace);
    let pids: Vec<_> = snapshot.processes.iter().map(|process| process.key.pid.0).collect();
    assert_eq!(pids, [2, 1]);
}

#[test]
fn snapshots_are_deterministic() {
    assert_eq!(after(TRACE), after(TRACE));
}
