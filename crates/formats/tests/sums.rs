//! Totals in reports of a ledger: by memory class, and over running processes.

use engine::ledger::Ledger;
use engine::model::event::{Allocate, Event, EventKind, ProcessInfo, SiteFrames};
use engine::model::ids::{AllocationKey, DeviceId, Pid, SiteId, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::stack::Frame;
use engine::model::units::Timestamp;
use engine::snapshot::{Snapshot, SnapshotOptions};
use formats::WallClock;
use formats::export::ReportContext;
use formats::report::live::text::TextStyle;
use formats::report::live::{json, text};

const MIB: u64 = 1 << 20;

fn apply(ledger: &mut Ledger, pid: u32, kind: EventKind) {
    let at = Timestamp(1_000_000_000);
    ledger.apply(&Event { pid: Pid(pid), tid: Tid(pid), entry_time: at, time: at, kind });
}

fn start(ledger: &mut Ledger, pid: u32) {
    let info = ProcessInfo { start: 1, uid: 1000, name: "app".into(), before_trace: false };
    apply(ledger, pid, EventKind::Process(info));
}

fn allocate(
    ledger: &mut Ledger,
    pid: u32,
    address: u64,
    kind: MemoryKind,
    bytes: u64,
    site: SiteId,
) {
    let device = Some(DeviceId(0)).filter(|_| kind == MemoryKind::Device);
    let (key, context, pool, stream) = (AllocationKey::address(address), None, None, None);
    let site = Some(site);
    let new = Allocate { key, kind, bytes, context, device, pool, stream, site };
    apply(ledger, pid, EventKind::Allocate(new));
}

fn snapshot(ledger: &mut Ledger) -> Snapshot {
    ledger
        .snapshot(Timestamp(2_000_000_000), &SnapshotOptions { top: 1, ..SnapshotOptions::DEFAULT })
}

fn context() -> ReportContext {
    ReportContext {
        function: |_| "cuMemAlloc_v2",
        ..ReportContext::new(WallClock::fixed(Timestamp(0), 1_700_000_000))
    }
}

/// A process with 6 MiB of pinned memory from one site, and two imported allocations of unknown
/// size from another.
fn host_and_imported() -> Ledger {
    let mut ledger = Ledger::new();
    start(&mut ledger, 1);
    for address in 1..=3 {
        allocate(&mut ledger, 1, address, MemoryKind::Pinned, 2 * MIB, SiteId(1));
    }
    for address in 4..=5 {
        allocate(&mut ledger, 1, address, MemoryKind::Imported, 0, SiteId(2));
    }
    for site in 1..=2 {
        let frame = Frame { function: format!("site_{site}").into(), ..Frame::default() };
        let site_frames = SiteFrames { site: SiteId(site), frames: [frame].into() };
        apply(&mut ledger, 0, EventKind::Site(site_frames));
    }
    ledger
}

fn lines(report: impl FnOnce(&mut dyn std::io::Write)) -> String {
    let mut out = Vec::new();
    report(&mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn text_prints_totals_of_host_and_imported_memory() {
    let snapshot = snapshot(&mut host_and_imported());
    let found =
        lines(|out| text::report(out, &snapshot, &context(), TextStyle::default()).unwrap());
    for expected in [
        "… 4 more, host 6.00 MiB and imported memory of unknown size total\n",
        "TOTAL LIVE: host 6.00 MiB in 3 allocations; imported 2 allocations of unknown size  (",
        "  kinds: pinned 6.00 MiB (host), imported of unknown size\n",
    ] {
        assert!(found.contains(expected), "{expected} is not in\n{found}");
    }
}

#[test]
fn text_by_site_prints_totals_of_host_and_imported_memory() {
    let snapshot = snapshot(&mut host_and_imported());
    let found =
        lines(|out| text::sites::report(out, &snapshot, &context(), TextStyle::default()).unwrap());
    for expected in [
        "LIVE: host 6.00 MiB in 3 allocations  (",
        "peak 6.00 MiB; 3 allocations, 6.00 MiB in total; 0 freed",
        "LIVE: imported 2 allocations of unknown size  (",
    ] {
        assert!(found.contains(expected), "{expected} is not in\n{found}");
    }
}

#[test]
fn text_prints_totals_of_host_memory_not_freed_at_exit() {
    let mut ledger = host_and_imported();
    apply(&mut ledger, 1, EventKind::Exit);
    let snapshot = snapshot(&mut ledger);
    let found =
        lines(|out| text::report(out, &snapshot, &context(), TextStyle::default()).unwrap());
    for expected in [
        "  host 6.00 MiB in 3 allocations, allocated at\n",
        "  imported 2 allocations of unknown size, allocated at\n",
        "NOT FREED AT EXIT: host 6.00 MiB in 3 allocations; imported 2 allocations of unknown size",
    ] {
        assert!(found.contains(expected), "{expected} is not in\n{found}");
    }
}

#[test]
fn json_live_bytes_excludes_processes_that_exited() {
    let mut ledger = Ledger::new();
    for (pid, mib) in [(1, 3), (2, 5)] {
        start(&mut ledger, pid);
        allocate(&mut ledger, pid, 1, MemoryKind::Device, mib * MIB, SiteId(1));
    }
    apply(&mut ledger, 2, EventKind::Exit);
    let report = json::ReportJson::new(&snapshot(&mut ledger), &context());
    let report = serde_json::to_value(report).unwrap();
    assert_eq!(
        (&report["live_bytes"], &report["live_allocations"]),
        (&(3 * MIB).into(), &1.into())
    );
    assert_eq!(report["not_freed_bytes"], 5 * MIB);
    let ended = &report["processes"][1];
    assert_eq!((&ended["exited"], &ended["live_bytes"]), (&true.into(), &(5 * MIB).into()));
}
