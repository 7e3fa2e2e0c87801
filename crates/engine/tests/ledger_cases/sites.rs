//! Allocation sites.

use super::*;
use engine::snapshot::{KindView, ListScope, SiteHistory, SiteProcess, SiteView};

/// Sites by their innermost function or name, with live MiB and live allocations.
fn held(sites: &[SiteView]) -> Vec<(String, u64, u64)> {
    let title = |site: &SiteView| match site.frames.first() {
        Some(frame) => frame.function.to_string(),
        None => site.name.to_string(),
    };
    let all = sites.iter();
    all.map(|site| (title(site), site.live_bytes.0 / MIB, site.live_allocations)).collect()
}

fn row(name: &str, mib: u64, count: u64) -> (String, u64, u64) {
    (name.to_owned(), mib, count)
}

#[test]
fn late_frames_rename_pending_site() {
    let early = "7 process 1\n 7 alloc 0x10 8M device site3\n 7 alloc 0x20 4M device";
    let sites = after(early).sites;
    assert_eq!(held(&sites), [row("pending-3", 8, 1), row("none", 4, 1)]);
    let snapshot = after(&format!("{early}\n 0 frames site3 step main"));
    assert_eq!(held(&snapshot.sites), [row("step", 8, 1), row("none", 4, 1)]);
    assert_eq!((snapshot.allocations_total, snapshot.without_stack), (2, 1));
    let allocation = only(&snapshot).threads[0].allocations[0];
    assert_eq!(allocation.site, snapshot.sites[0].name);
}

#[test]
fn ids_with_equal_frames_are_one_site() {
    let snapshot = after(
        "7 process 1
         8 process 1
         7 alloc 0x10 1M device site3
         7 alloc 0x20 2M device site4
         8 alloc 0x10 8M device site3
         8 alloc 0x20 4M pinned site5
         0 frames site3 step main
         0 frames site4 step main",
    );
    assert_eq!(held(&snapshot.sites), [row("step", 11, 3), row("pending-5", 0, 0)]);
    assert_eq!(snapshot.sites_total, 2);
    let held_by = |pid, mib, live_allocations| SiteProcess {
        pid: Some(Pid(pid)),
        live_bytes: Bytes(mib * MIB),
        live_allocations,
        kinds: vec![KindView {
            kind: MemoryKind::Device,
            live_bytes: Bytes(mib * MIB),
            live_allocations,
            unknown_sizes: 0,
        }],
    };
    assert_eq!(snapshot.sites[0].processes, [held_by(8, 8, 1), held_by(7, 3, 2)]);
    let pinned = &snapshot.sites[1].processes[0].kinds;
    assert_eq!((pinned[0].kind, pinned[0].live_bytes), (MemoryKind::Pinned, Bytes(4 * MIB)));
    assert_eq!(snapshot.sites[1].kinds[0].live_bytes.0, 4 * MIB);
    let eight = snapshot.processes.iter().find(|process| process.key.pid == Pid(8)).unwrap();
    assert_eq!(held(&eight.sites), [row("step", 8, 1), row("pending-5", 0, 0)]);
}

#[test]
fn launch_allocates_at_the_captured_site() {
    let snapshot = after(
        "7 process 1
         7 ctx create C1 gpu0
         7 graph begin stream9
         7 alloc 0x10 8M async C1 stream9 site3
         7 graph end stream9 G1
         7 graph instantiate E1 G1
         7 graph launch E1",
    );
    assert_eq!(held(&snapshot.sites), [row("pending-3", 8, 1)]);
    assert_eq!(snapshot.sites[0].kinds[0].kind, MemoryKind::Graph);
}

#[test]
fn only_freed_memory_counts_in_lifetimes() {
    let snapshot = after(
        "7 process 1
         7 ctx create C1 gpu0
         7 alloc 0x10 8M device C1 site3
         7 alloc 0x20 4M device C1 site3
         7 free 0x10 @45-1070
         7 ctx destroy C1 @9000-9000",
    );
    let site = &snapshot.sites[0];
    assert_eq!(
        (site.live_bytes.0, site.peak_bytes.0, site.peak_at),
        (0, 12 * MIB, Some(Timestamp(40)))
    );
    assert_eq!((site.allocations_total, site.freed_total), (2, 1));
    assert_eq!(site.seen, (Timestamp(30), Timestamp(40)));
    // Lived from 30 to 1070.
    assert_eq!((&site.lifetimes[..], site.longest_lifetime), (&[(10, 1)][..], Some(Nanos(1040))));
    assert_eq!(site.median_lifetime(), Some(Nanos(1040)));
}

