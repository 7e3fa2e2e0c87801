//! What lost records leave open.

use engine::snapshot::ReceivedCalls;

use super::*;

const HELD: &str = "1 process 100
                    1.1 alloc 0x10 8M device
                    1.1 alloc 0x20 4M device
                    1.2 alloc 0x30 2M device
                    1.2 alloc 0x40 64M pinned";

#[test]
fn any_lost_record_makes_a_report_inexact_and_says_since_when() {
    for lost in ["allocations=1 bytes=1M", "frees=1", "failures=1", "other=1"] {
        let snapshot = after(&format!("{HELD}\n 1 lost {lost} \n 1 lost {lost}"));
        assert!(!snapshot.certainty.exact(), "{lost}");
        assert!(!only(&snapshot).certainty.exact(), "{lost}");
        assert_eq!(snapshot.certainty.lost.events(), 2);
        assert_eq!(snapshot.certainty.lost.since, Some(Moment(60)));
    }
}

#[test]
fn lost_allocations_raise_the_upper_bound() {
    let snapshot = after(&format!("{HELD}\n 1 lost allocations=2 bytes=3M"));
    assert_eq!(bounds(&snapshot.certainty), (14, 17));
    assert_eq!(bounds(&only(&snapshot).certainty), (14, 17));
}

#[test]
fn lost_frees_lower_the_lower_bound_by_the_biggest_they_can_have_ended() {
    for (frees, least) in [(1, 6), (2, 2), (3, 0), (u64::MAX, 0)] {
        let snapshot = after(&format!("{HELD}\n 1 lost frees={frees}"));
        assert_eq!(bounds(&snapshot.certainty), (least, 14));
    }
}

#[test]
fn lost_failures_leave_the_bounds_together() {
    let snapshot = after(&format!("{HELD}\n 1 lost failures=1"));
    assert_eq!(bounds(&snapshot.certainty), (14, 14));
}

#[test]
fn a_lost_end_of_a_context_can_have_ended_everything_that_was_there() {
    let snapshot = after(&format!("{HELD}\n 1 lost other=1 \n 1.1 alloc 0x50 1M device"));
    assert_eq!(bounds(&snapshot.certainty), (1, 15));
}

#[test]
fn what_is_allocated_after_lost_frees_is_certain() {
    let trace = format!("{HELD}\n 1 lost frees=9 \n 1.1 alloc 0x50 32M device");
    assert_eq!(bounds(&after(&trace).certainty), (32, 46));
    let trace = format!("{trace}\n 1.1 free 0x10 \n 1.1 free 0x20 \n 1.1 free 0x30");
    assert_eq!(bounds(&after(&trace).certainty), (32, 32));
}

#[test]
fn losses_of_no_process_widen_the_bounds_of_all_of_them_together_and_of_each() {
    let snapshot = after(&format!(
        "{HELD}\n 2.2 alloc 0x10 6M device \n 0 lost allocations=1 bytes=5M frees=2"
    ));
    assert_eq!(bounds(&snapshot.certainty), (6, 25));
    assert_eq!(bounds(&snapshot.processes[0].certainty), (2, 19));
    assert_eq!(bounds(&snapshot.processes[1].certainty), (0, 11));
    assert_eq!(snapshot.processes[0].certainty.lost.events(), 0);
    assert!(!snapshot.processes[0].certainty.exact());
}

#[test]
fn losses_of_no_process_are_nobodys_even_where_calls_have_no_pid() {
    let snapshot = after("0.1 alloc 0x10 6M device \n 0 lost frees=1");
    assert_eq!(only(&snapshot).certainty.lost.events(), 0);
    assert_eq!(bounds(&only(&snapshot).certainty), (0, 6));
}

#[test]
fn a_process_that_comes_later_cannot_have_lost_frees_of_earlier() {
    let snapshot = after("0 lost frees=2 \n 1.1 alloc 0x10 6M device");
    assert_eq!(bounds(&snapshot.certainty), (6, 6));
    assert!(!snapshot.certainty.exact());
}

#[test]
fn losses_that_are_told_after_the_exit_belong_to_the_process_that_ended() {
    let snapshot = after(&format!("{HELD}\n 2.2 alloc 0x10 1M device\n 1 exit\n 1 lost frees=1"));
    let [other, ended] = &snapshot.processes[..] else { panic!() };
    assert_eq!(other.certainty.lost.events(), 0);
    assert_eq!(bounds(&ended.certainty), (6, 14));
    assert_eq!(bounds(&snapshot.certainty), (1, 1));
    assert!(!snapshot.certainty.exact());
}

