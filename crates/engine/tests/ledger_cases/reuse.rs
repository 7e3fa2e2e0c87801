//! Addresses that are reused while their free is in flight.

use super::*;

#[test]
fn address_reused_before_its_free_is_a_new_allocation() {
    let trace = "1.1 alloc 0x10 8M device @10-20
                 1.2 alloc 0x10 4M device @40-60";
    let snapshot = after(trace);
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((4, 1), (0, 0, 0, 1)));
    let snapshot = after(&format!("{trace}\n 1.1 free 0x10 @50-70"));
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((4, 1), (1, 0, 0, 0)));
    assert_eq!(snapshot.uncertainty.implied_frees, 0);
}

#[test]
fn free_that_never_returns_makes_the_ended_process_inexact() {
    let trace = "1.1 alloc 0x10 8M device @10-20
                 1.2 alloc 0x10 4M device @40-60";
    assert_eq!(only(&after(trace)).uncertainty.ambiguous_calls, 0);
    let snapshot = after(&format!("{trace}\n 1 exit @70"));
    let process = only(&snapshot);
    assert_eq!((process.ended.is_some(), ends(process)), (true, (0, 0, 0, 1)));
    assert_eq!(process.uncertainty.ambiguous_calls, 1);
    assert!(!process.uncertainty.exact());
}

#[test]
fn late_free_is_not_matched_to_the_new_allocation() {
    let snapshot = after(
        "1.1 alloc 0x10 8M device @10-20
         1.2 alloc 0x10 4M device @40-60
         1.2 free 0x10 @62-65
         1.1 free 0x10 @50-70",
    );
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((0, 0), (2, 0, 0, 0)));
}

#[test]
fn free_entered_at_the_return_time_matches_the_allocation() {
    let snapshot = after("1.1 alloc 0x10 8M device @20 \n 1.1 free 0x10 @20");
    assert_eq!(ends(only(&snapshot)), (1, 0, 0, 0));
}

#[test]
fn late_free_of_unknown_memory_keeps_the_new_allocation() {
    let snapshot = after("1.2 alloc 0x10 4M device @40-60 \n 1.1 free 0x10 @50-70");
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((4, 1), (0, 1, 0, 0)));
}

#[test]
fn free_during_the_allocating_call_is_ambiguous() {
    let announced = |trace: &str| after(&format!("1 process 0 uid=0 name=a @1 \n {trace}"));
    // A thread frees a dangling pointer while another one gets the address; either returns first.
    for trace in [
        "1.2 alloc 0x10 4M device @40-60 \n 1.1 free 0x10 @50-70",
        "1.1 free 0x10 @50-55 \n 1.2 alloc 0x10 4M device @40-60",
    ] {
        let snapshot = announced(trace);
        assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((4, 1), (0, 1, 0, 0)));
        let found = &only(&snapshot).uncertainty;
        assert_eq!(
            (found.ambiguous_calls, found.live_min, found.live_max.0),
            (1, Bytes(0), 4 << 20)
        );
    }
    let snapshot = announced("1.1 free 0x10 @30-35 \n 1.2 alloc 0x10 4M device @40-60");
    assert_eq!(only(&snapshot).uncertainty.ambiguous_calls, 0);
}

#[test]
fn address_can_be_reused_twice_before_any_free() {
    let snapshot = after(
        "1.1 alloc 0x10 1M device @10-20
         1.2 alloc 0x10 2M device @25-30
         1.3 alloc 0x10 4M device @35-40
         1.1 free 0x10 @22-50
         1.2 free 0x10 @32-55",
    );
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((4, 1), (2, 0, 0, 0)));
}
