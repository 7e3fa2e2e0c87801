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

const SHARED: &str = "1 process 100 name=producer
                      2 process 200 name=consumer
                      1.1 alloc 0x10 8M device gpu0
                      1.1 export 0x10 share5
                      2.2 alloc 0x20 0 imported
                      2.2 import 0x20 share5";

/// Returns the lines on shared memory of a process: the role, the peer, MiB, allocations, and whether
/// the importer keeps the memory alive.
fn shared(snapshot: &Snapshot, pid: u32) -> Vec<(&'static str, Option<u32>, u64, u64, bool)> {
    let process = snapshot.processes.iter().find(|process| process.key.pid == Pid(pid)).unwrap();
    let row = |row: &SharedMemoryView| {
        let peer = row.peer.as_ref().map(|(pid, _)| pid.0);
        (row.role.name(), peer, row.bytes.0 / MIB, row.allocations, row.kept_alive)
    };
    process.shared_memory.iter().map(row).collect()
}

#[test]
fn import_has_size_and_pid_of_its_exporter() {
    let snapshot = after(SHARED);
    assert_eq!(shared(&snapshot, 1), [("exporter", Some(2), 8, 1, false)]);
    assert_eq!(shared(&snapshot, 2), [("importer", Some(1), 8, 1, false)]);
    let consumer = &snapshot.processes[1];
    assert_eq!((live(consumer), consumer.kinds[0].live_bytes), ((0, 1), Bytes(8 * MIB)));
    assert_eq!(consumer.kinds[0].unknown_sizes, 0);
    assert_eq!(&*consumer.shared_memory[0].peer.as_ref().unwrap().1, "producer");
    let closed = after(&format!("{SHARED}\n 2.2 free 0x20 by=close"));
    assert_eq!((shared(&closed, 1), shared(&closed, 2)), (vec![], vec![]));
}

#[test]
fn importer_keeps_memory_alive_that_its_exporter_freed() {
    let freed = after(&format!("{SHARED}\n 1.1 free 0x10"));
    assert_eq!(shared(&freed, 1), [("exporter", Some(2), 8, 1, true)]);
    assert_eq!(shared(&freed, 2), [("importer", Some(1), 8, 1, true)]);
    let reused = after(&format!("{SHARED}\n 1.1 free 0x10\n 1.1 alloc 0x10 2M device gpu0"));
    assert_eq!(shared(&reused, 2), [("importer", Some(1), 8, 1, true)]);
    let exited = after(&format!("{SHARED}\n 1 exit"));
    assert_eq!(shared(&exited, 2), [("importer", Some(1), 8, 1, true)]);
    assert_eq!(shared(&exited, 1), [("exporter", Some(2), 8, 1, false)], "as of its exit");
    let both = after(&format!("{SHARED}\n 2 exit\n 1 exit"));
    assert_eq!(shared(&both, 2), [("importer", Some(1), 8, 1, false)]);
    assert_eq!(shared(&both, 1), []);
}

#[test]
fn import_that_is_seen_before_its_export_is_linked() {
    let snapshot = after(
        "2.2 alloc 0x20 0 imported
         2.2 import 0x20 share5
         1.1 alloc 0x10 8M device gpu0
         1.1 export 0x10 share5",
    );
    assert_eq!(shared(&snapshot, 2), [("importer", Some(1), 8, 1, false)]);
    assert_eq!(shared(&snapshot, 1), [("exporter", Some(2), 8, 1, false)]);
}

#[test]
fn physical_memory_is_shared_by_several_handles() {
    let trace = "1.1 vmm create h0x10 8M gpu0
                 1.1 export h0x10 share5
                 1.1 export h0x10 share6
                 2.2 vmm import h0x20
                 2.2 import h0x20 share5
                 3.3 vmm import h0x30
                 3.3 import h0x30 share6
                 3.3 export h0x30 share7
                 2.2 vmm import h0x40
                 2.2 import h0x40 share7
                 1.1 vmm release h0x10";
    let snapshot = after(trace);
    let rows = [("exporter", Some(2), 16, 2, true), ("exporter", Some(3), 8, 1, true)];
    assert_eq!(shared(&snapshot, 1), rows);
    assert_eq!(shared(&snapshot, 2), [("importer", Some(1), 16, 2, true)]);
    assert_eq!(shared(&snapshot, 3), [("importer", Some(1), 8, 1, true)]);
}

#[test]
fn import_without_a_traced_exporter_has_no_peer() {
    let snapshot = after("2.2 alloc 0x20 0 imported\n 2.2 import 0x20 share5");
    assert_eq!(shared(&snapshot, 2), [("importer", None, 0, 1, false)]);
    assert_eq!(snapshot.processes[0].shared_memory[0].unknown_sizes, 1);
    // The memory is that of the process itself.
    let own = after(
        "1.1 vmm create h0x10 8M gpu0\n 1.1 export h0x10 share5\n 1.1 vmm import h0x20\n 1.1 import h0x20 share5",
    );
    assert_eq!(shared(&own, 1), []);
}

#[test]
fn name_that_is_used_again_links_to_the_newest_export() {
    let trace = "1.1 alloc 0x10 8M device gpu0
                 1.1 export 0x10 share5
                 1.1 free 0x10
                 3.3 alloc 0x30 2M device gpu0
                 3.3 export 0x30 share5
                 2.2 alloc 0x20 0 imported
                 2.2 import 0x20 share5";
    assert_eq!(shared(&after(trace), 2), [("importer", Some(3), 2, 1, false)]);
}

#[test]
fn array_is_device_memory_of_its_context() {
    let trace = "1.1 ctx create C1 gpu0 \n 1.1 alloc a0x10 8M array C1";
    assert_eq!(devices(only(&after(trace))), [(0, 8, 8)]);
    let snapshot = after(&format!("{trace}\n 1.1 free a0x10 by=array"));
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((0, 0), (1, 0, 0, 0)));
    assert_eq!(only(&snapshot).api_misuse.mismatched_frees, 0);
}
