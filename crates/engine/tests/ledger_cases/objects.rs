//! CUDA objects other than memory.

use super::*;
use engine::model::cuda_object::ObjectKind;
use engine::snapshot::{ObjectView, SiteView};

/// Live, created, destroyed, released, peak, and destroyed without a known creation.
fn counts(process: &ProcessView, kind: ObjectKind) -> (u64, u64, u64, u64, u64, u64) {
    let view = process.objects.iter().find(|view| view.kind == kind);
    let ObjectView { live, created, destroyed, released, peak, unknown_destroys, .. } =
        *view.unwrap_or_else(|| panic!("no {kind:?} in {:?}", process.objects));
    (live, created, destroyed, released, peak, unknown_destroys)
}

#[test]
fn objects_are_counted_by_kind_and_not_as_memory() {
    let snapshot = after(
        "1.1 create stream 0x10 C1 site1
         1.1 create stream 0x20 C1 site1
         1.1 create event 0x10 C1 site2
         1.1 destroy stream 0x10
         1.1 alloc 0x10 1M device C1 site1",
    );
    let process = only(&snapshot);
    assert_eq!(counts(process, ObjectKind::Stream), (1, 2, 1, 0, 2, 0));
    assert_eq!(counts(process, ObjectKind::Event), (1, 1, 0, 0, 1, 0));
    assert_eq!(process.objects.len(), 2);
    assert_eq!((live(process), ends(process)), ((1, 1), (0, 0, 0, 0)));
    assert_eq!((process.allocations_total, process.kinds.len()), (1, 1));
    assert_eq!((snapshot.allocations_total, snapshot.without_stack), (1, 0));
}

#[test]
fn site_separates_memory_and_objects() {
    let snapshot = after(
        "1.1 alloc 0x10 1M device site1 @100
         1.1 create event 0x10 site1 @200
         1.1 create event 0x20 site1 @300
         1.1 destroy event 0x20 @400
         1.1 create stream 0x10 site2 @500
         1.1 create stream 0x20 @600",
    );
    let [first, second, third] = &snapshot.sites[..] else { panic!("{:?}", snapshot.sites) };
    let objects = |site: &SiteView| {
        let all = site.objects.iter();
        all.map(|view| (view.kind, view.live, view.created, view.destroyed)).collect::<Vec<_>>()
    };
    assert_eq!(objects(first), [(ObjectKind::Event, 1, 2, 1)]);
    assert_eq!((first.live_allocations, first.allocations_total, first.freed_total), (1, 1, 0));
    assert_eq!((first.seen, &first.lifetimes[..]), ((Timestamp(100), Timestamp(100)), &[][..]));
    assert_eq!(objects(second), [(ObjectKind::Stream, 1, 1, 0)]);
    assert_eq!((second.live_bytes.0, second.live_allocations), (0, 0));
    assert_eq!((&second.kinds[..], second.seen), (&[][..], (Timestamp(500), Timestamp(500))));
    assert_eq!(objects(third), [(ObjectKind::Stream, 1, 1, 0)]);
    assert_eq!((snapshot.allocations_total, snapshot.without_stack), (1, 0));
}

#[test]
fn sites_are_listed_by_objects_and_by_memory() {
    let options = SnapshotOptions { top_sites: 1, ..SnapshotOptions::default() };
    let trace = "1.1 alloc 0x10 4M device site1
                 1.1 alloc 0x20 2M device site2
                 1.1 create event 0x10 site3
                 1.1 create event 0x20 site4
                 1.1 create event 0x30 site4";
    let snapshot = snapshot_at(trace, 1000, &options);
    let names: Vec<_> = snapshot.sites.iter().map(|site| site.name.to_string()).collect();
    assert_eq!(names, ["pending-1", "pending-4"]);
    assert_eq!(snapshot.sites_total, 4);
}

