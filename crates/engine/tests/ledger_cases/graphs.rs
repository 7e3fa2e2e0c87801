//! Captures, graphs with memory nodes, and their launches.

use super::*;

const CAPTURED: &str = "1.1 ctx create C1 gpu1
                        1.1 graph begin stream3
                        1.1 alloc 0x10 8M async C1 stream3
                        1.1 alloc 0x20 4M async C1 stream3
                        1.1 free 0x20 by=async stream3
                        1.1 graph end stream3 G1
                        1.1 graph instantiate E1 G1";

#[test]
fn capture_creates_nodes_and_no_memory() {
    let snapshot = after(CAPTURED);
    let process = only(&snapshot);
    assert_eq!((live(process), ends(process)), ((0, 0), (0, 0, 0, 0)));
    assert_eq!((process.allocations_total, process.peak_bytes), (0, Bytes(0)));
    assert!(process.pools.is_empty());
}

#[test]
fn launch_leaves_memory_that_its_graph_does_not_free() {
    let snapshot = after(&format!("{CAPTURED}\n 1.7 graph launch E1"));
    let process = only(&snapshot);
    assert_eq!((live(process), process.allocations_total), ((8, 1), 1));
    assert_eq!((process.kinds[0].kind, devices(process)), (MemoryKind::Graph, vec![(1, 8, 8)]));
    assert_eq!(lists(process), [(7, vec![0x10])]);
    assert_eq!(process.peak_bytes, Bytes(8 * MIB));
}

#[test]
fn graph_memory_is_freed_like_other_memory() {
    for free in ["free 0x10", "free 0x10 by=async stream4"] {
        let snapshot = after(&format!("{CAPTURED}\n 1.1 graph launch E1 \n 1.1 {free}"));
        assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((0, 0), (1, 0, 0, 0)));
        assert_eq!(only(&snapshot).api_misuse.mismatched_frees, 0);
    }
}

#[test]
fn graph_memory_outlives_contexts_graphs_and_execs() {
    let snapshot = after(&format!(
        "{CAPTURED}
         1.1 graph launch E1
         1.1 graph drop E1
         1.1 graph destroy G1
         1.1 ctx destroy C1"
    ));
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((8, 1), (0, 0, 0, 0)));
}

#[test]
fn graph_exec_outlives_its_graph() {
    let snapshot = after(&format!("{CAPTURED}\n 1.1 graph destroy G1 \n 1.1 graph launch E1"));
    assert_eq!(live(only(&snapshot)), (8, 1));
    let snapshot = after(&format!("{CAPTURED}\n 1.1 graph drop E1 \n 1.1 graph launch E1"));
    assert_eq!(live(only(&snapshot)), (0, 0));
}

#[test]
fn nodes_can_be_added_one_by_one() {
    let snapshot = after(
        "1.1 graph alloc G1 0x10 8M gpu2
         1.1 graph alloc G1 0x20 4M gpu2
         1.1 graph free G1 0x20
         1.1 graph instantiate E1 G1
         1.1 graph alloc G1 0x30 1M gpu2
         1.1 graph launch E1",
    );
    assert_eq!(devices(only(&snapshot)), [(2, 8, 8)]);
    assert_eq!(lists(only(&snapshot)), [(1, vec![0x10])]);
}

#[test]
fn graph_can_free_memory_of_another_graph() {
    let snapshot = after(&format!(
        "{CAPTURED}
         1.1 graph free G2 0x10
         1.1 graph instantiate E2 G2
         1.1 graph launch E1
         1.1 graph launch E2
         1.1 graph launch E1
         1.1 graph launch E2"
    ));
    let process = only(&snapshot);
    assert_eq!((live(process), ends(process)), ((0, 0), (2, 0, 0, 0)));
    assert_eq!(process.allocations_total, 2);
}

#[test]
fn captured_free_of_graph_memory_happens_at_launch() {
    let trace = format!(
        "{CAPTURED}
         1.1 graph launch E1
         1.1 graph begin stream3
         1.1 free 0x10 by=async stream3
         1.1 graph end stream3 G2
         1.1 graph instantiate E2 G2"
    );
    assert_eq!(live(only(&after(&trace))), (8, 1));
    let snapshot = after(&format!("{trace}\n 1.1 graph launch E2"));
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((0, 0), (1, 0, 0, 0)));
}

#[test]
fn free_of_other_memory_during_a_capture_is_not_a_node() {
    let snapshot = after(
        "1.1 alloc 0x10 8M device
         1.1 alloc 0x20 8M async gpu0 stream4
         1.1 graph begin stream3
         1.1 free 0x10 by=async stream4
         1.1 free 0x20 by=async stream4",
    );
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((0, 0), (2, 0, 0, 0)));
}