#[test]
fn the_bounds_close_when_the_process_ends_but_the_trace_stays_inexact() {
    let mut ledger = ledger(&format!("{HELD}\n 1 lost other=1 bytes=1M \n 1 exit"));
    ledger.snapshot(Moment(1000), &View::default());
    let snapshot = ledger.snapshot(Moment(1001), &View::default());
    assert_eq!(bounds(&snapshot.certainty), (0, 0));
    assert!(!snapshot.certainty.exact());
}

#[test]
fn after_a_lost_retain_a_release_leaves_open_what_it_ended() {
    // Told before the release: nothing is concluded from it.
    let told = "1 process 100
                1.1 ctx retain C1 gpu0
                1 lost other=1
                1.1 alloc 0x10 8M device C1
                1.1 ctx release gpu0";
    assert_eq!(bounds(&after(told).certainty), (0, 8));
    // Told after it: what was concluded may be wrong.
    let late = "1 process 100
                1.1 ctx retain C1 gpu0
                1.1 alloc 0x10 8M device C1
                1.1 ctx release gpu0
                1 lost other=1";
    assert_eq!(bounds(&after(late).certainty), (0, 8));
}

#[test]
fn a_reset_is_not_guessed_at_after_a_loss_and_a_guess_before_it_is_in_doubt() {
    let held = "1 process 100 before
                1.1 ctx learn C1 gpu0
                1.1 alloc 0x10 8M device C1";
    let told = format!("{held}\n 1 lost other=1 \n 1.1 ctx reset gpu0");
    let late = format!("{held}\n 1.1 ctx reset gpu0 \n 1 lost other=1");
    let snapshots = [after(&told), after(&late)];
    assert_eq!(snapshots.each_ref().map(|snapshot| live(only(snapshot))), [(8, 1), (0, 0)]);
    assert_eq!(snapshots.map(|snapshot| bounds(&snapshot.certainty)), [(0, 8), (0, 8)]);
}

#[test]
fn a_program_of_which_only_losses_are_known_counts_in_the_upper_bound() {
    let snapshot = after(&format!("{HELD}\n 1 exec \n 1 lost allocations=1 bytes=3M"));
    assert_eq!(bounds(&snapshot.certainty), (0, 3));
}

#[test]
fn processes_of_which_nothing_arrived_are_counted_and_not_exact() {
    let snapshot = after("1 process 100 \n 0 lost processes=2");
    assert_eq!(snapshot.certainty.lost.processes, 2);
    assert!(!snapshot.certainty.exact());
    let silent = after("1 process 100 \n 1.1 alloc 0x10 8M device \n 1 exec \n 1 lost processes=1");
    assert_eq!(silent.certainty.lost.processes, 1, "the program after the exec is not listed");
}

#[test]
fn process_that_is_listed_without_announcement_is_not_lost() {
    let snapshot = after("1.1 alloc 0x10 8M device \n 1 lost frees=1 processes=1");
    assert_eq!(snapshot.certainty.lost.processes, 0);
    assert_eq!(only(&snapshot).certainty.lost.frees, 1);
}

