//! Allocations and frees.

use super::*;

#[test]
fn empty_ledger_has_an_empty_snapshot() {
    let snapshot = after("");
    let empty = Snapshot { at: Timestamp(1000), is_live: true, ..Snapshot::default() };
    assert_eq!(snapshot, empty);
    assert!(snapshot.uncertainty.exact());
}

#[test]
fn memory_is_live_until_its_free() {
    let snapshot = after("1.1 alloc 0x10 8M device \n 1.1 alloc 0x20 4M device \n 1.1 free 0x10");
    let process = only(&snapshot);
    assert_eq!(live(process), (4, 1));
    assert_eq!((process.peak_bytes, process.peak_at), (Bytes(12 * MIB), Timestamp(20)));
    assert_eq!((process.allocations_total, ends(process)), (2, (1, 0, 0, 0)));
    assert_eq!((snapshot.live_bytes, snapshot.live_allocations), (Bytes(4 * MIB), 1));
    assert_eq!(snapshot.uncertainty.lost.events(), 0);
}

#[test]
fn free_by_another_thread_ends_the_allocation() {
    let snapshot = after("1.1 alloc 0x10 8M device \n 1.2 free 0x10");
    assert_eq!(live(only(&snapshot)), (0, 0));
    assert!(only(&snapshot).threads.is_empty());
}

#[test]
fn free_in_another_process_does_not_end_the_allocation() {
    let snapshot = after("1.1 alloc 0x10 8M device \n 2.2 free 0x10");
    assert_eq!(live(&snapshot.processes[0]), (8, 1));
    assert_eq!(ends(&snapshot.processes[1]), (0, 1, 0, 0));
}

#[test]
fn free_of_an_unknown_pointer_is_only_counted() {
    let snapshot = after("1.1 alloc 0x10 8M device \n 1.1 free 0x99");
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((8, 1), (0, 1, 0, 0)));
}

#[test]
fn second_free_of_a_pointer_is_unknown() {
    let snapshot = after("1.1 alloc 0x10 8M device \n 1.1 free 0x10 \n 1.1 free 0x10");
    assert_eq!(ends(only(&snapshot)), (1, 1, 0, 0));
}

#[test]
fn pointers_handles_and_arrays_have_separate_keys() {
    let snapshot = after(
        "1.1 alloc 0x10 1M device
         1.1 alloc h0x10 2M physical
         1.1 alloc a0x10 4M array
         1.1 free h0x10",
    );
    assert_eq!(live(only(&snapshot)), (5, 2));
}

#[test]
fn live_bytes_count_device_memory_only() {
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
         1.1 alloc e0x10 32M imported
         1.1 alloc 0x70 32M host_async
         1.1 alloc 0x80 64M static
         1.1 alloc 0x90 32M managed_static
         1.1 alloc 0xa0 32M pageable
         1.1 alloc 0xb0 32M torch
         1.1 alloc 0xc0 32M cupy
         1.1 alloc 0xd0 32M xla
         1.1 alloc 0xe0 32M rmm
         1.1 alloc 0xf0 32M onnxruntime
         1.1 alloc 0x100 32M unknown",
    );
    let process = only(&snapshot);
    assert_eq!(live(process), (111, 21));
    assert_eq!(process.kinds.len(), MemoryKind::COUNT);
    assert!(process.kinds.iter().all(|view| view.live_allocations == 1));
    assert_eq!(process.kinds[5].live_bytes, Bytes(32 * MIB));
    assert_eq!(process.threads[0].live_bytes, Bytes(111 * MIB));
    assert_eq!(process.threads[0].live_allocations, 21);
    // Not memory held by a pool, imported memory, or memory that is counted already.
    assert_eq!(process.not_freed(), Bytes((111 + 7 * 32) * MIB));
}

#[test]
fn peak_follows_the_order_of_events() {
    let snapshot = after(
        "1.1 alloc 0x10 8M device
         1.1 free 0x10
         1.1 alloc 0x20 6M device
         1.1 alloc 0x30 1M device",
    );
    assert_eq!(only(&snapshot).peak_bytes, Bytes(8 * MIB));
    assert_eq!(only(&snapshot).peak_at, Timestamp(10));
}
