//! Contexts determine the device and the end of an allocation.

use super::*;

#[test]
fn device_is_the_given_one_else_that_of_the_context() {
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
fn context_destroy_releases_its_memory_without_frees() {
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
fn destroy_of_an_unknown_context_releases_its_memory() {
    let snapshot = after("1.1 alloc 0x10 1M device C1 \n 1.1 ctx destroy C1");
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((0, 0), (0, 0, 1, 0)));
}

#[test]
fn recreated_context_has_its_own_device() {
    let snapshot = after(
        "1.1 ctx create C1 gpu0
         1.1 ctx destroy C1
         1.1 ctx create C1 gpu1
         1.1 alloc 0x10 1M device C1",
    );
    assert_eq!(devices(only(&snapshot)), [(1, 1, 1)]);
}

#[test]
fn reused_context_handle_ends_the_older_context() {
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
fn allocation_during_a_destroy_belongs_to_the_newer_context() {
    let snapshot = after(
        "1.1 ctx create C1 gpu0 @5-10
         1.1 alloc 0x10 1M device C1 @15-20
         1.2 alloc 0x20 2M device C1 @61-65
         1.1 ctx destroy C1 @50-70",
    );
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((2, 1), (0, 0, 1, 0)));
}

#[test]
fn last_primary_release_releases_its_memory() {
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
fn primary_context_can_be_retained_again() {
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
fn primary_reset_releases_memory_and_keeps_retains() {
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
fn release_without_a_known_retain_releases_nothing() {
    let snapshot = after(
        "1.1 process 100
         1.1 alloc 0x10 1M device C1 gpu0
         1.1 ctx release gpu0",
    );
    assert_eq!(live(only(&snapshot)), (1, 1));
}

#[test]
fn balanced_retain_in_preexisting_process_releases_nothing() {
    let snapshot = after(
        "1.1 process 100 before
         1.1 alloc 0x10 1M device C1
         1.1 ctx retain C1 gpu0
         1.1 ctx release gpu0",
    );
    assert_eq!((live(only(&snapshot)), devices(only(&snapshot))), ((1, 1), vec![(0, 1, 1)]));
}

#[test]
fn reset_in_preexisting_process_ends_the_only_candidate() {
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
fn late_device_applies_to_older_allocations() {
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
fn no_unknown_device_is_left_when_all_are_learned() {
    let snapshot = after("1.1 alloc 0x10 8M device C1 \n 1.1 ctx learn C1 gpu1");
    assert_eq!(devices(only(&snapshot)), [(1, 8, 8)]);
}

#[test]
fn impossible_device_leaves_memory_unplaced() {
    let snapshot = after(
        "1.1 alloc 0x10 8M device C1
         1.1 ctx learn C1 gpu65535
         1.1 alloc 0x20 1M device C1",
    );
    assert_eq!(devices(only(&snapshot)), [(-1, 9, 9)]);
}

#[test]
fn context_end_leaves_unknown_contexts_in_doubt() {
    let trace = "1 process 100
                 1.1 ctx create C1 gpu0
                 1.1 alloc 0x10 1M device C1
                 1.1 alloc 0x20 2M device
                 1.1 alloc 0x30 4M pinned
                 1.1 alloc 0x40 8M async";
    let snapshot = after(trace);
    assert!(snapshot.uncertainty.exact());
    let destroyed = format!("{trace}\n 1.1 ctx destroy C1");
    for uncertainty in [after(&destroyed).uncertainty, only(&after(&destroyed)).uncertainty.clone()]
    {
        assert!(!uncertainty.exact());
        assert_eq!((uncertainty.unknown_context, bounds(&uncertainty)), (2, (8, 10)));
    }
    // A free that arrives proves that its memory had not been released.
    let freed = format!("{destroyed}\n 1.1 free 0x20 \n 1.1 free 0x30");
    assert!(after(&freed).uncertainty.exact());
}

#[test]
fn unknown_context_stays_in_doubt_when_its_address_is_reused() {
    let trace = "1 process 100
                 1.1 ctx create C1 gpu0
                 1.1 alloc 0x20 2M device
                 1.1 ctx destroy C1
                 1.1 alloc 0x20 4M device";
    let snapshot = after(trace);
    assert_eq!(bounds(&snapshot.uncertainty), (4, 4));
    assert_eq!(snapshot.uncertainty.unknown_context, 1, "unknown whether it was released");
    assert!(!snapshot.uncertainty.exact());
}

#[test]
fn end_of_an_unknown_context_leaves_all_contexts_in_doubt() {
    // The process started before the trace: the number of retains of the context is unknown.
    let snapshot = after(
        "1 process 100 before
         1.1 ctx retain C1 gpu0
         1.1 alloc 0x10 1M device C1
         1.1 alloc 0x20 2M async C1
         1.1 ctx release gpu0",
    );
    assert_eq!(bounds(&snapshot.uncertainty), (2, 3));
    assert_eq!(snapshot.uncertainty.unknown_context, 1);
}

#[test]
fn context_end_leaves_objects_of_unknown_contexts_in_doubt() {
    let trace = "1 process 100
                 1.1 ctx create C1 gpu0
                 1.1 create event 0x10
                 1.1 create event 0x20 C1
                 1.1 create graph 0x30
                 1.1 ctx destroy C1";
    let snapshot = after(trace);
    assert!(snapshot.uncertainty.exact(), "memory is");
    assert_eq!(snapshot.uncertainty.lost.objects, 1);
    let again = format!("{trace}\n 1.1 ctx create C1 gpu0 \n 1.1 ctx destroy C1");
    assert_eq!(after(&again).uncertainty.lost.objects, 1, "once");
}

#[test]
fn free_that_overlaps_the_end_of_its_context_is_a_free() {
    let trace = "1.1 process 0
                 1.1 ctx create C1 gpu0 @1-2
                 1.1 alloc 0x10 1M device C1 @3-4
                 1.1 alloc 0x20 2M device C1 @5-6
                 1.1 ctx destroy C1 @50-70";
    // Entered before and during the destroy call, whose record arrives first.
    for free in ["1.2 free 0x10 @40-80", "1.2 free 0x10 @60-80"] {
        let snapshot = after(&format!("{trace}\n {free}"));
        assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((0, 0), (1, 0, 1, 0)));
        assert!(only(&snapshot).uncertainty.exact());
    }
    // The driver rejects a second free, so another one is of unknown memory.
    for free in ["1.2 free 0x10 @71-80", "1.2 free 0x10 @60-80\n 1.3 free 0x10 @60-90"] {
        let snapshot = after(&format!("{trace}\n {free}"));
        assert_eq!(ends(only(&snapshot)).1, 1, "{free}");
    }
}

#[test]
fn pending_free_that_outlasts_its_context_is_a_free() {
    let snapshot = after(
        "1.1 process 0
         1.1 ctx create C1 gpu0 @1-2
         1.1 ctx create C2 gpu0 @1-2
         1.1 alloc 0x10 1M device C1 @3-4
         1.3 alloc 0x10 1M device C2 @55-60
         1.1 ctx destroy C1 @50-70
         1.2 free 0x10 @45-80",
    );
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((1, 1), (1, 0, 0, 0)));
}

#[test]
fn overlapping_frees_belong_to_the_youngest_memory_that_they_saw() {
    // The address was reused while its first free was in progress; then its context ended.
    let snapshot = after(
        "1.1 process 0
         1.1 ctx create C1 gpu0 @1-2
         1.4 alloc 0x10 1M device C1 @25-30
         1.4 alloc 0x10 2M pinned C1 @55-60
         1.1 ctx destroy C1 @75-80
         1.2 free 0x10 by=host @65-90
         1.1 free 0x10 @45-100",
    );
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((0, 0), (2, 0, 0, 0)));
}
