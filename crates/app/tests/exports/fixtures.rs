//! Generated recordings.

use engine::model::event::{
    Allocate, Event, EventKind, FailedCall, Free, FreeFunction, OUT_OF_MEMORY, ProcessInfo,
    SiteFrames,
};
use engine::model::ids::{AllocationKey, DeviceId, FunctionId, Pid, SiteId, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::stack::{Frame, Language};
use engine::model::units::Timestamp;
use formats::WallClock;
use formats::recording::{RecordingHeader, RecordingWriter};
use tempfile::TempDir;

fn write(dir: &TempDir, events: impl Iterator<Item = (u32, u64, EventKind)>) -> String {
    let path = dir.path().join("made.arrows");
    let header = RecordingHeader {
        source: None,
        version: "1.0.0".into(),
        hostname: "a/../b".into(),
        kernel: String::new(),
        target: String::new(),
        activity: false,
        clock: WallClock::recorded(Timestamp(0), 1_700_000_000_000_000_000, Some("UTC"), 0),
        gpus: Vec::new(),
    };
    let file = std::fs::File::create(&path).unwrap();
    let mut writer = RecordingWriter::new(file, &header, |_| "cuMemAlloc_v2").unwrap();
    let mut last = Timestamp(0);
    for (pid, at, kind) in events {
        last = Timestamp(at);
        let event = Event { pid: Pid(pid), tid: Tid(pid), entry_time: last, time: last, kind };
        writer.event(&event).unwrap();
    }
    writer.finish(last).unwrap();
    path.to_str().unwrap().to_owned()
}

fn process(name: &str) -> EventKind {
    let name = name.into();
    EventKind::Process(ProcessInfo { start: 1, uid: 0, name, before_trace: false })
}

fn allocate(address: u64, bytes: u64, site: Option<u32>) -> EventKind {
    EventKind::Allocate(Allocate {
        key: AllocationKey::address(address),
        kind: MemoryKind::Device,
        bytes,
        context: None,
        device: Some(DeviceId(0)),
        pool: None,
        stream: None,
        site: site.map(SiteId),
    })
}

/// Two processes with memory at the same address; a request of the second one is too large.
pub(crate) fn two_processes(dir: &TempDir) -> String {
    let refused = EventKind::Failed(FailedCall {
        function: FunctionId(0),
        code: OUT_OF_MEMORY,
        requested: Some((MemoryKind::Device, 1 << 40)),
        freed: None,
        device: Some(DeviceId(0)),
        context: None,
        site: None,
    });
    let events = [
        (1, 1000, process("one")),
        (2, 1000, process("two")),
        (1, 2000, allocate(0x7f00_0000_0000, 1024, None)),
        (2, 3000, allocate(0x7f00_0000_0000, 4096, None)),
        (2, 4000, refused),
    ];
    write(dir, events.into_iter())
}

/// A process and functions with names that are special to some reader.
pub(crate) fn hostile(dir: &TempDir) -> String {
    let name = "a\"b,c;d\ne\u{202e}f\u{1b}[2J\t\0</script>";
    let frame = |function: &str, language| Frame {
        function: function.into(),
        file: Some(name.into()),
        line: 7,
        module: Some("=HYPERLINK(\"x\")".into()),
        language,
        unknown: None,
    };
    let frames = [
        frame(name, Language::Native),
        frame("=1+1", Language::Python),
        frame("-2+3", Language::Native),
        frame("{\"$schema\":0}", Language::Synthetic),
    ];
    let site = EventKind::Site(SiteFrames { site: SiteId(3), frames: frames.into() });
    let only = SiteFrames { site: SiteId(4), frames: [frame("@SUM(A1)", Language::Native)].into() };
    let events = [
        (7, 1000, process("=1+1")),
        (7, 1001, site),
        (7, 1002, EventKind::Site(only)),
        (7, 2000, allocate(0x7f00_0000_0000, 1024, Some(3))),
        (7, 3000, allocate(0x7f00_0010_0000, 4096, Some(4))),
    ];
    write(dir, events.into_iter())
}

/// Writes a recording with `count` events of one process.
pub(crate) fn long(dir: &TempDir, count: u64) -> String {
    let first = std::iter::once((1, 1000, process("long")));
    let rest = (0..count).map(|number| {
        let address = 0x7f00_0000_0000 + (number / 2 % 4096) * 4096;
        let kind = if number % 2 == 0 {
            allocate(address, 4096, None)
        } else {
            EventKind::Free(Free {
                key: AllocationKey::address(address),
                by: FreeFunction::Free,
                stream: None,
            })
        };
        (1, 2000 + number * 100, kind)
    });
    write(dir, first.chain(rest))
}
