//! Snapshots of the ledger after small traces, one behavior per case.

mod allocations;
mod api_misuse;
mod changes;
mod contexts;
mod failures;
mod gpus;
mod graphs;
mod imports;
mod losses;
mod measurements;
mod notation;
mod objects;
mod overhead;
mod physical;
mod pools;
mod processes;
mod reuse;
mod sites;
mod suspects;
mod views;

use engine::model::ids::{AddressType, DeviceId, Pid};
use engine::model::memory_kind::MemoryKind;
use engine::model::units::{Bytes, Nanos, Timestamp};
use engine::snapshot::{
    DriverReported, ProcessEnd, ProcessView, SharedMemoryView, Snapshot, SnapshotOptions,
    SortOrder, Uncertainty,
};
use notation::{events, ledger};

const MIB: u64 = 1 << 20;

/// Returns the snapshot after a trace, with default options.
fn after(trace: &str) -> Snapshot {
    snapshot_at(trace, 1000, &SnapshotOptions::default())
}

fn snapshot_at(trace: &str, at: u64, options: &SnapshotOptions) -> Snapshot {
    ledger(trace).snapshot(Timestamp(at), options)
}

/// Returns the only process of a snapshot.
fn only(snapshot: &Snapshot) -> &ProcessView {
    assert_eq!(snapshot.processes.len(), 1, "{:#?}", snapshot.processes);
    &snapshot.processes[0]
}

/// Live device memory in MiB, and live allocations.
fn live(process: &ProcessView) -> (u64, u64) {
    (process.live_bytes.0 / MIB, process.live_allocations)
}

/// Frees by the program, frees of unknown pointers, releases, implied frees.
fn ends(process: &ProcessView) -> (u64, u64, u64, u64) {
    let implied = process.uncertainty.implied_frees;
    (process.frees_total, process.unknown_frees, process.released_total, implied)
}

/// Devices with live and peak MiB; -1 is the unknown device.
fn devices(process: &ProcessView) -> Vec<(i32, u64, u64)> {
    let number = |device: Option<DeviceId>| device.map_or(-1, |device| i32::from(device.0));
    let all = process.devices.iter();
    all.map(|view| (number(view.device), view.live_bytes.0 / MIB, view.peak_bytes.0 / MIB))
        .collect()
}

/// Threads with the addresses of their listed allocations.
fn lists(process: &ProcessView) -> Vec<(u32, Vec<u64>)> {
    let keys = |view: &engine::snapshot::ThreadView| {
        (view.tid.0, view.allocations.iter().map(|allocation| allocation.key.value).collect())
    };
    process.threads.iter().map(keys).collect()
}

/// Bounds in MiB.
fn bounds(uncertainty: &Uncertainty) -> (u64, u64) {
    (uncertainty.live_min.0 / MIB, uncertainty.live_max.0 / MIB)
}

#[test]
fn notation_parses_times_and_threads() {
    let events = events("1.2 free 0x10 @3-4 \n # nothing \n 5 exit");
    assert_eq!(
        (events[0].tid.0, events[0].entry_time, events[0].time),
        (2, Timestamp(3), Timestamp(4))
    );
    assert_eq!((events[1].pid, events[1].time), (Pid(5), Timestamp(20)));
}
