//! What the ledger says after small traces: one behaviour a case.

mod notation;

use engine::ids::{DeviceId, Pid};
use engine::kind::Kind;
use engine::snapshot::{Certainty, End, ProcessView, Snapshot, Sort, View};
use engine::units::{Bytes, Moment, Nanos};
use notation::{events, ledger};

const MIB: u64 = 1 << 20;

/// The snapshot after a trace, with the default view.
fn after(trace: &str) -> Snapshot {
    seen(trace, 1000, &View::default())
}

fn seen(trace: &str, at: u64, view: &View) -> Snapshot {
    ledger(trace).snapshot(Moment(at), view)
}

/// The only process of a snapshot.
fn only(snapshot: &Snapshot) -> &ProcessView {
    assert_eq!(snapshot.processes.len(), 1, "{:#?}", snapshot.processes);
    &snapshot.processes[0]
}

/// Live device memory in MiB, and live allocations.
fn live(process: &ProcessView) -> (u64, u64) {
    (process.live_bytes.0 / MIB, process.live_allocations)
}

/// Frees by the program, frees of unknown pointers, releases, frees not seen.
fn ends(process: &ProcessView) -> (u64, u64, u64, u64) {
    let unseen = process.certainty.unseen_frees;
    (process.frees_total, process.unknown_frees, process.released_total, unseen)
}

/// Devices with live and peak MiB; -1 is the unknown one.
fn devices(process: &ProcessView) -> Vec<(i32, u64, u64)> {
    let number = |device: Option<DeviceId>| device.map_or(-1, |device| i32::from(device.0));
    let all = process.devices.iter();
    all.map(|view| (number(view.device), view.live_bytes.0 / MIB, view.peak_bytes.0 / MIB))
        .collect()
}

/// Threads with the addresses of their listed allocations.
fn lists(process: &ProcessView) -> Vec<(u32, Vec<u64>)> {
    let keys = |view: &engine::snapshot::ThreadView| {
        (view.tid.0, view.allocations.iter().map(|allocation| allocation.key.value).collect())
    };
    process.threads.iter().map(keys).collect()
}

/// The bounds in MiB.
fn bounds(certainty: &Certainty) -> (u64, u64) {
    (certainty.live_at_least.0 / MIB, certainty.live_at_most.0 / MIB)
}

mod allocations {
    use super::*;

    #[test]
    fn nothing_is_known_before_the_first_event() {
        let snapshot = after("");
        assert_eq!(snapshot, Snapshot { at: Moment(1000), ..Snapshot::default() });
        assert!(snapshot.certainty.exact());
    }

    #[test]
    fn memory_is_live_from_its_allocation_to_its_free() {
        let snapshot =
            after("1.1 alloc 0x10 8M device \n 1.1 alloc 0x20 4M device \n 1.1 free 0x10");
        let process = only(&snapshot);
        assert_eq!(live(process), (4, 1));
        assert_eq!((process.peak_bytes, process.peak_at), (Bytes(12 * MIB), Moment(20)));
        assert_eq!((process.allocations_total, ends(process)), (2, (1, 0, 0, 0)));
        assert_eq!((snapshot.live_bytes, snapshot.live_allocations), (Bytes(4 * MIB), 1));
        assert!(snapshot.certainty.exact());
    }

    #[test]
    fn a_free_by_another_thread_ends_the_allocation() {
        let snapshot = after("1.1 alloc 0x10 8M device \n 1.2 free 0x10");
        assert_eq!(live(only(&snapshot)), (0, 0));
        assert!(only(&snapshot).threads.is_empty());
    }

    #[test]
    fn a_free_of_another_process_at_the_same_address_is_its_own_matter() {
        let snapshot = after("1.1 alloc 0x10 8M device \n 2.2 free 0x10");
        assert_eq!(live(&snapshot.processes[0]), (8, 1));
        assert_eq!(ends(&snapshot.processes[1]), (0, 1, 0, 0));
    }