#[test]
fn received_calls_are_counted_in_the_classes_of_losses() {
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
fn a_lost_free_of_an_address_given_out_again_is_shown_as_unseen() {
    let snapshot = after(
        "1.1 alloc 0x10 8M device
         1 lost frees=1
         1.1 alloc 0x10 4M device",
    );
    assert_eq!(live(only(&snapshot)), (4, 1));
    assert_eq!(snapshot.certainty.unseen_frees, 1);
    assert_eq!(bounds(&snapshot.certainty), (4, 4));
}

#[test]
fn numbers_without_measure_saturate() {
    let max = u64::MAX;
    let line = format!("1 lost allocations={max} bytes={max} frees={max} other={max}");
    let snapshot = after(&format!(
        "1.1 alloc 0x10 {max} device \n 1.1 alloc 0x20 {max} device \n {line} \n {line}"
    ));
    assert_eq!(snapshot.live_bytes, Bytes(max));
    assert_eq!(snapshot.certainty.live_at_most, Bytes(max));
    assert_eq!(snapshot.certainty.live_at_least, Bytes(0));
}

#[test]
fn a_lost_mapping_or_reference_may_keep_what_was_counted_to_its_end() {
    let trace = "1 process 100
                 1.1 vmm create h0x10 8M gpu0
                 1.1 vmm create h0x20 4M gpu0
                 1.1 vmm release h0x10
                 1.1 vmm release h0x20";
    assert_eq!(bounds(&after(trace).certainty), (0, 0));
    assert_eq!(
        bounds(
            &after(&format!(
                "{trace}
 1 lost other=1"
            ))
            .certainty
        ),
        (0, 8)
    );
    assert_eq!(
        bounds(
            &after(&format!(
                "{trace}
 1 lost other=9"
            ))
            .certainty
        ),
        (0, 12)
    );
}

#[test]
fn a_lost_unmapping_can_have_ended_all_that_only_mappings_keep() {
    let trace = "1 process 100
                 1.1 vmm create h0x10 8M gpu0
                 1.1 vmm create h0x20 4M gpu0
                 1.1 vmm create h0x30 2M gpu0
                 1.1 vmm map 0x1000000 8M h0x10
                 1.1 vmm map 0x2000000 4M h0x20
                 1.1 vmm release h0x10
                 1.1 vmm release h0x20
                 1.1 alloc 0x10 1M device";
    assert_eq!(bounds(&after(&format!("{trace}\n 1 lost frees=1")).certainty), (3, 15));
    let later = format!("1 process 100 \n 1 lost frees=1 \n {trace}");
    assert_eq!(bounds(&after(&later).certainty), (15, 15));
}

#[test]
fn a_mapping_of_a_lost_handle_can_be_taken_for_one_of_its_predecessor() {
    let snapshot = after(
        "1 process 100
         1.1 vmm create h0x10 8M gpu0 @15-20
         1.2 vmm map 0x1000000 1M h0x10 @50-60  # of a new handle, whose creation was lost
         1.1 vmm release h0x10 @30-70
         1 lost allocations=1 bytes=1M @80",
    );
    assert_eq!(bounds(&snapshot.certainty), (0, 9));
}

const GRAPHS: &str = "1 process 100
                      1.1 graph alloc G1 0x10 8M gpu0
                      1.1 graph instantiate E1 G1
                      1.1 graph alloc G2 0x20 4M gpu0
                      1.1 graph instantiate E2 G2
                      1.1 graph launch E2";

#[test]
fn a_lost_launch_may_have_allocated_what_known_graphs_leave() {
    assert_eq!(bounds(&after(&format!("{GRAPHS}\n 1 lost other=1")).certainty), (0, 12));
    let dropped = format!("{GRAPHS}\n 1.1 graph drop E1 \n 1.1 graph destroy G1");
    assert_eq!(bounds(&after(&dropped).certainty), (4, 4));
    assert_eq!(bounds(&after(&format!("{dropped}\n 1 lost other=1")).certainty), (0, 12));
}

#[test]
fn graph_and_stream_ordered_memory_is_in_doubt_after_a_loss_also_when_it_comes_later() {
    let trace = "1 process 100
                 1 lost other=1
                 1.1 alloc 0x10 1M device gpu0
                 1.1 alloc 0x20 2M async gpu0
                 1.1 graph alloc G1 0x30 4M gpu0
                 1.1 graph instantiate E1 G1
                 1.1 graph launch E1";
    assert_eq!(bounds(&after(trace).certainty), (1, 7));
    // A lost free can be a node of the graph.
    assert_eq!(bounds(&after(&trace.replace("other", "frees")).certainty), (3, 7));
}

#[test]
fn what_is_taken_for_a_node_or_for_host_memory_after_a_loss_may_be_device_memory() {
    let trace = "1 process 100
                 1.1 graph begin stream3
                 1.1 pool create pool5 host
                 1 lost other=1
                 1.1 alloc 0x10 1M async gpu0 stream3
                 1.2 alloc 0x20 2M async gpu0 pool5 stream4";
    assert_eq!(bounds(&after(trace).certainty), (0, 3));
    assert_eq!(bounds(&after(&format!("{trace}\n 1.1 graph begin stream3")).certainty), (0, 3));
}
