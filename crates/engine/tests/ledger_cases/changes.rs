//! Change log of the ledger, for each way in which memory starts and ends.

use engine::ledger::Ledger;
use engine::model::change::{AllocationChange, ChangeKind, EndReason, LateFields};
use engine::model::ids::{DeviceId, PoolId, SiteId, StreamId, Tid};
use engine::model::units::Timestamp;

use super::MIB;
use super::notation::events;

/// Returns the changes of a trace.
fn changes(trace: &str) -> Vec<AllocationChange> {
    let mut ledger = Ledger::with_change_log();
    let mut changes = Vec::new();
    for event in events(trace) {
        ledger.apply(&event);
        ledger.drain_changes(&mut changes);
    }
    changes
}

/// Formats changes briefly: `+` for an allocation, or the end reason, and the address.
fn short(trace: &str) -> Vec<String> {
    let describe = |change: &AllocationChange| {
        let action = match change.action {
            ChangeKind::Allocated => "+",
            ChangeKind::Ended { reason: EndReason::Freed, .. } => "freed ",
            ChangeKind::Ended { reason: EndReason::Replaced, .. } => "replaced ",
            ChangeKind::Ended { reason: EndReason::Released, .. } => "released ",
            ChangeKind::Ended { reason: EndReason::ProcessExited, .. } => "exited ",
            ChangeKind::Updated { .. } => "learned ",
        };
        format!("{action}{:x}", change.key.value)
    };
    changes(trace).iter().map(describe).collect()
}

#[test]
fn end_repeats_the_fields_of_its_allocation() {
    let all = changes(
        "7.8 pool create pool5 gpu1
         7.8 alloc 0x10 8M async pool5 stream3 site4
         7.9 free 0x10 by=async stream6",
    );
    let [allocated, ended] = all[..] else { panic!("{all:?}") };
    assert_eq!((allocated.at, ended.at), (Timestamp(20), Timestamp(30)));
    assert_eq!(
        ended.action,
        ChangeKind::Ended { allocated_at: Timestamp(20), reason: EndReason::Freed }
    );
    assert_eq!(AllocationChange { at: allocated.at, action: allocated.action, ..ended }, allocated);
    assert_eq!(
        (allocated.tid, allocated.device, allocated.bytes),
        (Tid(8), Some(DeviceId(1)), 8 * MIB)
    );
    assert_eq!((allocated.pool, allocated.stream), (Some(PoolId(5)), Some(StreamId(3))));
    assert_eq!(allocated.site, Some(SiteId(4)));
}

#[test]
fn end_reasons_are_distinguished() {
    let replaced = "7 alloc 0x10 8M device\n 7 alloc 0x10 4M device\n 7 free 0x10 @7-30";
    assert_eq!(short(replaced), ["+10", "replaced 10", "+10"]);
    let released = "7 ctx create C1 gpu0\n 7 alloc 0x10 8M device C1\n 7 ctx destroy C1";
    assert_eq!(short(released), ["+10", "released 10"]);
    assert_eq!(short("7 alloc 0x10 8M pinned\n 7 exit"), ["+10", "exited 10"]);
    assert_eq!(short("7 alloc 0x10 8M device\n 7 exec\n 7 exit"), ["+10", "exited 10"]);
    let another = "7 process 100\n 7 alloc 0x10 8M device\n 7 process 200\n 7 exit";
    assert_eq!(short(another), ["+10", "exited 10"]);
}

#[test]
fn physical_memory_ends_with_its_last_mapping() {
    let trace = "7 vmm create h0x1 8M gpu0
         7 vmm map 0x100 8M h0x1
         7 vmm release h0x1
         7 vmm unmap 0x100 8M";
    assert_eq!(short(trace), ["+1", "freed 1"]);
    assert_eq!(changes(trace)[1].at, Timestamp(40));
}

#[test]
fn launches_log_what_they_allocate_and_free() {
    let trace = "7 graph alloc G1 0x10 8M gpu0
         7 graph instantiate E1 G1 frees
         7 graph launch E1
         7 graph launch E1
         7 free 0x10 by=async";
    assert_eq!(short(trace), ["+10", "freed 10", "+10", "freed 10"]);
}

#[test]
fn late_device_is_logged_with_the_previous_fields() {
    let all = changes(
        "7 alloc 0x10 8M device C1
         7 ctx learn C1 gpu1
         7 free 0x10",
    );
    let [allocated, updated, ended] = all[..] else { panic!("{all:?}") };
    assert_eq!(allocated.device, None);
    let before = LateFields { device: None, pool: None, bytes: 8 * MIB };
    assert_eq!(updated.action, ChangeKind::Updated { allocated_at: allocated.at, before });
    assert_eq!((updated.at, updated.device), (Timestamp(20), Some(DeviceId(1))));
    assert_eq!(ended.late_fields(), updated.late_fields());
}

#[test]
fn late_pool_and_late_import_size_are_logged() {
    let all = changes(
        "7 alloc 0x10 8M async gpu0
         7 pool of pool5 gpu0
         7 vmm import h0x1
         7 vmm map 0x100 4M h0x1",
    );
    let [_, pool, import, size] = all[..] else { panic!("{all:?}") };
    assert_eq!(pool.pool, Some(PoolId(5)));
    assert!(matches!(
        pool.action,
        ChangeKind::Updated { before: LateFields { pool: None, .. }, .. }
    ));
    assert_eq!((import.bytes, size.bytes), (0, 4 * MIB));
    assert!(matches!(size.action, ChangeKind::Updated { before: LateFields { bytes: 0, .. }, .. }));
}

#[test]
fn change_times_never_go_backwards() {
    let all = changes(
        "7.8 alloc 0x10 8M device @90-100
         7.9 alloc 0x20 8M device @10-50
         7.9 free 0x20 @101-120",
    );
    let at: Vec<_> = all.iter().map(|change| change.at.0).collect();
    assert_eq!(at, [100, 100, 120]);
    assert_eq!(
        all[2].action,
        ChangeKind::Ended { allocated_at: Timestamp(50), reason: EndReason::Freed }
    );
}

#[test]
fn ledger_without_change_log_has_no_changes() {
    let mut ledger = super::ledger("7 alloc 0x10 8M device\n 7 exit");
    let mut changes = Vec::new();
    ledger.drain_changes(&mut changes);
    assert!(changes.is_empty());
}

#[test]
fn end_of_a_large_context_logs_every_allocation() {
    let mut trace = String::from("7 ctx create C1 gpu0\n");
    for address in 1..=1500 {
        trace += &format!("7 alloc 0x{address:x} 1K device C1\n");
    }
    trace += "7 ctx destroy C1\n";
    let all = changes(&trace);
    assert_eq!(all.len(), 3000);
    let released = |change: &&AllocationChange| {
        matches!(change.action, ChangeKind::Ended { reason: EndReason::Released, .. })
            && change.at == Timestamp(15020)
    };
    assert_eq!(all.iter().filter(released).count(), 1500);
}