    #[test]
    fn a_free_of_a_pointer_never_seen_is_counted_and_changes_nothing() {
        let snapshot = after("1.1 alloc 0x10 8M device \n 1.1 free 0x99");
        assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((8, 1), (0, 1, 0, 0)));
    }

    #[test]
    fn a_second_free_of_the_same_pointer_is_unknown() {
        let snapshot = after("1.1 alloc 0x10 8M device \n 1.1 free 0x10 \n 1.1 free 0x10");
        assert_eq!(ends(only(&snapshot)), (1, 1, 0, 0));
    }

    #[test]
    fn a_pointer_a_handle_and_an_array_of_the_same_number_are_three_things() {
        let snapshot = after(
            "1.1 alloc 0x10 1M device
             1.1 alloc h0x10 2M physical
             1.1 alloc a0x10 4M array
             1.1 free h0x10",
        );
        assert_eq!(live(only(&snapshot)), (5, 2));
    }

    #[test]
    fn only_what_a_device_loses_counts_as_live_bytes() {
        let snapshot = after(
            "1.1 alloc 0x10 1M device
             1.1 alloc a0x10 2M array
             1.1 alloc h0x10 4M physical
             1.1 alloc 0x20 8M graph
             1.1 alloc p0x10 16M pool
             1.1 alloc 0x30 32M async
             1.1 alloc 0x40 32M managed
             1.1 alloc 0x50 32M pinned
             1.1 alloc 0x60 32M registered
             1.1 alloc h0x20 32M host_physical
             1.1 alloc e0x10 32M imported",
        );
        let process = only(&snapshot);
        assert_eq!(live(process), (31, 11));
        assert_eq!(process.kinds.len(), Kind::COUNT);
        assert!(process.kinds.iter().all(|view| view.live_allocations == 1));
        assert_eq!(process.kinds[5].live_bytes, Bytes(32 * MIB));
        assert_eq!(process.threads[0].live_bytes, Bytes(31 * MIB));
        assert_eq!(process.threads[0].live_allocations, 11);
    }

    #[test]
    fn the_peak_is_that_of_the_order_of_events() {
        let snapshot = after(
            "1.1 alloc 0x10 8M device
             1.1 free 0x10
             1.1 alloc 0x20 6M device
             1.1 alloc 0x30 1M device",
        );
        assert_eq!(only(&snapshot).peak_bytes, Bytes(8 * MIB));
        assert_eq!(only(&snapshot).peak_at, Moment(10));
    }
}

mod reuse {
    use super::*;

    #[test]
    fn an_address_given_out_again_before_its_free_is_seen_belongs_to_the_new_allocation() {
        let trace = "1.1 alloc 0x10 8M device @10-20
                     1.2 alloc 0x10 4M device @40-60";
        let snapshot = after(trace);
        assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((4, 1), (0, 0, 0, 1)));
        let snapshot = after(&format!("{trace}\n 1.1 free 0x10 @50-70"));
        assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((4, 1), (1, 0, 0, 0)));
        assert_eq!(snapshot.certainty.unseen_frees, 0);
    }

    #[test]
    fn the_free_of_the_new_allocation_is_told_from_the_late_free_of_the_old_one() {
        let snapshot = after(
            "1.1 alloc 0x10 8M device @10-20
             1.2 alloc 0x10 4M device @40-60
             1.2 free 0x10 @62-65
             1.1 free 0x10 @50-70",
        );
        assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((0, 0), (2, 0, 0, 0)));
    }

    #[test]
    fn a_free_entered_at_the_moment_of_the_return_is_the_allocations_own() {
        let snapshot = after("1.1 alloc 0x10 8M device @20 \n 1.1 free 0x10 @20");
        assert_eq!(ends(only(&snapshot)), (1, 0, 0, 0));
    }

    #[test]
    fn a_late_free_of_memory_never_seen_does_not_end_the_new_owner() {
        let snapshot = after("1.2 alloc 0x10 4M device @40-60 \n 1.1 free 0x10 @50-70");
        assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((4, 1), (0, 1, 0, 0)));
    }

    #[test]
    fn an_address_can_be_given_out_three_times_before_any_free_is_seen() {
        let snapshot = after(
            "1.1 alloc 0x10 1M device @10-20
             1.2 alloc 0x10 2M device @25-30
             1.3 alloc 0x10 4M device @35-40
             1.1 free 0x10 @22-50
             1.2 free 0x10 @32-55",
        );
        assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((4, 1), (2, 0, 0, 0)));
    }
}

