//! Effects of lost records.

use engine::snapshot::{MAX_UNKNOWN_FUNCTIONS, ReceivedCalls};

use super::*;

const HELD: &str = "1 process 100
                    1.1 alloc 0x10 8M device
                    1.1 alloc 0x20 4M device
                    1.2 alloc 0x30 2M device
                    1.2 alloc 0x40 64M pinned";

#[test]
fn any_lost_record_makes_the_report_inexact_with_its_time() {
    for lost in ["allocations=1 bytes=1M", "frees=1", "failures=1", "other=1"] {
        let snapshot = after(&format!("{HELD}\n 1 lost {lost} \n 1 lost {lost}"));
        assert!(!snapshot.uncertainty.exact(), "{lost}");
        assert!(!only(&snapshot).uncertainty.exact(), "{lost}");
        assert_eq!(snapshot.uncertainty.lost.events(), 2);
        assert_eq!(snapshot.uncertainty.lost.since, Some(Timestamp(60)));
    }
}

#[test]
fn calls_of_unknown_functions_make_their_process_inexact() {
    let trace =
        format!("{HELD}\n 1 unknown cuMemNew calls=2\n 2 process 100\n 1 unknown cuMemNew calls=3");
    let snapshot = after(&format!("{trace}\n 1 unknown cuArrayNew calls=1"));
    let calls: Vec<_> =
        snapshot.unknown_calls.iter().map(|(name, calls)| (&**name, *calls)).collect();
    assert_eq!(calls, [("cuArrayNew", 1), ("cuMemNew", 5)]);
    assert_eq!((snapshot.uncertainty.exact(), snapshot.uncertainty.unknown_calls), (false, 6));
    assert_eq!(bounds(&snapshot.uncertainty), (14, 14), "their memory is in no bound");
    let mut own: Vec<_> = snapshot
        .processes
        .iter()
        .map(|one| (one.uncertainty.exact(), one.uncertainty.unknown_calls))
        .collect();
    own.sort_unstable();
    assert_eq!(own, [(false, 6), (true, 0)]);
}

#[test]
fn unknown_functions_beyond_the_limit_are_counted_together() {
    let calls: String = (0..100).map(|n| format!("\n1 unknown f{n} calls=1")).collect();
    let unknown = after(&format!("1 process 100{calls}")).unknown_calls;
    assert_eq!((unknown.len(), unknown.values().sum::<u64>()), (MAX_UNKNOWN_FUNCTIONS, 100));
    assert_eq!(unknown["other functions"], 100 - (MAX_UNKNOWN_FUNCTIONS as u64 - 1));
}

#[test]
fn lost_allocations_raise_the_upper_bound() {
    let snapshot = after(&format!("{HELD}\n 1 lost allocations=2 bytes=3M"));
    assert_eq!(bounds(&snapshot.uncertainty), (14, 17));
    assert_eq!(bounds(&only(&snapshot).uncertainty), (14, 17));
}

#[test]
fn lost_frees_lower_the_bound_by_the_largest_allocations() {
    for (frees, min) in [(1, 6), (2, 2), (3, 0), (u64::MAX, 0)] {
        let snapshot = after(&format!("{HELD}\n 1 lost frees={frees}"));
        assert_eq!(bounds(&snapshot.uncertainty), (min, 14));
    }
}

#[test]
fn lost_failures_do_not_widen_the_bounds() {
    let snapshot = after(&format!("{HELD}\n 1 lost failures=1"));
    assert_eq!(bounds(&snapshot.uncertainty), (14, 14));
}

#[test]
fn lost_context_end_may_have_released_everything() {
    let snapshot = after(&format!("{HELD}\n 1 lost other=1 \n 1.1 alloc 0x50 1M device"));
    assert_eq!(bounds(&snapshot.uncertainty), (1, 15));
}

