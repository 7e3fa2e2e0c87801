//! Calls that show a bug in the program.

use super::*;

/// Double, invalid and mismatched frees.
fn mistakes(trace: &str) -> (u64, u64, u64) {
    let snapshot = after(trace);
    let mistakes = only(&snapshot).mistakes;
    (mistakes.double_frees, mistakes.invalid_frees, mistakes.mismatched_frees)
}

#[test]
fn a_refused_free_of_what_was_just_freed_is_a_double_free() {
    let freed = "1.1 alloc 0x10 1M device \n 1.1 free 0x10";
    assert_eq!(mistakes(&format!("{freed}\n 1.1 fail f6 1 freed=0x10")), (1, 0, 0));
    assert_eq!(mistakes(&format!("{freed}\n 1.1 fail f6 400 freed=0x10")), (1, 0, 0));
    assert_eq!(mistakes("1.1 free 0x10 \n 1.1 fail f6 1 freed=0x10"), (1, 0, 0));
    let handle = "1.1 vmm create h0x10 1M gpu0 \n 1.1 vmm release h0x10";
    assert_eq!(mistakes(&format!("{handle}\n 1.1 fail f6 1 freed=h0x10")), (1, 0, 0));
}

#[test]
fn a_refused_free_of_what_was_never_seen_is_an_invalid_one() {
    let trace = "1.1 alloc 0x10 1M device \n 1.1 free 0x10";
    for freed in ["0x18", "a0x10"] {
        assert_eq!(mistakes(&format!("{trace}\n 1.1 fail f6 1 freed={freed}")), (0, 1, 0));
    }
}

#[test]
fn a_refused_free_of_live_memory_or_for_another_reason_is_neither() {
    let trace = "1.1 alloc 0x10 1M device \n 1.1 free 0x10 \n 1.1 alloc 0x10 1M device";
    assert_eq!(mistakes(&format!("{trace}\n 1.1 fail f6 1 freed=0x10")), (0, 0, 0));
    assert_eq!(mistakes("1.1 fail f6 700 freed=0x10 \n 1.1 fail f6 1"), (0, 0, 0));
}

#[test]
fn a_free_through_a_function_for_another_kind_is_a_mismatch() {
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
            assert_eq!(mistakes(&trace), (0, 0, u64::from(!fits)), "{trace}");
            assert_eq!(live(only(&after(&trace))), (0, 0));
        }
    }
}

#[test]
fn a_mismatch_needs_memory_that_is_known() {
    assert_eq!(mistakes("1.1 free 0x10 by=host"), (0, 0, 0));
}