#[test]
fn launch_can_free_memory_of_the_previous_launch() {
    let trace = "1.1 graph alloc G1 0x10 8M gpu0
                 1.1 graph instantiate E1 G1 frees
                 1.1 graph launch E1
                 1.1 graph launch E1";
    let snapshot = after(trace);
    let process = only(&snapshot);
    assert_eq!((live(process), ends(process)), ((8, 1), (1, 0, 0, 0)));
    assert_eq!((process.allocations_total, process.peak_bytes), (2, Bytes(8 * MIB)));
    // Without the flag the driver rejects the launch: a free must be in flight.
    let snapshot = after(&trace.replace(" frees", ""));
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((8, 1), (0, 0, 0, 1)));
}

#[test]
fn capture_records_calls_of_all_threads_on_its_stream() {
    let trace = "1.1 graph begin stream3
                 1.2 alloc 0x20 2M async gpu0 stream3
                 1.2 alloc 0x30 4M async gpu0 stream4
                 1.1 alloc 0x40 8M device gpu0
                 1.1 graph end stream3 G1";
    assert_eq!(live(only(&after(trace))), (12, 2));
    let snapshot = after(&format!("{trace}\n 1.1 graph instantiate E1 G1 \n 1.1 graph launch E1"));
    assert_eq!(live(only(&snapshot)), (14, 3));
    let snapshot = after(&format!("{trace}\n 1.1 alloc 0x50 16M async gpu0 stream3"));
    assert_eq!(live(only(&snapshot)), (28, 3));
    assert_eq!(snapshot.uncertainty.ambiguous_calls, 0);
}

#[test]
fn allocation_on_another_stream_of_a_capturing_thread_is_bounded() {
    // Stream 4 may have joined the capture by waiting for an event.
    let trace = "1.1 alloc 0x40 8M device gpu0
                 1.1 graph begin stream3
                 1.1 alloc 0x10 1M async gpu0 stream4
                 1.1 graph end stream3 G1";
    let snapshot = after(trace);
    let uncertainty = &only(&snapshot).uncertainty;
    assert_eq!(snapshot.uncertainty.ambiguous_calls, 1);
    assert_eq!((uncertainty.ambiguous_calls, bounds(uncertainty)), (1, (8, 9)));
    assert_eq!(live(only(&snapshot)), (8, 1));
    // At one address one allocation is live at most.
    let again = "1.1 graph begin stream3
                 1.1 alloc 0x10 2M async gpu0 stream4";
    let snapshot = after(&format!("{trace}\n{again}"));
    assert_eq!(bounds(&snapshot.uncertainty), (8, 10));
    let snapshot = after(&format!("{trace}\n{again}\n 1.2 alloc 0x10 1M device gpu0"));
    assert_eq!(bounds(&snapshot.uncertainty), (9, 10));
}

#[test]
fn free_on_another_stream_of_a_capturing_thread_is_bounded() {
    let trace = "1.1 graph alloc G1 0x10 8M gpu0
                 1.1 graph instantiate E1 G1
                 1.1 graph launch E1
                 1.1 alloc 0x40 2M async gpu0 stream4
                 1.1 graph begin stream3";
    // Other memory than that of graphs cannot be freed by a node.
    let snapshot = after(&format!("{trace}\n 1.1 free 0x40 by=async stream4"));
    assert_eq!((live(only(&snapshot)), snapshot.uncertainty.ambiguous_calls), ((8, 1), 0));
    let snapshot = after(&format!("{trace}\n 1.1 free 0x10 by=async stream4"));
    assert_eq!((live(only(&snapshot)), bounds(&snapshot.uncertainty)), ((10, 2), (2, 10)));
    assert_eq!(snapshot.uncertainty.ambiguous_calls, 1);
}

#[test]
fn default_stream_is_per_thread() {
    let snapshot = after(
        "1.1 graph begin stream0
         1.2 graph begin stream0
         1.1 alloc 0x10 1M async gpu0 stream0
         1.2 alloc 0x20 2M async gpu0 stream0
         1.3 alloc 0x30 4M async gpu0 stream0
         1.2 graph end stream0 G2
         1.2 alloc 0x40 8M async gpu0 stream0
         1.1 graph end stream0 G1
         1.1 graph instantiate E1 G1
         1.1 graph launch E1",
    );
    assert_eq!(lists(only(&snapshot)), [(2, vec![0x40]), (3, vec![0x30]), (1, vec![0x10])]);
    let snapshot = after(
        "1.1 alloc 0x1 1M device gpu0
         1.2 graph begin stream2
         1.2 exit
         1.2 alloc 0x10 2M async gpu0 stream2",
    );
    assert_eq!(live(only(&snapshot)), (3, 2));
}