#[test]
fn memory_allocated_after_lost_frees_is_certain() {
    let trace = format!("{HELD}\n 1 lost frees=9 \n 1.1 alloc 0x50 32M device");
    assert_eq!(bounds(&after(&trace).uncertainty), (32, 46));
    let trace = format!("{trace}\n 1.1 free 0x10 \n 1.1 free 0x20 \n 1.1 free 0x30");
    assert_eq!(bounds(&after(&trace).uncertainty), (32, 32));
}

#[test]
fn losses_of_unknown_process_widen_all_bounds() {
    let snapshot = after(&format!(
        "{HELD}\n 2.2 alloc 0x10 6M device \n 0 lost allocations=1 bytes=5M frees=2"
    ));
    assert_eq!(bounds(&snapshot.uncertainty), (6, 25));
    assert_eq!(bounds(&snapshot.processes[0].uncertainty), (2, 19));
    assert_eq!(bounds(&snapshot.processes[1].uncertainty), (0, 11));
    assert_eq!(snapshot.processes[0].uncertainty.lost.events(), 0);
    assert!(!snapshot.processes[0].uncertainty.exact());
}

#[test]
fn losses_of_unknown_process_are_not_attributed_to_pid_0() {
    let snapshot = after("0.1 alloc 0x10 6M device \n 0 lost frees=1");
    assert_eq!(only(&snapshot).uncertainty.lost.events(), 0);
    assert_eq!(bounds(&only(&snapshot).uncertainty), (0, 6));
}

#[test]
fn earlier_losses_do_not_affect_a_later_process() {
    let snapshot = after("0 lost frees=2 \n 1.1 alloc 0x10 6M device");
    assert_eq!(bounds(&snapshot.uncertainty), (6, 6));
    assert!(!snapshot.uncertainty.exact());
}

#[test]
fn losses_before_the_announcement_belong_to_the_process() {
    for announced in ["", "1 process 100\n"] {
        let trace = format!("1 lost other=3 frees=1 \n {announced} 1.1 alloc 0x10 6M device");
        let snapshot = after(&trace);
        assert_eq!(only(&snapshot).uncertainty.lost.events(), 4, "{trace}");
        assert!(!only(&snapshot).uncertainty.exact());
        // Another process with this pid did not lose them.
        let snapshot = after(&format!("1 lost other=3 \n 1 exit \n {trace}"));
        assert_eq!(only(&snapshot).uncertainty.lost.events(), 4);
    }
}

#[test]
fn losses_reported_after_exit_belong_to_the_exited_process() {
    let snapshot = after(&format!("{HELD}\n 2.2 alloc 0x10 1M device\n 1 exit\n 1 lost frees=1"));
    let [other, ended] = &snapshot.processes[..] else { panic!() };
    assert_eq!(other.uncertainty.lost.events(), 0);
    assert_eq!(bounds(&ended.uncertainty), (6, 14));
    assert_eq!(bounds(&snapshot.uncertainty), (1, 1));
    assert!(!snapshot.uncertainty.exact());
}

#[test]
fn bounds_close_at_exit_but_the_trace_stays_inexact() {
    let mut ledger = ledger(&format!("{HELD}\n 1 lost other=1 bytes=1M \n 1 exit"));
    ledger.snapshot(Timestamp(1000), &SnapshotOptions::default());
    let snapshot = ledger.snapshot(Timestamp(1001), &SnapshotOptions::default());
    assert_eq!(bounds(&snapshot.uncertainty), (0, 0));
    assert!(!snapshot.uncertainty.exact());
}

#[test]
fn release_after_a_lost_retain_leaves_memory_in_doubt() {
    // Reported before the release: nothing is concluded from it.
    let early = "1 process 100
                1.1 ctx retain C1 gpu0
                1 lost other=1
                1.1 alloc 0x10 8M device C1
                1.1 ctx release gpu0";
    assert_eq!(bounds(&after(early).uncertainty), (0, 8));
    // Reported after the release: the conclusion may be wrong.
    let late = "1 process 100
                1.1 ctx retain C1 gpu0
                1.1 alloc 0x10 8M device C1
                1.1 ctx release gpu0
                1 lost other=1";
    assert_eq!(bounds(&after(late).uncertainty), (0, 8));
}

