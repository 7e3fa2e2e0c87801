//! Failed calls.

use super::*;

#[test]
fn failures_are_counted_by_function_and_code() {
    let snapshot = after(
        "1.1 fail f5 700
         1.1 fail f6 1 device 1M
         1.1 fail f5 1
         1.1 fail f6 1 device 1M
         1.1 alloc 0x10 1M device",
    );
    let process = only(&snapshot);
    let list: Vec<_> = process.failures.iter().map(|f| (f.function.0, f.code, f.count)).collect();
    assert_eq!(list, [(6, 1, 2), (5, 1, 1), (5, 700, 1)]);
    assert_eq!((process.failed_allocations, process.allocations_total), (2, 1));
    assert!(snapshot.out_of_memory.is_empty());
}

#[test]
fn out_of_memory_lists_holders_at_that_time() {
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
    let snapshot = ledger.snapshot(Timestamp(1000), &SnapshotOptions::default());
    let oom = &snapshot.out_of_memory[0];
    assert_eq!((oom.at, oom.pid, oom.tid.0, &*oom.name), (Timestamp(80), Pid(1), 4, "small"));
    assert_eq!(
        (oom.device, oom.requested),
        (Some(DeviceId(0)), Some((MemoryKind::Device, Bytes(1 << 30))))
    );
    let holders: Vec<_> =
        oom.holders.iter().map(|(pid, name, bytes)| (pid.0, &**name, bytes.0 / MIB)).collect();
    assert_eq!(holders, [(2, "big", 8), (1, "small", 1)]);
    assert!(ledger.snapshot(Timestamp(1001), &SnapshotOptions::default()).out_of_memory.is_empty());
}

#[test]
fn out_of_memory_on_an_unknown_device_lists_all_holders() {
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
fn out_of_memory_in_a_non_allocating_call_is_only_counted() {
    let snapshot = after("1.1 fail f5 2");
    assert!(snapshot.out_of_memory.is_empty());
    assert_eq!(only(&snapshot).failed_allocations, 0);
}

#[test]
fn first_64_out_of_memory_errors_are_kept() {
    let trace = "1.1 fail f5 2 device 1G\n".repeat(100);
    let snapshot = after(&trace);
    assert_eq!(snapshot.out_of_memory.len(), 64);
    assert_eq!(snapshot.out_of_memory[63].at, Timestamp(640));
    assert_eq!(only(&snapshot).failed_allocations, 100);
}