mod contexts {
    use super::*;

    #[test]
    fn the_device_is_the_one_named_else_the_contexts_else_unknown() {
        let snapshot = after(
            "1.1 ctx create C1 gpu1
             1.1 alloc 0x10 1M device C1
             1.1 alloc 0x20 2M device C1 gpu3
             1.1 alloc 0x30 4M device
             1.1 alloc 0x40 8M device C0
             1.1 alloc 0x50 16M device C9",
        );
        assert_eq!(devices(only(&snapshot)), [(1, 1, 1), (3, 2, 2), (-1, 28, 28)]);
    }

    #[test]
    fn destroying_a_context_releases_everything_in_it_without_frees() {
        let snapshot = after(
            "1.1 ctx create C1 gpu0
             1.1 ctx create C2 gpu0
             1.1 alloc 0x10 1M device C1
             1.1 alloc 0x20 1M pinned C1
             1.1 alloc 0x30 1M registered C1
             1.1 alloc 0x40 4M device C2
             1.1 ctx destroy C1",
        );
        assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((4, 1), (0, 0, 3, 0)));
    }

    #[test]
    fn destroying_a_context_whose_beginning_was_not_seen_releases_it_too() {
        let snapshot = after("1.1 alloc 0x10 1M device C1 \n 1.1 ctx destroy C1");
        assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((0, 0), (0, 0, 1, 0)));
    }

    #[test]
    fn a_context_made_again_under_the_same_name_is_on_its_own_device() {
        let snapshot = after(
            "1.1 ctx create C1 gpu0
             1.1 ctx destroy C1
             1.1 ctx create C1 gpu1
             1.1 alloc 0x10 1M device C1",
        );
        assert_eq!(devices(only(&snapshot)), [(1, 1, 1)]);
    }

    #[test]
    fn a_context_name_given_out_again_shows_that_the_older_one_is_gone() {
        let trace = "1.1 ctx create C1 gpu0 @5-10
                     1.1 alloc 0x10 1M device C1 @15-20
                     1.2 ctx create C1 gpu1 @40-60
                     1.2 alloc 0x20 2M device C1 @61-65";
        let snapshot = after(trace);
        assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((2, 1), (0, 0, 1, 0)));
        let snapshot = after(&format!("{trace}\n 1.1 ctx destroy C1 @50-70"));
        assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((2, 1), (0, 0, 1, 0)));
        assert_eq!(devices(only(&snapshot)), [(0, 0, 1), (1, 2, 2)]);
    }

    #[test]
    fn the_last_release_of_a_primary_context_releases_everything_in_it() {
        let trace = "1.1 process 100
                     1.1 ctx retain C1 gpu0
                     1.1 ctx retain C1 gpu0
                     1.1 alloc 0x10 1M device C1
                     1.1 ctx release gpu0";
        assert_eq!(live(only(&after(trace))), (1, 1));
        let snapshot = after(&format!("{trace}\n 1.1 ctx release gpu0"));
        assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((0, 0), (0, 0, 1, 0)));
    }

    #[test]
    fn a_primary_context_can_be_retained_again() {
        for name in ["C1", "C2"] {
            let snapshot = after(&format!(
                "1.1 process 100
                 1.1 ctx retain C1 gpu0
                 1.1 ctx release gpu0
                 1.1 ctx retain {name} gpu0
                 1.1 alloc 0x10 1M device {name}
                 1.1 ctx release gpu0"
            ));
            assert_eq!(ends(only(&snapshot)), (0, 0, 1, 0));
        }
    }

    #[test]
    fn a_reset_releases_whoever_uses_the_primary_context_and_keeps_its_users() {
        let snapshot = after(
            "1.1 process 100
             1.1 ctx retain C1 gpu0
             1.1 ctx retain C1 gpu0
             1.1 alloc 0x10 1M device C1
             1.1 ctx reset gpu0
             1.1 alloc 0x20 2M device C1
             1.1 ctx release gpu0",
        );
        assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((2, 1), (0, 0, 1, 0)));
        assert_eq!(devices(only(&snapshot)), [(0, 2, 2)]);
    }

    #[test]
    fn a_release_without_any_retain_on_record_releases_nothing() {
        let snapshot = after(
            "1.1 process 100
             1.1 alloc 0x10 1M device C1 gpu0
             1.1 ctx release gpu0",
        );
        assert_eq!(live(only(&snapshot)), (1, 1));
    }

    #[test]
    fn a_balanced_retain_and_release_in_an_older_process_releases_nothing() {
        let snapshot = after(
            "1.1 process 100 before
             1.1 alloc 0x10 1M device C1
             1.1 ctx retain C1 gpu0
             1.1 ctx release gpu0",
        );
        assert_eq!((live(only(&snapshot)), devices(only(&snapshot))), ((1, 1), vec![(0, 1, 1)]));
    }

    #[test]
    fn a_reset_in_an_older_process_ends_the_only_context_it_can_mean() {
        let trace = "1.1 process 100 before
                     1.1 ctx learn C1 gpu0
                     1.1 ctx create C2 gpu0
                     1.1 alloc 0x10 1M device C1
                     1.1 alloc 0x20 2M device C2";
        let snapshot = after(&format!("{trace}\n 1.1 ctx reset gpu0"));
        assert_eq!(live(only(&snapshot)), (2, 1));
        let snapshot = after(&format!("{trace}\n 1.1 ctx learn C3 gpu0 \n 1.1 ctx reset gpu0"));
        assert_eq!(live(only(&snapshot)), (3, 2));
    }

    #[test]
    fn a_device_that_is_learned_late_is_that_of_older_allocations_too() {
        let snapshot = after(
            "1.1 alloc 0x10 8M device C1
             1.1 alloc 0x20 1M device C1 gpu5
             1.1 alloc 0x30 2M device C2
             1.1 free 0x20
             1.1 ctx learn C1 gpu1
             1.1 alloc 0x40 1M device C1",
        );
        let process = only(&snapshot);
        assert_eq!(devices(process), [(1, 9, 9), (5, 0, 1), (-1, 2, 10)]);
        assert_eq!(process.threads[0].allocations[0].device, Some(DeviceId(1)));
    }

    #[test]
    fn no_device_is_unknown_any_more_when_all_are_learned() {
        let snapshot = after("1.1 alloc 0x10 8M device C1 \n 1.1 ctx learn C1 gpu1");
        assert_eq!(devices(only(&snapshot)), [(1, 8, 8)]);
    }
}

