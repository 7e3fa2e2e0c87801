//! Measurements between two points in time.

use engine::ledger::{Ledger, MeasurementId};
use engine::model::event::{Event, EventKind};
use engine::model::ids::Tid;
use engine::snapshot::{KeptSite, Measurement};
use engine::view::View;

use super::*;

/// Applies the lines of a trace; `begin` and `end` stand for a measurement of process 1. Returns the
/// measurement.
fn measure(trace: &str) -> Measurement {
    let (before, rest) = trace.split_once("begin").unwrap();
    let (during, after) = rest.split_once("end").unwrap();
    let mut ledger = Ledger::new();
    // One clock for all parts: the lines of the measurement are numbered as in the whole trace.
    let all = events(&format!("{before}{during}{after}"));
    let count = |part: &str| events(part).len();
    let (first, second) = (count(before), count(before) + count(during));
    let at = |events: &[Event]| events.last().map_or(Timestamp(1), |event| event.time);
    all[..first].iter().for_each(|event| ledger.apply(event));
    let id = ledger.begin_measurement(Pid(1), at(&all[..first])).unwrap();
    all[first..second].iter().for_each(|event| ledger.apply(event));
    let ended = ledger.end_measurement(id, at(&all[..second])).unwrap();
    all[second..].iter().for_each(|event| ledger.apply(event));
    ledger.name_measurement(ended)
}

fn kept(measurement: &Measurement) -> Vec<(u64, u64, Vec<u64>)> {
    let row = |row: &KeptSite| (row.bytes.0 / MIB, row.count, row.addresses.clone());
    measurement.kept.iter().map(row).collect()
}

#[test]
fn measurement_has_peak_and_kept_memory_of_its_time() {
    let measurement = measure(
        "1.1 alloc 0x10 32M device
         1.1 free 0x10
         1.1 alloc 0x20 8M device
         begin
         1.1 alloc 0x30 4M device site3
         1.2 alloc 0x40 2M device site3
         1.1 free 0x30
         2.1 alloc 0x50 64M device
         1.1 create stream 0x10 site4
         1.1 free 0x20
         end
         0 frames site3 step main
         1.1 alloc 0x60 128M device",
    );
    let mib = |bytes: Bytes| bytes.0 / MIB;
    assert_eq!((mib(measurement.live_before), mib(measurement.live_after)), (8, 2));
    assert_eq!((mib(measurement.peak), measurement.peak_bounds), (14, None));
    assert_eq!(kept(&measurement), [(2, 1, vec![0x40]), (0, 1, vec![])]);
    assert_eq!(&*measurement.kept[0].frames[0].function, "step");
    assert_eq!(measurement.timeline.iter().map(|(_, bytes)| mib(*bytes)).max(), Some(14));
}

#[test]
fn measurement_may_begin_before_the_first_call() {
    let measurement = measure("begin 1.1 alloc 0x10 8M device \n 1.1 free 0x10 \n end");
    assert_eq!((measurement.peak.0, measurement.live_after.0), (8 * MIB, 0));
    let measurement = measure("begin end 1.1 alloc 0x10 8M device");
    assert_eq!((measurement.peak.0, measurement.kept.len()), (0, 0));
}

#[test]
fn overlapping_calls_bound_the_peak_of_a_measurement() {
    // The free was in progress when the allocation was made.
    let measurement = measure(
        "1.1 alloc 0x10 8M device @1-2
         begin
         1.2 alloc 0x20 4M device @11-12
         1.1 free 0x10 @10-13
         end",
    );
    assert_eq!(measurement.peak_bounds, Some((Bytes(8 * MIB), Bytes(12 * MIB))));
}

#[test]
fn ended_and_canceled_measurements_are_unknown() {
    let mut ledger = Ledger::new();
    let id = ledger.begin_measurement(Pid(1), Timestamp(1)).unwrap();
    ledger.cancel_measurement(id);
    assert!(ledger.end_measurement(id, Timestamp(2)).is_none());
    assert!(ledger.end_measurement(MeasurementId(99), Timestamp(2)).is_none());
    let open: Vec<_> = (0..2000).map(|_| ledger.begin_measurement(Pid(1), Timestamp(1))).collect();
    assert_eq!(open.iter().flatten().count(), 1024);
}

#[test]
fn kept_by_is_the_cause_of_a_leak() {
    let lines =
        (1..2000_u64).map(|n| format!("1.1 alloc {n:#x} 1M device site3 @{0}-{0}", n * 50_000_000));
    let lines: Vec<_> = lines.collect();
    let mut ledger = super::ledger(&format!("0 frames site3 step \n {}", lines.join("\n")));
    let at = Timestamp(100_000_000_000);
    // The address of one allocation stands for all of its site. Unknown addresses and processes are
    // ignored.
    for (pid, address, text) in [
        (1, 5, "__main__.history (dict, 2 entries)"),
        (1, 99_999, "__main__.other (list)"),
        (2, 5, "__main__.other (list)"),
    ] {
        let (pid, kind) = (Pid(pid), EventKind::KeptBy(address, text.into()));
        ledger.apply(&Event { pid, tid: Tid(0), entry_time: at, time: at, kind });
    }
    let snapshot = ledger.snapshot(at, &SnapshotOptions::default());
    let view = View::of(&snapshot, &[]);
    assert_eq!(view.leaks[0].advice.cause, "python_references");
    assert!(view.leaks[0].advice.text.contains("through __main__.history (dict, 2 entries)"));
}
