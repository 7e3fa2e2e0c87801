//! A recording as the input of an import: changes, pools, names, warnings.

use std::fs;

use engine::model::caching_allocator::{PoolTotals, Segment};
use engine::model::change::{AllocationChange, ChangeKind, EndReason};
use engine::model::event::{
    Allocate, Event, EventKind, Free, FreeFunction, LostDelta, MemoryLocation, PoolCall,
    ProcessInfo, SiteFrames,
};
use engine::model::ids::{AllocationKey, DeviceId, GpuId, Pid, PoolId, SiteId, StreamId, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::stack::{Frame, StackTable};
use engine::model::units::Timestamp;
use formats::import::recording::read;
use formats::import::{ImportSink, ImportSummary, SourceFormat, Warning};
use formats::recording::RecordingWriter;

use super::{function, header, known};

#[derive(Default)]
struct CollectedChanges {
    stacks: StackTable,
    changes: Vec<AllocationChange>,
    processes: Vec<(Pid, String)>,
    devices: Vec<(DeviceId, String, Option<u64>)>,
    clock: Vec<(Timestamp, i64)>,
    pools: Vec<PoolTotals>,
    warnings: Vec<Warning>,
}

impl ImportSink for CollectedChanges {
    fn stacks(&mut self) -> &mut StackTable {
        &mut self.stacks
    }
    fn change(&mut self, change: &AllocationChange) {
        self.changes.push(*change);
    }
    fn process(&mut self, pid: Pid, name: &str) {
        self.processes.push((pid, name.to_owned()));
    }
    fn device(&mut self, device: DeviceId, name: &str, total_bytes: Option<u64>) {
        self.devices.push((device, name.to_owned(), total_bytes));
    }
    fn clock(&mut self, moment: Timestamp, utc_nanos: i64) {
        self.clock.push((moment, utc_nanos));
    }
    fn segment(&mut self, _: Segment) {
        panic!("recordings have no segments");
    }
    fn pool(&mut self, pool: &PoolTotals) {
        self.pools.push(*pool);
    }
    fn warn(&mut self, warning: Warning) {
        self.warnings.push(warning);
    }
}

fn event(pid: u32, time: u64, kind: EventKind) -> Event {
    let at = Timestamp(time);
    Event { pid: Pid(pid), tid: Tid(pid), entry_time: at, time: at, kind }
}

fn process(name: &str, before_trace: bool) -> EventKind {
    EventKind::Process(ProcessInfo { start: 1, uid: 0, name: name.into(), before_trace })
}

fn allocate(address: u64, kind: MemoryKind, bytes: u64, site: Option<SiteId>) -> EventKind {
    let pooled = kind == MemoryKind::Async;
    EventKind::Allocate(Allocate {
        key: AllocationKey::address(address),
        kind,
        bytes,
        context: None,
        device: Some(DeviceId(0)),
        pool: pooled.then_some(PoolId(0x900)),
        stream: pooled.then_some(StreamId(5)),
        site,
    })
}

fn free(address: u64) -> EventKind {
    EventKind::Free(Free {
        key: AllocationKey::address(address),
        by: FreeFunction::Free,
        stream: None,
    })
}

/// Two processes: one frees its allocations and exits with pool memory, one leaks and keeps
/// running.
fn write_events(writer: &mut RecordingWriter<fs::File>) {
    let frames_of = |site, name: &str| {
        let frames = [Frame { function: name.into(), ..Frame::default() }].into();
        event(0, 35, EventKind::Site(SiteFrames { site: SiteId(site), frames }))
    };
    let location = Some(MemoryLocation::Device(DeviceId(0)));
    let created = PoolCall::Created { pool: PoolId(0x900), location };
    for event in [
        event(1, 10, process("train", false)),
        event(1, 11, EventKind::Gpus([Some(GpuId(0)), None].into())),
        event(1, 12, allocate(0x100, MemoryKind::Device, 64, Some(SiteId(1)))),
        event(1, 13, free(0x100)),
        event(1, 13, EventKind::Pool(created)),
        event(
            1,
            14,
            EventKind::Pool(PoolCall::ReservedReported { pool: PoolId(0x900), bytes: 4096 }),
        ),
        event(1, 15, allocate(0x200, MemoryKind::Async, 512, None)),
        event(1, 16, EventKind::Exit),
    ] {
        writer.event(&event).unwrap();
    }
    writer.tick(Timestamp(20)).unwrap();
    let lost = LostDelta { frees: 3, ..LostDelta::default() };
    for event in [
        event(2, 30, process("serve", true)),
        event(2, 31, EventKind::Gpus([Some(GpuId(7))].into())),
        event(2, 32, allocate(0x100, MemoryKind::Pinned, 32, Some(SiteId(77)))),
        event(2, 33, EventKind::Lost(lost)),
        // Symbols are resolved later.
        frames_of(0, "unused"),
        frames_of(1, "main"),
    ] {
        writer.event(&event).unwrap();
    }
}

fn import(finish: bool) -> (CollectedChanges, ImportSummary) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.arrows");
    let file = fs::File::create(&path).unwrap();
    let mut writer = RecordingWriter::new(file, &header(), function).unwrap();
    write_events(&mut writer);
    if finish {
        writer.finish(Timestamp(40)).unwrap();
    } else {
        writer.flush().unwrap();
    }
    let mut seen = CollectedChanges::default();
    let imported = read(&path, &mut seen, known).unwrap();
    (seen, imported)
}