mod processes {
    use super::*;

    #[test]
    fn an_announced_process_is_shown_with_its_facts() {
        let snapshot = after(
            "7 process 100 uid=1000 name=python before \n 7.8 name loader \n 7.8 alloc 0x10 1M device",
        );
        let process = only(&snapshot);
        assert_eq!((process.key.pid, process.key.start), (Pid(7), 100));
        assert_eq!(
            (process.uid, &*process.name, process.before_trace),
            (Some(1000), "python", true)
        );
        assert_eq!((process.threads[0].tid.0, &*process.threads[0].name), (8, "loader"));
        assert_eq!(process.ended, None);
    }

    #[test]
    fn a_process_never_announced_is_shown_without_facts() {
        let snapshot = after("7.7 free 0x10");
        let process = only(&snapshot);
        assert_eq!((process.uid, &*process.name, process.before_trace), (None, "", true));
    }

    #[test]
    fn a_second_announcement_refreshes_the_facts_and_clears_nothing() {
        let snapshot = after(
            "7 process 100 uid=1 name=sh
             7.7 alloc 0x10 1M device
             7 process 100 uid=2 name=python",
        );
        let process = only(&snapshot);
        assert_eq!((live(process), process.uid, &*process.name), ((1, 1), Some(2), "python"));
    }

    #[test]
    fn a_late_announcement_names_the_process_that_is_there() {
        let snapshot = after("7.7 alloc 0x10 1M device \n 7 process 100 uid=2 name=python");
        let process = only(&snapshot);
        assert_eq!((live(process), process.key.start), ((1, 1), 100));
        assert!(!process.before_trace);
    }

