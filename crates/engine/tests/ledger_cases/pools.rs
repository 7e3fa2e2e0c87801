//! Memory pools and stream-ordered memory.

use super::*;

/// Pools with their device, used MiB, allocations and reported reserved MiB; -1 means none.
fn pools(process: &ProcessView) -> Vec<(i64, i64, u64, u64, i64)> {
    let all = process.pools.iter();
    all.map(|view| {
        (
            view.pool.map_or(-1, |pool| pool.0 as i64),
            view.device.map_or(-1, |device| i64::from(device.0)),
            view.used.0 / MIB,
            view.allocations,
            view.reserved.map_or(-1, |reserved| (reserved.bytes.0 / MIB) as i64),
        )
    })
    .collect()
}

#[test]
fn stream_ordered_memory_is_device_memory_of_its_pool() {
    let snapshot = after(
        "1.1 ctx create C1 gpu0
         1.1 pool create pool5 gpu1
         1.1 alloc 0x10 8M async C1 pool5 stream1
         1.1 alloc 0x20 4M async C1 pool5 stream1
         1.1 alloc 0x30 1M async C1 pool5 stream1
         1.1 free 0x30 by=async",
    );
    let process = only(&snapshot);
    assert_eq!((live(process), devices(process)), ((12, 2), vec![(1, 12, 13)]));
    assert_eq!(pools(process), [(5, 1, 12, 2, -1)]);
}

#[test]
fn unnamed_pool_is_the_current_or_default_pool() {
    let snapshot = after(
        "1.1 ctx create C1 gpu0
         1.1 pool create pool5 gpu0
         1.1 alloc 0x10 1M async C1
         1.1 alloc 0x20 2M async C1 gpu3
         1.1 pool of pool5 gpu0 current
         1.1 alloc 0x30 4M async C1
         1.1 pool destroy pool5
         1.1 alloc 0x40 8M async C1",
    );
    let process = only(&snapshot);
    assert_eq!(pools(process), [(-1, 0, 9, 2, -1), (5, 0, 4, 1, -1), (-1, 3, 2, 1, -1)]);
    assert!(process.pools[1].destroyed);
}

#[test]
fn default_pool_gets_its_handle_when_reported() {
    for call in ["pool of pool7 gpu0", "pool of pool7 gpu0 current"] {
        let snapshot = after(&format!(
            "1.1 alloc 0x10 1M async gpu0
             1.1 alloc 0x20 2M async gpu1
             1.1 {call}
             1.1 alloc 0x30 4M async gpu0
             1.1 alloc 0x40 8M async pool7"
        ));
        let process = only(&snapshot);
        assert_eq!(pools(process), [(7, 0, 13, 3, -1), (-1, 1, 2, 1, -1)]);
        assert_eq!(devices(process), [(0, 13, 13), (1, 2, 2)]);
    }
}

#[test]
fn host_pool_allocates_host_memory() {
    let snapshot = after(
        "1.1 ctx create C1 gpu0
         1.1 pool create pool5 host
         1.1 alloc 0x10 8M async C1 pool5",
    );
    let process = only(&snapshot);
    assert_eq!((live(process), process.kinds[0].kind), ((0, 1), MemoryKind::HostAsync));
    assert_eq!(process.threads[0].allocations[0].device, None);
    assert_eq!(pools(process), [(5, -1, 8, 1, -1)]);
}

#[test]
fn pools_outlive_contexts() {
    let snapshot = after(
        "1.1 process 100
         1.1 ctx retain C1 gpu0
         1.1 ctx create C2 gpu0
         1.1 alloc 0x10 1M async C1
         1.1 alloc 0x20 2M async C2
         1.1 alloc 0x30 4M device C2
         1.1 ctx destroy C2
         1.1 ctx reset gpu0
         1.1 ctx release gpu0",
    );
    let process = only(&snapshot);
    assert_eq!((live(process), ends(process)), ((3, 2), (0, 0, 1, 0)));
    assert_eq!(pools(process), [(-1, 0, 3, 2, -1)]);
}

#[test]
fn destroyed_pool_is_listed_until_its_last_free() {
    let trace = "1.1 pool create pool5 gpu0
                 1.1 pool reserved pool5 32M
                 1.1 alloc 0x10 8M async pool5
                 1.1 pool destroy pool5";
    let snapshot = after(trace);
    assert_eq!(pools(only(&snapshot)), [(5, 0, 8, 1, 32)]);
    assert!(only(&snapshot).pools[0].destroyed);
    let snapshot = after(&format!("{trace}\n 1.1 free 0x10"));
    assert!(only(&snapshot).pools.is_empty());
    let created = "1.1 pool create pool5 gpu1\n 1.1 pool reserved pool5 1M";
    let snapshot = after(&format!("{trace}\n {created}"));
    assert_eq!(pools(only(&snapshot)), [(5, 0, 8, 1, 32), (5, 1, 0, 0, 1)]);
}

#[test]
fn late_destroy_does_not_affect_the_newer_pool() {
    let snapshot = after(
        "1.1 pool create pool5 gpu0 @5-10
         1.2 pool create pool5 gpu1 @30-40
         1.2 alloc 0x10 1M async pool5 @41-42
         1.1 pool destroy pool5 @20-50",
    );
    assert_eq!(pools(only(&snapshot)), [(5, 1, 1, 1, -1)]);
    assert!(!only(&snapshot).pools[0].destroyed);
}

#[test]
fn pool_reserved_is_as_reported_until_trimmed() {
    let trace = "1.1 pool of pool5 gpu0
                 1.1 pool reserved pool5 32M
                 1.1 pool reserved pool5 64M @25-30";
    let snapshot = after(trace);
    assert_eq!(pools(only(&snapshot)), [(5, 0, 0, 0, 64)]);
    assert_eq!(only(&snapshot).pools[0].reserved.unwrap().at, Timestamp(30));
    assert_eq!(live(only(&snapshot)), (0, 0));
    let snapshot = after(&format!("{trace}\n 1.1 pool trim pool5"));
    assert!(only(&snapshot).pools.is_empty());
}

#[test]
fn late_pools_and_devices_apply_to_older_memory() {
    let trace = "1.1 alloc 0x10 1M async C1
                 1.1 alloc 0x20 2M async C2
                 1.1 alloc 0x30 4M async C1 pool6
                 1.1 alloc 0x40 8M async";
    let snapshot = after(trace);
    assert_eq!(pools(only(&snapshot)), [(6, -1, 4, 1, -1), (-1, -1, 11, 3, -1)]);
    let snapshot = after(&format!("{trace}\n 1.1 ctx learn C1 gpu1 \n 1.1 pool of pool6 gpu2"));
    let process = only(&snapshot);
    assert_eq!(pools(process), [(-1, 1, 1, 1, -1), (6, 2, 4, 1, -1), (-1, -1, 10, 2, -1)]);
    assert_eq!(devices(process), [(1, 1, 1), (2, 4, 4), (-1, 10, 15)]);
}

#[test]
fn memory_of_an_unknown_context_is_not_on_the_next_device() {
    for end in ["1.1 ctx destroy C1", ""] {
        let snapshot = after(&format!(
            "1.1 alloc 0x10 1M async C1
             {end}
             1.1 ctx create C1 gpu1
             1.1 alloc 0x20 2M async C1"
        ));
        assert_eq!(pools(only(&snapshot)), [(-1, 1, 2, 1, -1), (-1, -1, 1, 1, -1)]);
    }
}