#[test]
fn reset_near_a_loss_leaves_memory_in_doubt() {
    let trace = "1 process 100 before
                1.1 ctx learn C1 gpu0
                1.1 alloc 0x10 8M device C1";
    let early = format!("{trace}\n 1 lost other=1 \n 1.1 ctx reset gpu0");
    let late = format!("{trace}\n 1.1 ctx reset gpu0 \n 1 lost other=1");
    let snapshots = [after(&early), after(&late)];
    assert_eq!(snapshots.each_ref().map(|snapshot| live(only(snapshot))), [(8, 1), (0, 0)]);
    assert_eq!(snapshots.map(|snapshot| bounds(&snapshot.uncertainty)), [(0, 8), (0, 8)]);
}

#[test]
fn process_known_by_losses_alone_raises_the_upper_bound() {
    let snapshot = after(&format!("{HELD}\n 1 exec \n 1 lost allocations=1 bytes=3M"));
    assert_eq!(bounds(&snapshot.uncertainty), (0, 3));
}

#[test]
fn processes_without_records_are_counted_and_inexact() {
    let snapshot = after("1 process 100 \n 0 lost processes=2");
    assert_eq!(snapshot.uncertainty.lost.processes, 2);
    assert!(!snapshot.uncertainty.exact());
    let silent = after("1 process 100 \n 1.1 alloc 0x10 8M device \n 1 exec \n 1 lost processes=1");
    assert_eq!(silent.uncertainty.lost.processes, 1, "the program after the exec is not listed");
}

#[test]
fn unannounced_process_is_not_counted_as_lost() {
    let snapshot = after("1.1 alloc 0x10 8M device \n 1 lost frees=1 processes=1");
    assert_eq!(snapshot.uncertainty.lost.processes, 0);
    assert_eq!(only(&snapshot).uncertainty.lost.frees, 1);
}

#[test]
fn received_calls_are_counted_by_loss_class() {
    let snapshot = after(
        "1.1 alloc 0x10 8M device
         1.1 vmm create h0x10 8M gpu0
         1.1 vmm retain h0x10
         1.1 vmm release h0x10
         1.1 vmm release h0x10
         1.1 free 0x10
         1.1 free 0x99
         1.1 fail f1 2",
    );
    let process = only(&snapshot);
    let calls = ReceivedCalls { allocations: 2, frees: 4, failures: 1 };
    assert_eq!(process.received_calls, calls);
    assert_eq!((process.allocations_total, process.frees_total), (2, 2));
}

#[test]
fn lost_free_of_a_reused_address_is_an_implied_free() {
    let snapshot = after(
        "1.1 alloc 0x10 8M device
         1 lost frees=1
         1.1 alloc 0x10 4M device",
    );
    assert_eq!(live(only(&snapshot)), (4, 1));
    assert_eq!(snapshot.uncertainty.implied_frees, 1);
    assert_eq!(bounds(&snapshot.uncertainty), (4, 4));
}

#[test]
fn huge_values_saturate() {
    let max = u64::MAX;
    let line = format!("1 lost allocations={max} bytes={max} frees={max} other={max}");
    let snapshot = after(&format!(
        "1.1 alloc 0x10 {max} device \n 1.1 alloc 0x20 {max} device \n {line} \n {line}"
    ));
    assert_eq!(snapshot.live_bytes, Bytes(max));
    assert_eq!(snapshot.uncertainty.live_max, Bytes(max));
    assert_eq!(snapshot.uncertainty.live_min, Bytes(0));
}