    #[test]
    fn a_pid_with_another_start_is_another_process() {
        let snapshot = after(
            "7 process 100 name=old
             7.7 alloc 0x10 1M device
             7 process 200 name=new
             7.7 free 0x10",
        );
        let [new, old] = &snapshot.processes[..] else { panic!("{:#?}", snapshot.processes) };
        assert_eq!((&*old.name, old.ended, live(old)), ("old", Some(End::Exited), (1, 1)));
        assert_eq!((&*new.name, new.ended, ends(new)), ("new", None, (0, 1, 0, 0)));
        assert_eq!(snapshot.live_bytes, Bytes(0));
    }

    #[test]
    fn an_exit_shows_what_was_live_then_and_only_once() {
        let mut ledger = ledger("7.7 alloc 0x10 1M device @10 \n 7 exit @50");
        assert_eq!((ledger.live_bytes(), ledger.process_count()), (Bytes(0), 0));
        let snapshot = ledger.snapshot(Moment(1000), &View::default());
        let process = only(&snapshot);
        assert_eq!((process.ended, live(process)), (Some(End::Exited), (1, 1)));
        assert_eq!(process.threads[0].allocations[0].age, Nanos(40));
        assert_eq!((snapshot.live_bytes, snapshot.live_allocations), (Bytes(0), 0));
        assert!(ledger.snapshot(Moment(1001), &View::default()).processes.is_empty());
    }

    #[test]
    fn a_process_that_ended_with_nothing_is_shown_once_too() {
        let snapshot = after("7.7 alloc 0x10 1M device \n 7.7 free 0x10 \n 7 exit");
        assert_eq!(only(&snapshot).ended, Some(End::Exited));
    }

    #[test]
    fn an_exit_of_a_process_that_never_called_is_nothing() {
        assert!(after("7 exit \n 8 exec \n 9.9 exit").processes.is_empty());
    }

    #[test]
    fn an_exec_ends_the_program_and_the_next_call_is_of_a_new_one() {
        let trace = "7 process 100 uid=5 name=sh before
                     7.7 alloc 0x10 1M device
                     7 exec";
        let snapshot = after(trace);
        assert_eq!((only(&snapshot).ended, live(only(&snapshot))), (Some(End::Replaced), (1, 1)));
        let snapshot = after(&format!("{trace}\n 7.7 alloc 0x20 2M device"));
        let [new, old] = &snapshot.processes[..] else { panic!("{:#?}", snapshot.processes) };
        assert_eq!((new.key, new.uid), (old.key, old.uid));
        assert_eq!((live(new), new.ended, new.before_trace), ((2, 1), None, false));
        assert_eq!(new.allocations_total, 1);
    }

    #[test]
    fn an_exit_right_after_an_exec_adds_nothing() {
        let snapshot = after("7.7 alloc 0x10 1M device \n 7 exec \n 7 exec \n 7 exit");
        assert_eq!(only(&snapshot).ended, Some(End::Replaced));
    }

    #[test]
    fn a_thread_stays_while_it_holds_something_and_its_id_can_be_used_again() {
        let trace = "7.8 name old
                     7.8 alloc 0x10 1M device
                     7.8 exit";
        let snapshot = after(trace);
        assert_eq!(&*only(&snapshot).threads[0].name, "old");
        let snapshot = after(&format!("{trace}\n 7.7 free 0x10 \n 7.8 alloc 0x20 1M device"));
        assert_eq!(&*only(&snapshot).threads[0].name, "");
        let snapshot = after(&format!("{trace}\n 7.8 alloc 0x20 1M device"));
        assert_eq!(lists(only(&snapshot)), [(8, vec![0x10, 0x20])]);
    }

    #[test]
    fn a_child_after_a_fork_holds_nothing_of_its_parent() {
        let snapshot = after("7.7 alloc 0x10 1M device \n 8 process 200 \n 8.8 free 0x10");
        assert_eq!(live(&snapshot.processes[0]), (1, 1));
        assert_eq!(ends(&snapshot.processes[1]), (0, 1, 0, 0));
    }
}

mod failures {
    use super::*;

