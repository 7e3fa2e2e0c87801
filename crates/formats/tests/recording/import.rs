//! A recording as the input of an import: changes, pools, names, warnings.

use std::fs;

use engine::cache::{PoolSums, Segment};
use engine::change::{Change, How, Turn};
use engine::event::{
    Allocate, Event, Free, FreeBy, Lost, Place, PoolCall, ProcessFacts, SiteFacts, What,
};
use engine::ids::{DeviceId, GpuId, Key, Pid, PoolId, SiteId, StreamId, Tid};
use engine::kind::Kind;
use engine::stack::{Frame, Stacks};
use engine::units::Moment;
use formats::import::recording::read;
use formats::import::{Imported, Sink, Source, Warning};
use formats::recording::Writer;

use super::{function, header, known};

#[derive(Default)]
struct Seen {
    stacks: Stacks,
    changes: Vec<Change>,
    processes: Vec<(Pid, String)>,
    devices: Vec<(DeviceId, String, Option<u64>)>,
    clock: Vec<(Moment, i64)>,
    pools: Vec<PoolSums>,
    warnings: Vec<Warning>,
}

impl Sink for Seen {
    fn stacks(&mut self) -> &mut Stacks {
        &mut self.stacks
    }
    fn change(&mut self, change: &Change) {
        self.changes.push(*change);
    }
    fn process(&mut self, pid: Pid, name: &str) {
        self.processes.push((pid, name.to_owned()));
    }
    fn device(&mut self, device: DeviceId, name: &str, total_bytes: Option<u64>) {
        self.devices.push((device, name.to_owned(), total_bytes));
    }
    fn clock(&mut self, moment: Moment, utc_nanos: i64) {
        self.clock.push((moment, utc_nanos));
    }
    fn segment(&mut self, _: Segment) {
        panic!("recordings have no segments");
    }
    fn pool(&mut self, pool: &PoolSums) {
        self.pools.push(*pool);
    }
    fn warn(&mut self, warning: Warning) {
        self.warnings.push(warning);
    }
}

fn event(pid: u32, moment: u64, what: What) -> Event {
    let at = Moment(moment);
    Event { pid: Pid(pid), tid: Tid(pid), entered: at, at, what }
}

fn facts(name: &str, before_trace: bool) -> What {
    What::Process(ProcessFacts { start: 1, uid: 0, name: name.into(), before_trace })
}

fn allocate(address: u64, kind: Kind, bytes: u64, site: Option<SiteId>) -> What {
    let pooled = kind == Kind::Async;
    What::Allocate(Allocate {
        key: Key::address(address),
        kind,
        bytes,
        context: None,
        device: Some(DeviceId(0)),
        pool: pooled.then_some(PoolId(0x900)),
        stream: pooled.then_some(StreamId(5)),
        site,
    })
}

fn free(address: u64) -> What {
    What::Free(Free { key: Key::address(address), by: FreeBy::Free, stream: None })
}

/// Two processes: one frees its allocations and exits with pool memory, one leaks and keeps
/// running.
fn write_events(writer: &mut Writer<fs::File>) {
    let frames_of = |site, name: &str| {
        let frames = [Frame { function: name.into(), ..Frame::default() }].into();
        event(0, 35, What::Site(SiteFacts { site: SiteId(site), frames }))
    };
    let place = Some(Place::Device(DeviceId(0)));
    let created = PoolCall::Created { pool: PoolId(0x900), place };
    for event in [
        event(1, 10, facts("train", false)),
        event(1, 11, What::Gpus([Some(GpuId(0)), None].into())),
        event(1, 12, allocate(0x100, Kind::Device, 64, Some(SiteId(1)))),
        event(1, 13, free(0x100)),
        event(1, 13, What::Pool(created)),
        event(1, 14, What::Pool(PoolCall::ToldReserved { pool: PoolId(0x900), bytes: 4096 })),
        event(1, 15, allocate(0x200, Kind::Async, 512, None)),
        event(1, 16, What::Exit),
    ] {
        writer.event(&event).unwrap();
    }
    writer.tick(Moment(20)).unwrap();
    let lost = Lost { frees: 3, ..Lost::default() };
    for event in [
        event(2, 30, facts("serve", true)),
        event(2, 31, What::Gpus([Some(GpuId(7))].into())),
        event(2, 32, allocate(0x100, Kind::Pinned, 32, Some(SiteId(77)))),
        event(2, 33, What::Lost(lost)),
        // Symbols are resolved later.
        frames_of(0, "unused"),
        frames_of(1, "main"),
    ] {
        writer.event(&event).unwrap();
    }
}

fn import(finish: bool) -> (Seen, Imported) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.arrows");
    let file = fs::File::create(&path).unwrap();
    let mut writer = Writer::new(file, &header(), function).unwrap();
    write_events(&mut writer);
    if finish {
        writer.finish(Moment(40)).unwrap();
    } else {
        writer.flush().unwrap();
    }
    let mut seen = Seen::default();
    let imported = read(&path, &mut seen, known).unwrap();
    (seen, imported)
}

#[test]
fn allocations_and_frees_are_imported() {
    let (seen, imported) = import(true);
    let changes: Vec<_> = seen
        .changes
        .iter()
        .map(|change| (change.at.0, change.pid.0, change.key.value, change.bytes, change.what))
        .collect();
    let ended = |began, how| Turn::Ended { began: Moment(began), how };
    assert_eq!(
        changes,
        [
            (12, 1, 0x100, 64, Turn::Began),
            (13, 1, 0x100, 64, ended(12, How::Freed)),
            (15, 1, 0x200, 512, Turn::Began),
            (16, 1, 0x200, 512, ended(15, How::Exited)),
            (32, 2, 0x100, 32, Turn::Began),
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
        Imported {
            source: Source::Recording,
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
    assert_eq!(seen.clock, [(Moment(7), 1_700_000_000_000_000_000)]);
    assert_eq!(
        seen.pools,
        [PoolSums {
            pid: Pid(1),
            device: Some(DeviceId(0)),
            pool: 0x900,
            reserved: Some(4096),
            used: 512,
            at: Moment(20)
        }]
    );
}

#[test]
fn inexact_recordings_have_warnings() {
    let (seen, _) = import(true);
    let counts: Vec<_> =
        seen.warnings.iter().map(|warning| (warning.count, warning.inexact)).collect();
    assert_eq!(counts, [(3, true), (1, true), (1, true)], "{:?}", seen.warnings);
    for (warning, word) in seen.warnings.iter().zip(["lost", "before the trace", "otherwise"]) {
        assert!(warning.text.contains(word), "{warning:?}");
    }
    let (cut, imported) = import(false);
    assert_eq!(imported.events, 14);
    assert!(cut.warnings[3].text.contains("truncated at byte"), "{:?}", cut.warnings);
}

#[test]
fn missing_file_is_named_in_the_error() {
    let missing = std::path::Path::new("no/such/file");
    let error = read(missing, &mut Seen::default(), known).unwrap_err().to_string();
    assert!(error.starts_with("cannot read no/such/file: "), "{error}");
}