#[test]
fn growth_is_counted_since_the_last_snapshot() {
    let mut ledger = ledger("7 process 1\n 7 alloc 0x10 8M device site3");
    let options = SnapshotOptions::default();
    assert_eq!(ledger.snapshot(Timestamp(100), &options).sites[0].grown, 8 << 20);
    for event in events("7 free 0x10 @200-210\n 7 alloc 0x20 2M device site3 @220-230") {
        ledger.apply(&event);
    }
    assert_eq!(ledger.snapshot(Timestamp(300), &options).sites[0].grown, -(6 << 20));
    assert_eq!(ledger.snapshot(Timestamp(400), &options).sites[0].grown, 0);
}

#[test]
fn last_report_includes_sites_of_exited_processes() {
    let mut ledger = ledger("7 process 1\n 7 alloc 0x10 8M device site3\n 7 exit");
    let options = SnapshotOptions::default();
    let first = ledger.snapshot(Timestamp(100), &options);
    assert!(first.sites.is_empty());
    assert_eq!(held(&only(&first).sites), [row("pending-3", 8, 1)]);
    for event in events("8 process 1 @110\n 8 alloc 0x10 4M device site3 @120\n 8 exit @130") {
        ledger.apply(&event);
    }
    let last = ledger.snapshot(Timestamp(200), &SnapshotOptions { ended_sites: true, ..options });
    assert_eq!(held(&last.sites), [row("pending-3", 12, 2)]);
    assert_eq!(last.sites[0].processes.len(), 2);
}

#[test]
fn failed_allocation_has_its_site() {
    let snapshot = after("7 process 1\n 7 fail f5 2 device 1G S3\n 0 frames site3 step main");
    let [failed] = &snapshot.out_of_memory[..] else { panic!("{:?}", snapshot.out_of_memory) };
    assert_eq!(failed.frames[0].function.as_ref(), "step");
    assert_eq!(failed.site_name.to_string().len(), 16);
}

#[test]
fn lists_can_be_limited_to_one_process() {
    let trace =
        "7 process 1\n 7 alloc 0x10 8M device site3\n 8 process 1\n 8 alloc 0x20 4M device site4";
    let snapshot = |lists: ListScope| {
        ledger(trace)
            .snapshot(Timestamp(100), &SnapshotOptions { lists, ..SnapshotOptions::default() })
    };
    let listed = |snapshot: &Snapshot| -> Vec<(u32, usize, usize)> {
        let all = snapshot.processes.iter();
        all.map(|one| {
            let allocations = one.threads.iter().map(|thread| thread.allocations.len()).sum();
            (one.key.pid.0, one.sites.len(), allocations)
        })
        .collect()
    };
    let all = snapshot(ListScope::All);
    assert_eq!((listed(&all), all.sites.len()), (vec![(7, 1, 1), (8, 1, 1)], 2));
    let one = snapshot(ListScope::Process(Pid(8)));
    assert_eq!((listed(&one), one.sites.len()), (vec![(7, 0, 0), (8, 1, 1)], 0));
    let none = snapshot(ListScope::None);
    assert_eq!((listed(&none), none.live_bytes), (vec![(7, 0, 0), (8, 0, 0)], all.live_bytes));
}

#[test]
fn history_has_the_level_at_a_time() {
    let live = [1, 5, 3].map(Bytes).to_vec();
    let history = SiteHistory { start: Timestamp(100), window: Nanos(10), live };
    let levels = [0, 100, 109, 110, 125, 130, 999].map(|at| history.level_at(Timestamp(at)).0);
    assert_eq!(levels, [0, 0, 0, 1, 5, 3, 3]);
    assert_eq!(SiteHistory::default().level_at(Timestamp(5)), Bytes(0));
}