#[test]
fn end_of_a_context_ends_only_its_objects() {
    let of_context = ["stream", "event", "module", "texture", "surface", "linker"];
    let others = ["graph", "graph_exec", "library", "context", "green_context", "pool"];
    let created = |kind: &&str| format!("1.1 create {kind} 0x10 C1\n 1.1 create {kind} 0x20 C2\n");
    let all: String = of_context.iter().chain(&others).map(created).collect();
    let ends = [
        ("1.1 ctx create C1 gpu0", "1.1 ctx destroy C1"),
        ("1.1 ctx retain C1 gpu0", "1.1 ctx release gpu0"),
        ("1.1 ctx retain C1 gpu0", "1.1 ctx reset gpu0"),
    ];
    for (begin, end) in ends {
        let snapshot = after(&format!("1.1 process 9\n {begin}\n {all} {end}"));
        for kind in ObjectKind::ALL {
            let expected = if of_context.contains(&kind.name()) {
                (1, 2, 0, 1, 2, 0)
            } else {
                (2, 2, 0, 0, 2, 0)
            };
            assert_eq!(counts(only(&snapshot), kind), expected, "{kind:?} after {end}");
        }
    }
}

#[test]
fn end_of_an_unknown_context_ends_its_objects() {
    let snapshot = after("1.1 create event 0x10 C1 \n 1.1 ctx destroy C1");
    assert_eq!(counts(only(&snapshot), ObjectKind::Event), (0, 1, 0, 1, 1, 0));
}

#[test]
fn destroy_of_an_unknown_object_is_only_counted() {
    let snapshot = after("1.1 destroy event 0x10 \n 1.1 create event 0x20");
    assert_eq!(counts(only(&snapshot), ObjectKind::Event), (1, 1, 0, 0, 1, 1));
}

#[test]
fn handle_reused_before_its_destroy_is_a_new_object() {
    let trace = "1.1 create event 0x10 site1 @0-10
                 1.2 create event 0x10 site2 @30-40";
    assert_eq!(counts(only(&after(trace)), ObjectKind::Event), (1, 2, 0, 0, 1, 0));
    let late = format!("{trace}\n 1.1 destroy event 0x10 @20-50");
    assert_eq!(counts(only(&after(&late)), ObjectKind::Event), (1, 2, 1, 0, 1, 0));
    let both = format!("{late}\n 1.1 destroy event 0x10 @60-70");
    assert_eq!(counts(only(&after(&both)), ObjectKind::Event), (0, 2, 2, 0, 1, 0));
}

#[test]
fn exec_ends_objects_and_exit_lists_undestroyed_ones() {
    let mut ledger = ledger("1.1 create stream 0x10 \n 1.1 exec \n 1.1 create event 0x10");
    let snapshot = ledger.snapshot(Timestamp(100), &SnapshotOptions::default());
    let kinds = |view: &ProcessView| view.objects.iter().map(|o| o.kind).collect::<Vec<_>>();
    let all: Vec<_> = snapshot.processes.iter().map(|p| (p.ended, kinds(p))).collect();
    assert_eq!(
        all,
        [(None, vec![ObjectKind::Event]), (Some(ProcessEnd::Exec), vec![ObjectKind::Stream])]
    );
    for event in events("1.1 exit @200-200") {
        ledger.apply(&event);
    }
    let last = ledger.snapshot(Timestamp(300), &SnapshotOptions::default());
    assert_eq!(counts(only(&last), ObjectKind::Event), (1, 1, 0, 0, 1, 0));
}

#[test]
fn lost_records_of_objects_leave_memory_exact() {
    let snapshot = after("1.1 process 9 \n 1.1 alloc 0x10 1M device \n 1.1 lost objects=3");
    let uncertainty = &only(&snapshot).uncertainty;
    assert_eq!((uncertainty.lost.objects, uncertainty.lost.events()), (3, 0));
    assert!(uncertainty.exact() && snapshot.uncertainty.exact());
    assert_eq!(bounds(uncertainty), (1, 1));
}