    #[test]
    fn failures_are_counted_by_function_and_code_the_most_frequent_first() {
        let snapshot = after(
            "1.1 fail f5 700
             1.1 fail f6 1 device 1M
             1.1 fail f5 1
             1.1 fail f6 1 device 1M
             1.1 alloc 0x10 1M device",
        );
        let process = only(&snapshot);
        let list: Vec<_> =
            process.failures.iter().map(|f| (f.function.0, f.code, f.count)).collect();
        assert_eq!(list, [(6, 1, 2), (5, 1, 1), (5, 700, 1)]);
        assert_eq!((process.failed_allocations, process.allocations_total), (2, 1));
        assert!(snapshot.out_of_memory.is_empty());
    }

    #[test]
    fn out_of_memory_tells_who_held_the_device_at_that_moment() {
        let mut ledger = ledger(
            "1 process 100 name=small
             2 process 100 name=big
             1.1 alloc 0x10 1M device gpu0
             2.2 alloc 0x10 8M device gpu0
             2.2 alloc 0x20 9M device gpu1
             3.3 alloc 0x20 9M device gpu1
             1.1 ctx create C1 gpu0
             1.4 fail f5 2 device 1G C1
             2 exit",
        );
        let snapshot = ledger.snapshot(Moment(1000), &View::default());
        let oom = &snapshot.out_of_memory[0];
        assert_eq!((oom.at, oom.pid, oom.tid.0, &*oom.name), (Moment(80), Pid(1), 4, "small"));
        assert_eq!(
            (oom.device, oom.asked),
            (Some(DeviceId(0)), Some((Kind::Device, Bytes(1 << 30))))
        );
        let holders: Vec<_> =
            oom.holders.iter().map(|(pid, name, bytes)| (pid.0, &**name, bytes.0 / MIB)).collect();
        assert_eq!(holders, [(2, "big", 8), (1, "small", 1)]);
        assert!(ledger.snapshot(Moment(1001), &View::default()).out_of_memory.is_empty());
    }

    #[test]
    fn out_of_memory_of_an_unknown_device_lists_holders_of_any() {
        let snapshot = after(
            "1.1 alloc 0x10 1M device gpu0
             1.1 alloc 0x20 2M device gpu1
             1.1 alloc 0x30 2M pinned
             1.1 fail f5 2 device 1G C7",
        );
        let oom = &snapshot.out_of_memory[0];
        assert_eq!((oom.device, oom.holders[0].2), (None, Bytes(3 * MIB)));
    }

    #[test]
    fn running_out_of_memory_in_a_call_that_allocates_nothing_is_only_counted() {
        let snapshot = after("1.1 fail f5 2");
        assert!(snapshot.out_of_memory.is_empty());
        assert_eq!(only(&snapshot).failed_allocations, 0);
    }

    #[test]
    fn the_first_sixty_four_out_of_memory_errors_are_kept() {
        let trace = "1.1 fail f5 2 device 1G\n".repeat(100);
        let snapshot = after(&trace);
        assert_eq!(snapshot.out_of_memory.len(), 64);
        assert_eq!(snapshot.out_of_memory[63].at, Moment(640));
        assert_eq!(only(&snapshot).failed_allocations, 100);
    }
}

mod views {
    use super::*;

    const TRACE: &str = "1.1 alloc 0x10 1M device
                         1.1 alloc 0x20 8M device
                         1.2 alloc 0x30 2M device
                         1.1 alloc 0x40 1M pinned
                         2.3 alloc 0x50 4M device site9
                         2.3 alloc 0x60 4M device
                         2.3 alloc 0x70 1M device";

    fn order(snapshot: &Snapshot) -> Vec<(u32, Vec<(u32, Vec<u64>)>)> {
        snapshot.processes.iter().map(|process| (process.key.pid.0, lists(process))).collect()
    }

    #[test]
    fn by_size_the_biggest_come_first_and_the_older_among_equals() {
        let one = vec![(1, vec![0x20, 0x10, 0x40]), (2, vec![0x30])];
        let two = vec![(3, vec![0x50, 0x60, 0x70])];
        assert_eq!(order(&after(TRACE)), [(1, one), (2, two)]);
    }

    #[test]
    fn by_age_the_oldest_come_first() {
        let view = View { sort: Sort::Age, ..View::default() };
        let trace =
            format!("3.4 alloc 0x10 1K device \n {TRACE} \n 3.4 free 0x10 \n 4.4 free 0x10");
        let one = vec![(1, vec![0x10, 0x20, 0x40]), (2, vec![0x30])];
        let two = vec![(3, vec![0x50, 0x60, 0x70])];
        let want = [(1, one), (2, two), (3, vec![]), (4, vec![])];
        assert_eq!(order(&seen(&trace, 1000, &view)), want);
    }