#[test]
fn capture_continues_after_its_thread_exits() {
    let snapshot = after(
        "1.1 alloc 0x1 1M device gpu0
         1.2 graph begin stream3
         1.2 exit
         1.2 alloc 0x10 2M async gpu0 stream4
         1.1 alloc 0x20 4M async gpu0 stream3",
    );
    assert_eq!(live(only(&snapshot)), (3, 2));
}

#[test]
fn failed_capture_leaves_nothing() {
    let snapshot = after(
        "1.1 graph begin stream3
         1.1 alloc 0x10 1M async gpu0 stream3
         1.1 graph end stream3
         1.1 alloc 0x20 2M async gpu0 stream3",
    );
    assert_eq!((live(only(&snapshot)), only(&snapshot).allocations_total), ((2, 1), 1));
}

#[test]
fn capture_can_add_to_a_graph() {
    let snapshot = after(
        "1.1 graph alloc G1 0x10 1M gpu0
         1.1 graph begin stream3 G1
         1.1 alloc 0x20 2M async gpu0 stream3
         1.1 graph end stream3 G1
         1.1 graph instantiate E1 G1
         1.1 graph launch E1",
    );
    assert_eq!(live(only(&snapshot)), (3, 2));
}

#[test]
fn reused_graph_handle_has_its_own_nodes() {
    let snapshot = after(
        "1.1 graph alloc G1 0x10 1M gpu0
         1.1 graph begin stream3
         1.1 alloc 0x20 2M async gpu0 stream3
         1.1 graph end stream3 G1
         1.1 graph instantiate E1 G1
         1.1 graph launch E1",
    );
    assert_eq!(lists(only(&snapshot)), [(1, vec![0x20])]);
    // The end of the older ones arrives late.
    let snapshot = after(
        "1.1 graph alloc G1 0x10 1M gpu0 @1-2
         1.1 graph instantiate E1 G1 @3-4
         1.2 graph alloc G1 0x20 2M gpu0 @30-40
         1.1 graph destroy G1 @20-50
         1.2 graph instantiate E1 G1 @51-60
         1.1 graph drop E1 @55-70
         1.2 graph launch E1 @71-72",
    );
    assert_eq!(lists(only(&snapshot)), [(2, vec![0x20])]);
}

#[test]
fn node_at_a_live_address_implies_its_free() {
    let captured = "1.1 graph begin stream3 @21-22 \n 1.1 alloc 0x10 4M async gpu0 stream3 @40-60";
    let added = "1.1 graph alloc G1 0x10 4M gpu0 @40-60";
    for node in [captured, added] {
        let trace = format!("1.2 alloc 0x10 8M device @10-20 \n {node}");
        let snapshot = after(&trace);
        assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((0, 0), (0, 0, 0, 1)));
        let snapshot = after(&format!("{trace} \n 1.2 free 0x10 @50-70"));
        assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((0, 0), (1, 0, 0, 0)));
    }
}

#[test]
fn nodes_from_a_pool_are_on_its_device() {
    let snapshot = after(
        "1.1 ctx create C1 gpu0
         1.1 pool create pool5 gpu1
         1.1 pool create pool6 host
         1.1 graph begin stream3
         1.1 alloc 0x10 1M async C1 pool5 stream3
         1.1 alloc 0x20 2M async C1 pool6 stream3
         1.1 alloc 0x30 4M async C9 stream3
         1.1 graph end stream3 G1
         1.1 graph instantiate E1 G1
         1.1 graph launch E1",
    );
    let process = only(&snapshot);
    assert_eq!((live(process), devices(process)), ((5, 3), vec![(1, 1, 1), (-1, 4, 4)]));
    assert_eq!(process.kinds[1].kind, MemoryKind::HostAsync);
}

#[test]
fn graph_reserved_is_as_reported_until_trimmed() {
    let trace = "1.1 graph reserved gpu1 64M";
    let reserved_by_driver = |trace: &str| {
        let snapshot = after(trace);
        let views = only(&snapshot).devices.iter();
        views.map(|view| (view.device, view.graph_reserved)).collect::<Vec<_>>()
    };
    let reserved = DriverReported { bytes: Bytes(64 * MIB), at: Timestamp(10) };
    assert_eq!(reserved_by_driver(trace), [(Some(DeviceId(1)), Some(reserved))]);
    assert!(reserved_by_driver(&format!("{trace}\n 1.1 graph trim gpu1")).is_empty());
}

#[test]
fn captures_beyond_the_limit_are_dropped() {
    let trace: String = (1..1030).map(|n| format!("1.1 graph begin stream{n}\n")).collect();
    let snapshot = after(&trace);
    assert_eq!(only(&snapshot).uncertainty.lost.other, 5);
    assert!(!snapshot.uncertainty.exact());
}
