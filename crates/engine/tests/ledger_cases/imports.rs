//! Memory of other processes and APIs, and arrays.

use super::*;

const OPENED: &str = "1.1 ctx create C1 gpu0
                      1.1 alloc 0x10 8M imported C1
                      1.1 alloc 0x10 8M imported C1";

#[test]
fn memory_opened_twice_is_closed_twice() {
    let snapshot = after(OPENED);
    let process = only(&snapshot);
    assert_eq!((live(process), process.allocations_total), ((0, 1), 2));
    assert_eq!((ends(process), process.kinds[0].live_bytes), ((0, 0, 0, 0), Bytes(8 * MIB)));
    let trace = format!("{OPENED}\n 1.1 free 0x10 by=close");
    let snapshot = after(&trace);
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((0, 1), (1, 0, 0, 0)));
    let snapshot = after(&format!("{trace}\n 1.1 free 0x10 by=close"));
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((0, 0), (2, 0, 0, 0)));
    let snapshot = after(&format!("{trace}\n 1.1 free 0x10 by=close\n 1.1 free 0x10 by=close"));
    assert_eq!(ends(only(&snapshot)), (2, 1, 0, 0));
}

#[test]
fn end_of_a_context_releases_every_import() {
    let snapshot = after(&format!("{OPENED}\n 1.1 ctx destroy C1 \n 1.1 alloc 0x10 8M imported"));
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((0, 1), (0, 0, 2, 0)));
}

#[test]
fn memory_at_the_address_of_an_import_implies_its_close() {
    let snapshot = after(&format!("{OPENED}\n 1.1 alloc 0x10 8M device C1"));
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((8, 1), (0, 0, 0, 2)));
}

#[test]
fn array_is_device_memory_of_its_context() {
    let trace = "1.1 ctx create C1 gpu0 \n 1.1 alloc a0x10 8M array C1";
    assert_eq!(devices(only(&after(trace))), [(0, 8, 8)]);
    let snapshot = after(&format!("{trace}\n 1.1 free a0x10 by=array"));
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((0, 0), (1, 0, 0, 0)));
    assert_eq!(only(&snapshot).api_misuse.mismatched_frees, 0);
}