#[test]
fn allocations_and_frees_are_imported() {
    let (seen, imported) = import(true);
    let changes: Vec<_> = seen
        .changes
        .iter()
        .map(|change| (change.at.0, change.pid.0, change.key.value, change.bytes, change.action))
        .collect();
    let ended =
        |allocated_at, reason| ChangeKind::Ended { allocated_at: Timestamp(allocated_at), reason };
    assert_eq!(
        changes,
        [
            (12, 1, 0x100, 64, ChangeKind::Allocated),
            (13, 1, 0x100, 64, ended(12, EndReason::Freed)),
            (15, 1, 0x200, 512, ChangeKind::Allocated),
            (16, 1, 0x200, 512, ended(15, EndReason::ProcessExited)),
            (32, 2, 0x100, 32, ChangeKind::Allocated),
        ]
    );
    let site = seen.changes[0].site.expect("no site");
    let frames: Vec<_> = seen.stacks.frames(site).map(|frame| &*frame.function).collect();
    assert_eq!(frames, ["main"]);
    assert_eq!(seen.changes[4].site, None, "a site that is not in the file");
    assert_eq!(
        (seen.changes[2].pool, seen.changes[2].stream),
        (Some(PoolId(0x900)), Some(StreamId(5)))
    );
    assert_eq!(
        imported,
        ImportSummary {
            source: SourceFormat::Recording,
            events: 14,
            producer: Some("vramscope 1.2.3".into())
        }
    );
}

#[test]
fn names_clock_and_pools_are_imported() {
    let (seen, _) = import(true);
    assert_eq!(seen.processes, [(Pid(1), "train".into()), (Pid(2), "serve".into())]);
    assert_eq!(seen.devices, [(DeviceId(0), "Simulated".into(), Some(8 << 30))]);
    assert_eq!(seen.clock, [(Timestamp(7), 1_700_000_000_000_000_000)]);
    assert_eq!(
        seen.pools,
        [PoolTotals {
            pid: Pid(1),
            device: Some(DeviceId(0)),
            pool: 0x900,
            reserved: Some(4096),
            used: 512,
            at: Timestamp(20)
        }]
    );
}

#[test]
fn inexact_recordings_have_warnings() {
    let (seen, _) = import(true);
    let counts: Vec<_> =
        seen.warnings.iter().map(|warning| (warning.count, warning.inexact)).collect();
    assert_eq!(counts, [(3, true), (1, true), (1, true)], "{:?}", seen.warnings);
    for (warning, word) in seen.warnings.iter().zip(["lost", "before the trace", "differently"]) {
        assert!(warning.text.contains(word), "{warning:?}");
    }
    let (cut, imported) = import(false);
    assert_eq!(imported.events, 14);
    assert!(cut.warnings[3].text.contains("truncated at byte"), "{:?}", cut.warnings);
}

#[test]
fn missing_file_is_named_in_the_error() {
    let missing = std::path::Path::new("no/such/file");
    let error = read(missing, &mut CollectedChanges::default(), known).unwrap_err().to_string();
    assert!(error.starts_with("cannot read no/such/file: "), "{error}");
}
