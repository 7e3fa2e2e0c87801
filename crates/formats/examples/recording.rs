//! What a recording costs: `recording COUNT FILE` writes COUNT events, reads them again, and prints
//! the seconds that both took. `experiments/cost/files/recording.py` runs it.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "an experiment prints its result and fails loudly"
)]

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use engine::model::event::{Allocate, Event, EventKind, Free, FreeFunction};
use engine::model::ids::{AllocationKey, ContextId, DeviceId, Pid, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::units::Timestamp;
use formats::WallClock;
use formats::recording::{RecordingHeader, RecordingReader, RecordingRow, RecordingWriter};

/// Numbers that look random and are the same each time.
struct Numbers(u64);

impl Numbers {
    const fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// A program of four threads that allocates sizes of all magnitudes, and frees each after a while.
fn events(count: u64) -> impl Iterator<Item = Event> {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let mut live = Vec::new();
    let mut now = 5_000_000_000_000;
    (0..count).map(move |_| {
        now += 500 + numbers.below(4000);
        let took = 300 + numbers.below(900);
        let full = live.len() > 1000;
        let kind = if full || (!live.is_empty() && numbers.below(2) == 0) {
            let address = live.swap_remove(numbers.below(live.len() as u64) as usize);
            let key = AllocationKey::address(address);
            EventKind::Free(Free { key, by: FreeFunction::Free, stream: None })
        } else {
            let address = 0x7f00_0000_0000 + (numbers.below(1 << 22) << 9);
            live.push(address);
            EventKind::Allocate(Allocate {
                key: AllocationKey::address(address),
                kind: MemoryKind::Device,
                bytes: 512 << numbers.below(16),
                context: Some(ContextId(0x5581_2345_6780)),
                device: Some(DeviceId(0)),
                pool: None,
                stream: None,
                site: None,
            })
        };
        let tid = Tid(4711 + numbers.below(4) as u32);
        Event { pid: Pid(4711), tid, entry_time: Timestamp(now - took), time: Timestamp(now), kind }
    })
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let count = arguments.next().unwrap().parse().unwrap();
    let path = arguments.next().unwrap();
    let events: Vec<Event> = events(count).collect();
    let header = RecordingHeader {
        source: None,
        version: "0".into(),
        hostname: "host".into(),
        kernel: "0".into(),
        target: "an experiment".into(),
        activity: false,
        clock: WallClock::fixed(Timestamp(0), 0),
        gpus: Vec::new(),
    };
    let start = Instant::now();
    let file = File::create(&path).unwrap();
    let mut writer = RecordingWriter::new(file, &header, |_| "").unwrap();
    for event in &events {
        writer.event(event).unwrap();
    }
    writer.finish(Timestamp(0)).unwrap();
    let written = start.elapsed();
    let start = Instant::now();
    let mut reader = RecordingReader::open(Path::new(&path), |_| None).unwrap();
    let mut read = events.iter();
    while let Some(row) = reader.next_row().unwrap() {
        if let RecordingRow::Event(event) = row {
            assert!(read.next() == Some(&event));
        }
    }
    assert!(read.next().is_none());
    let again = start.elapsed();
    println!(
        "{{\"events\": {count}, \"bytes\": {}, \"write_s\": {}, \"read_s\": {}}}",
        writer.bytes(),
        written.as_secs_f64(),
        again.as_secs_f64()
    );
}