    #[test]
    fn by_count_the_most_come_first_and_lists_are_by_size() {
        let view = View { sort: Sort::Count, ..View::default() };
        let trace = format!("{TRACE} \n 1.1 free 0x40 \n 1.1 free 0x10");
        let two = vec![(3, vec![0x50, 0x60, 0x70])];
        let one = vec![(1, vec![0x20]), (2, vec![0x30])];
        assert_eq!(order(&seen(&trace, 1000, &view)), [(2, two), (1, one)]);
    }

    #[test]
    fn the_top_is_cut_and_totals_are_not() {
        let view = View { top: 1, ..View::default() };
        let snapshot = seen(TRACE, 1000, &view);
        assert_eq!(lists(&snapshot.processes[0]), [(1, vec![0x20]), (2, vec![0x30])]);
        assert_eq!(live(&snapshot.processes[0]), (11, 4));
        let none = seen(TRACE, 1000, &View { top: 0, ..View::default() });
        assert_eq!(lists(&none.processes[0]), [(1, vec![]), (2, vec![])]);
    }

    #[test]
    fn small_and_young_allocations_can_be_left_out_in_every_order() {
        // 0x10 was made at 10, 0x20 at 20 and so on; it is 100 now.
        let view = View { min_size: Bytes(2 * MIB), older: Nanos(50), ..View::default() };
        for sort in [Sort::Size, Sort::Age, Sort::Count] {
            let snapshot = seen(TRACE, 100, &View { sort, ..view });
            let mut shown: Vec<_> =
                snapshot.processes.iter().flat_map(lists).flat_map(|(_, keys)| keys).collect();
            shown.sort_unstable();
            assert_eq!(shown, [0x20, 0x30, 0x50], "{sort:?}");
            assert_eq!(snapshot.live_allocations, 7);
        }
    }

    #[test]
    fn an_allocation_is_shown_with_all_that_is_known_of_it() {
        let snapshot = seen("1.1 alloc h0x50 4M physical gpu2 site9", 100, &View::default());
        let allocation = only(&snapshot).threads[0].allocations[0];
        assert_eq!((allocation.key.value, allocation.bytes), (0x50, Bytes(4 * MIB)));
        assert_eq!((allocation.kind, allocation.device), (Kind::Physical, Some(DeviceId(2))));
        assert_eq!((allocation.age, allocation.site.unwrap().0), (Nanos(90), 9));
    }

    #[test]
    fn ended_processes_come_after_those_that_run() {
        let trace = "1.1 alloc 0x10 9M device \n 1 exit \n 2.2 alloc 0x10 1M device";
        let snapshot = after(trace);
        let pids: Vec<_> = snapshot.processes.iter().map(|process| process.key.pid.0).collect();
        assert_eq!(pids, [2, 1]);
    }

    #[test]
    fn the_same_events_give_the_same_snapshot() {
        assert_eq!(after(TRACE), after(TRACE));
    }
}

mod losses {
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
    fn a_process_that_comes_later_cannot_have_lost_frees_of_earlier() {
        let snapshot = after("0 lost frees=2 \n 1.1 alloc 0x10 6M device");
        assert_eq!(bounds(&snapshot.certainty), (6, 6));
        assert!(!snapshot.certainty.exact());
    }

    #[test]
    fn losses_that_are_told_after_the_exit_belong_to_the_process_that_ended() {
        let snapshot =
            after(&format!("{HELD}\n 2.2 alloc 0x10 1M device\n 1 exit\n 1 lost frees=1"));
        let [other, ended] = &snapshot.processes[..] else { panic!() };
        assert!(other.certainty.exact());
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
}

#[test]
fn the_notation_reads_times_and_threads() {
    let events = events("1.2 free 0x10 @3-4 \n # nothing \n 5 exit");
    assert_eq!((events[0].tid.0, events[0].entered, events[0].at), (2, Moment(3), Moment(4)));
    assert_eq!((events[1].pid, events[1].at), (Pid(5), Moment(20)));
}