#[test]
fn lost_mapping_or_retain_may_keep_physical_memory() {
    let trace = "1 process 100
                 1.1 vmm create h0x10 8M gpu0
                 1.1 vmm create h0x20 4M gpu0
                 1.1 vmm release h0x10
                 1.1 vmm release h0x20";
    assert_eq!(bounds(&after(trace).uncertainty), (0, 0));
    assert_eq!(
        bounds(
            &after(&format!(
                "{trace}
 1 lost other=1"
            ))
            .uncertainty
        ),
        (0, 8)
    );
    assert_eq!(
        bounds(
            &after(&format!(
                "{trace}
 1 lost other=9"
            ))
            .uncertainty
        ),
        (0, 12)
    );
}

#[test]
fn lost_unmap_may_have_ended_mapped_memory() {
    let trace = "1 process 100
                 1.1 vmm create h0x10 8M gpu0
                 1.1 vmm create h0x20 4M gpu0
                 1.1 vmm create h0x30 2M gpu0
                 1.1 vmm map 0x1000000 8M h0x10
                 1.1 vmm map 0x2000000 4M h0x20
                 1.1 vmm release h0x10
                 1.1 vmm release h0x20
                 1.1 alloc 0x10 1M device";
    assert_eq!(bounds(&after(&format!("{trace}\n 1 lost frees=1")).uncertainty), (3, 15));
    let later = format!("1 process 100 \n 1 lost frees=1 \n {trace}");
    assert_eq!(bounds(&after(&later).uncertainty), (15, 15));
}

#[test]
fn mapping_of_a_lost_handle_may_match_its_predecessor() {
    let snapshot = after(
        "1 process 100
         1.1 vmm create h0x10 8M gpu0 @15-20
         1.2 vmm map 0x1000000 1M h0x10 @50-60  # a new handle, whose creation was lost
         1.1 vmm release h0x10 @30-70
         1 lost allocations=1 bytes=1M @80",
    );
    assert_eq!(bounds(&snapshot.uncertainty), (0, 9));
}

const GRAPHS: &str = "1 process 100
                      1.1 graph alloc G1 0x10 8M gpu0
                      1.1 graph instantiate E1 G1
                      1.1 graph alloc G2 0x20 4M gpu0
                      1.1 graph instantiate E2 G2
                      1.1 graph launch E2";

#[test]
fn lost_launch_may_have_allocated_graph_memory() {
    assert_eq!(bounds(&after(&format!("{GRAPHS}\n 1 lost other=1")).uncertainty), (0, 12));
    let dropped = format!("{GRAPHS}\n 1.1 graph drop E1 \n 1.1 graph destroy G1");
    assert_eq!(bounds(&after(&dropped).uncertainty), (4, 4));
    assert_eq!(bounds(&after(&format!("{dropped}\n 1 lost other=1")).uncertainty), (0, 12));
}

#[test]
fn graph_and_async_memory_stays_in_doubt_after_a_loss() {
    let trace = "1 process 100
                 1 lost other=1
                 1.1 alloc 0x10 1M device gpu0
                 1.1 alloc 0x20 2M async gpu0
                 1.1 graph alloc G1 0x30 4M gpu0
                 1.1 graph instantiate E1 G1
                 1.1 graph launch E1";
    assert_eq!(bounds(&after(trace).uncertainty), (1, 7));
    // A lost free can be a node of the graph.
    assert_eq!(bounds(&after(&trace.replace("other", "frees")).uncertainty), (3, 7));
}

#[test]
fn nodes_and_host_memory_after_a_loss_may_be_device_memory() {
    let trace = "1 process 100
                 1.1 graph begin stream3
                 1.1 pool create pool5 host
                 1 lost other=1
                 1.1 alloc 0x10 1M async gpu0 stream3
                 1.2 alloc 0x20 2M async gpu0 pool5 stream4";
    assert_eq!(bounds(&after(trace).uncertainty), (0, 3));
    assert_eq!(bounds(&after(&format!("{trace}\n 1.1 graph begin stream3")).uncertainty), (0, 3));
}
