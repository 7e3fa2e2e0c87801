//! Calls that misuse the API.

use super::*;

/// Double, invalid and mismatched frees.
fn bad_frees(trace: &str) -> (u64, u64, u64) {
    let snapshot = after(trace);
    let bad_frees = only(&snapshot).api_misuse;
    (bad_frees.double_frees, bad_frees.invalid_frees, bad_frees.mismatched_frees)
}

#[test]
fn failed_free_of_freed_memory_is_a_double_free() {
    let freed = "1.1 alloc 0x10 1M device \n 1.1 free 0x10";
    assert_eq!(bad_frees(&format!("{freed}\n 1.1 fail f6 1 freed=0x10")), (1, 0, 0));
    assert_eq!(bad_frees(&format!("{freed}\n 1.1 fail f6 400 freed=0x10")), (1, 0, 0));
    assert_eq!(bad_frees("1.1 free 0x10 \n 1.1 fail f6 1 freed=0x10"), (1, 0, 0));
    let handle = "1.1 vmm create h0x10 1M gpu0 \n 1.1 vmm release h0x10";
    assert_eq!(bad_frees(&format!("{handle}\n 1.1 fail f6 1 freed=h0x10")), (1, 0, 0));
}

#[test]
fn failed_free_of_unknown_memory_is_an_invalid_free() {
    let trace = "1.1 alloc 0x10 1M device \n 1.1 free 0x10";
    for freed in ["0x18", "a0x10"] {
        assert_eq!(bad_frees(&format!("{trace}\n 1.1 fail f6 1 freed={freed}")), (0, 1, 0));
    }
}

#[test]
fn failed_free_of_live_memory_is_not_misuse() {
    let trace = "1.1 alloc 0x10 1M device \n 1.1 free 0x10 \n 1.1 alloc 0x10 1M device";
    assert_eq!(bad_frees(&format!("{trace}\n 1.1 fail f6 1 freed=0x10")), (0, 0, 0));
    assert_eq!(bad_frees("1.1 fail f6 700 freed=0x10 \n 1.1 fail f6 1"), (0, 0, 0));
}

#[test]
fn free_with_the_wrong_function_is_a_mismatch() {
    for (kind, fitting) in [
        ("device", "free"),
        ("managed", "free"),
        ("async", "free async"),
        ("host_async", "free async"),
        ("graph", "free async"),
        ("imported", "free close external"),
        ("pinned", "host"),
        ("registered", "unregister"),
        ("array", "array"),
    ] {
        for by in ["free", "async", "host", "unregister", "array", "close", "external"] {
            let trace = format!("1.1 alloc 0x10 1M {kind} \n 1.1 free 0x10 by={by}");
            let fits = fitting.split(' ').any(|word| word == by);
            assert_eq!(bad_frees(&trace), (0, 0, u64::from(!fits)), "{trace}");
            assert_eq!(live(only(&after(&trace))), (0, 0));
        }
    }
}

#[test]
fn mismatch_needs_known_memory() {
    assert_eq!(bad_frees("1.1 free 0x10 by=host"), (0, 0, 0));
}
