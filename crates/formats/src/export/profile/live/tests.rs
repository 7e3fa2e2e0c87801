//! Profiles of hand-fed ledgers, read back.

use std::io::Read;

use engine::ledger::Ledger;
use engine::model::{
    Allocate, AllocationKey, DeviceId, Event, EventKind, Frame, Free, FreeFunction, Pid,
    ProcessInfo, SiteFrames, SiteId, Tid, Timestamp,
};
use engine::snapshot::SnapshotOptions;
use prost::Message;

use super::super::proto::Profile;
use super::*;
use crate::WallClock;

const SECOND: u64 = 1_000_000_000;

fn context() -> ReportContext {
    ReportContext::new(WallClock::fixed(Timestamp(0), 1_700_000_000))
}

fn event(second: u64, kind: EventKind) -> Event {
    let at = Timestamp(second * SECOND);
    Event { pid: Pid(47), tid: Tid(47), entry_time: at, time: at, kind }
}

fn started() -> Ledger {
    let mut ledger = Ledger::new();
    let (start, uid, name) = (1, 0, "tr\x1bain".into());
    let info = ProcessInfo { start, uid, name, before_trace: false };
    ledger.apply(&event(1, EventKind::Process(info)));
    ledger
}

fn allocate(ledger: &mut Ledger, address: u64, kind: MemoryKind, bytes: u64, site: Option<u32>) {
    let allocate = EventKind::Allocate(Allocate {
        key: AllocationKey::address(address),
        kind,
        bytes,
        context: None,
        device: Some(DeviceId(0)),
        pool: None,
        stream: None,
        site: site.map(SiteId),
    });
    ledger.apply(&event(2, allocate));
}

fn free(ledger: &mut Ledger, address: u64) {
    let free = Free { key: AllocationKey::address(address), by: FreeFunction::Free, stream: None };
    ledger.apply(&event(3, EventKind::Free(free)));
}

fn resolve(ledger: &mut Ledger, site: u32, function: &str) {
    let (file, module) = (Some("/srv/ann/train.py".into()), Some("/usr/lib/libx.so".into()));
    let frame = Frame { function: function.into(), file, line: 7, module, ..Frame::default() };
    let site_frames = SiteFrames { site: SiteId(site), frames: [frame].into() };
    ledger.apply(&event(2, EventKind::Site(site_frames)));
}

fn snapshot(ledger: &mut Ledger, second: u64, top_sites: usize) -> Snapshot {
    ledger.snapshot(
        Timestamp(second * SECOND),
        &SnapshotOptions { top_sites, ..SnapshotOptions::DEFAULT },
    )
}

fn read(snapshot: &Snapshot) -> Profile {
    let mut gzipped = Vec::new();
    live_pprof(&mut gzipped, snapshot, &context()).unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&*gzipped).read_to_end(&mut bytes).unwrap();
    Profile::decode(&*bytes).unwrap()
}

/// Returns each sample as its innermost function and its values.
fn samples(profile: &Profile) -> Vec<(String, Vec<i64>)> {
    let text = |number: i64| profile.string_table[usize::try_from(number).unwrap()].clone();
    let function = |location: u64| {
        let location = profile.location.iter().find(|known| known.id == location).unwrap();
        let id = location.line[0].function_id;
        text(profile.function.iter().find(|known| known.id == id).unwrap().name)
    };
    let sample = profile.sample.iter();
    sample.map(|sample| (function(sample.location_id[0]), sample.value.clone())).collect()
}

fn row(name: &str, values: [i64; 4]) -> (String, Vec<i64>) {
    (name.to_owned(), values.into())
}

#[test]
fn in_use_adds_up_for_any_number_of_listed_sites() {
    let mut ledger = started();
    allocate(&mut ledger, 0x10, MemoryKind::Device, 1000, Some(1));
    allocate(&mut ledger, 0x20, MemoryKind::Device, 30, Some(2));
    allocate(&mut ledger, 0x30, MemoryKind::Device, 4, None);
    allocate(&mut ledger, 0x40, MemoryKind::Pinned, 500_000, Some(1));
    allocate(&mut ledger, 0x50, MemoryKind::Device, 7, Some(1));
    free(&mut ledger, 0x50);
    resolve(&mut ledger, 1, "big");
    let all = read(&snapshot(&mut ledger, 10, 10));
    let want = [
        row("big", [2, 1007, 1, 1000]),
        row("(call stack not read yet)", [1, 30, 1, 30]),
        row("(no call stack)", [1, 4, 1, 4]),
    ];
    assert_eq!(samples(&all), want);
    let few = read(&snapshot(&mut ledger, 11, 1));
    assert_eq!(
        samples(&few),
        [row("big", [2, 1007, 1, 1000]), row("(other sites)", [0, 0, 2, 34])]
    );
    assert_eq!(few.time_nanos, 1_700_000_011_000_000_000);
    assert_eq!(few.duration_nanos, 11_000_000_000);
}

#[test]
fn names_are_sanitized() {
    let mut ledger = started();
    allocate(&mut ledger, 0x10, MemoryKind::Device, 100, Some(1));
    resolve(&mut ledger, 1, "step");
    let texts = read(&snapshot(&mut ledger, 10, 10)).string_table;
    assert!(texts.iter().any(|text| text == "/srv/ann/train.py"));
    assert!(texts.iter().any(|text| text == "tr\\u{1b}ain"), "{texts:?}");
}
